"""The downstream sets: `SETS` has the data of every task.

A task of a plugin adds a row here and one to `TASKS` (docs/extending.md).
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from ..files import ConfigError
from .atom3d import ATOM3D, atom3d_set
from .demo import demo_set
from .ec import ec_set
from .labelled_set import LabelledData
from .table_set import table_set


def _ec(config: Namespace, needed: Sequence[str]) -> LabelledData:
    return ec_set(config.data, config.cutoff, config.ids, needed) if config.data else demo_set("ec")


def _atom3d(task: str, config: Namespace, needed: Sequence[str]) -> LabelledData:
    return atom3d_set(config.data, task, needed) if config.data else demo_set(task)


def _table(config: Namespace, needed: Sequence[str]) -> LabelledData:
    if not config.labels or not config.data:
        raise ConfigError("--task table needs --labels, a file, and --data, the structures that it names")
    columns = {name: getattr(config, name) for name in ("name_column", "value_column", "missing")}
    return table_set(config.labels, config.data, config.kind, needed, bool(config.folds), **columns)


# task -> (options of finetune.py, splits that are needed) -> its data
SETS: dict[str, Callable[[Namespace, Sequence[str]], LabelledData]]
SETS = {"ec": _ec, "table": _table, **{task: partial(_atom3d, task) for task in ATOM3D}}
