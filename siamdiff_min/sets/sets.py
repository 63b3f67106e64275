"""The downstream sets: `SETS` has the data of every task.

A task of a plugin adds a row here and one to `TASKS` (docs/extending.md).
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial

from .atom3d import ATOM3D, atom3d_set
from .demo import demo_set
from .ec import ec_set
from .labelled_set import LabelledData


def _ec(config: Namespace, needed: Sequence[str]) -> LabelledData:
    return ec_set(config.data, config.cutoff, config.ids, needed) if config.data else demo_set("ec")


def _atom3d(task: str, config: Namespace, needed: Sequence[str]) -> LabelledData:
    return atom3d_set(config.data, task, needed) if config.data else demo_set(task)


# task -> (options of finetune.py, splits that are needed) -> its data
SETS: dict[str, Callable[[Namespace, Sequence[str]], LabelledData]]
SETS = {"ec": _ec, **{task: partial(_atom3d, task) for task in ATOM3D}}
