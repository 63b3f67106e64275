"""The options of `finetune --task table`, beside those of the paper's tasks: read before torch is loaded."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...files import ConfigError
from ...names import Choices
from ...training import config as options
from ...training.config import FINETUNE, FREE, PREDICTED, at_least, filled, flag, model_in, replace, row
from .labels import read_table

KINDS = Choices(["regression", "binary", "classes", "labels"], "downstream.tasks", "KINDS")
METRICS = ("rmse", "mae", "spearman", "pearson", "auroc", "auprc", "accuracy", "balanced_accuracy", "macro_f1", "fmax")
VECTORS = "with --freeze: vectors of your own, as siamdiff embed writes them, not an encoder's"
tune = partial(row, "finetune", only=("table",))
ROWS = [
    tune("labels", "file of labels for the structures of --data", **FREE),
    tune("name_column", "column of the names (default: name, or the first)", **FREE),
    tune("value_column", "columns of the values (default: value)", **FREE, nargs="+"),
    tune("missing", "further words for a value that was not measured, such as n.d.", **FREE, nargs="+"),
    tune("kind", "kind of the labels (default: by their looks)", choices=KINDS),
    tune("metric", "metric that decides which epoch is the best (default: by kind)", choices=METRICS),
    tune("features", VECTORS),
    tune("folds", "with --freeze: score every structure, by heads of other folds", type=at_least(2)),
]
options.OPTIONS["labels"] = ROWS
FINETUNE.update({name: option for _, name, option in ROWS})
options.TASKS.known.append("table")
PREDICTED.append("table")


def table_options(argv: Sequence[str] | None = None, world: int | None = None) -> Namespace:
    """The options of `finetune --task table`, all filled in, for `world` processes. Raises as `finetune_options`.

    And StructureError for what is no table, or has not the columns; `table_set` looks at its rows and names.
    """
    config = options.parse(argv, FINETUNE, "Learn labels of structures of your own, score the model, apply it.")
    if config.folds and (config.eval_only or not config.freeze):
        raise ConfigError(f"{flag('folds', config.folds)} needs --freeze: one linear head for every fold")
    if config.features and (not (config.freeze or config.eval_only) or config.init_from or config.predict):
        raise ConfigError(f"{flag('features', config.features)} takes the place of the encoder: with --freeze alone")
    applied = config.eval_only and config.predict is not None and not config.data
    if not applied and not (config.labels and config.data):
        raise ConfigError("--task table needs --labels, a file, and --data, the structures that it names")

    # A model knows its kind and its columns, and what its head is of.
    if config.eval_only:
        model = model_in(config.eval_only)
        if bool(model.get("features")) != bool(config.features):
            fitted = model.get("features") or "its encoder"
            advice = "give it --features" if model.get("features") else "it takes no --features"
            raise ConfigError(f"{config.eval_only} was fitted to vectors of {fitted}: {advice}")
        known = model["options"]
        columns = known.get("properties") or ([known["column"]] if known.get("column") else None)
        config = filled(config, {"kind": known.get("kind"), "value_column": columns})
    if config.labels:
        read_table(config.labels, config.kind, **columns_of(config))
    settled = options.tuned(config, world)
    if config.out is None:
        settled = replace(settled, out=options.folder(settled, Path(config.labels or "").stem))
    return settled


def columns_of(config: Namespace) -> dict[str, str | list[str] | None]:
    """What these options say of the columns of the table, as arguments of `read_table`."""
    return {name: getattr(config, name) for name in ("name_column", "value_column", "missing")}
