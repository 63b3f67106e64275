"""The task `table` among the others: its options, its rows of `TASKS`, `SETS`, `SAMPLES`. A plugin adds its own so."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...downstream.tasks import KINDS, TASKS
from ...encoders import weights
from ...files import ConfigError
from ...sets.samples import SAMPLES
from ...sets.sets import SETS
from ...training import config as options
from ...training.config import FINETUNE, FREE, PREDICTED, SWITCH, at_least, filled, flag, replace, row
from .labelled import TableData
from .labels import OPTIONS
from .samples import TableSamples
from .table_set import table_set
from .task import table_task

METRICS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.measures))
VECTORS = "with --freeze: vectors of your own, as siamdiff embed writes them, not an encoder's"
tune = partial(row, "finetune", only=("table",))
ROWS = [
    *(tune(name, **FREE, **arguments) for name, arguments in OPTIONS.items()),
    tune("kind", "kind of the labels (default: by their looks)", choices=KINDS),
    tune("metric", "metric that decides which epoch is the best (default: by kind)", choices=METRICS),
    tune("features", VECTORS),
    tune("folds", "with --freeze: score every structure, by heads of other folds", type=at_least(2)),
    tune("pdb", "with --predict, of residues: copies of the files, coloured", **FREE, **SWITCH),
]


def table_options(argv: list[str] | None, description: str, world: int) -> Namespace:
    """The options of `finetune --task table`, all filled in, for `world` processes. Raises as `finetune_options`."""
    config = options.parse(argv, FINETUNE, description)
    if config.folds and (config.eval_only or not config.freeze):
        raise ConfigError(f"{flag('folds', config.folds)} needs --freeze: one linear head for every fold")
    if config.features and (not config.freeze or config.eval_only or config.init_from or config.predict):
        raise ConfigError(f"{flag('features', config.features)} takes the place of the encoder: with --freeze alone")

    # A model knows its kind and its columns.
    if config.eval_only:
        known = weights.read_weights(config.eval_only, weights.MODEL)["options"]
        column = known.get("column")
        columns = known.get("properties") or ([column] if column else None)
        config = filled(config, {"kind": known.get("kind"), "value_column": columns})
    settled = options.tuned(config, world)
    if config.out is None:
        settled = replace(settled, out=options.folder(settled, Path(config.labels or "").stem))
    return settled


def data_of(config: Namespace, needed: Sequence[str]) -> TableData:
    """The structures of --data and their labels. Raises ConfigError if one of the two was not given."""
    if not config.labels or not config.data:
        raise ConfigError("--task table needs --labels, a file, and --data, the structures that it names")
    columns = {name: getattr(config, name) for name in ("name_column", "value_column", "missing")}
    return table_set(config.labels, config.data, config.kind, needed, bool(config.folds), **columns)


def register() -> None:
    """Add the task, as the file of a --plugin would."""
    TASKS["table"] = table_task
    SETS["table"] = data_of
    SAMPLES["table"] = TableSamples
    PREDICTED.append("table")
    options.OPTIONS["labels"] = ROWS
    FINETUNE.update({name: option for _, name, option in ROWS})


register()
