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


def _set_of(task: str, config: Namespace, needed: Sequence[str]) -> LabelledData:
    """The data of a task of the package; without --data a demo set."""
    if not config.data:
        return demo_set(task)
    if task == "ec":
        return ec_set(config.data, config.cutoff, needed)
    return atom3d_set(config.data, task, needed)


# task -> (options of finetune.py, splits that are needed) -> its data
SETS: dict[str, Callable[[Namespace, Sequence[str]], LabelledData]]
SETS = {task: partial(_set_of, task) for task in ("ec", *ATOM3D)}
