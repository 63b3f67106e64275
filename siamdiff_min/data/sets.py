"""The downstream sets: `SETS` has the data of every task.

A task of a plugin adds a row here and one to `TASKS` (docs/extending.md).
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..files import ConfigError
from . import samples
from .atom3d import LAYOUT, atom3d_set
from .demo import demo_set
from .ec import ec_set
from .labelled import LabelledData
from .table import table_set


class Set(NamedTuple):
    """The data of one task."""

    data: Callable[[Namespace, Sequence[str]], LabelledData]  # (options of finetune.py, splits that are needed)
    samples: type[samples.Samples]  # what its samples are, from a store and (classes, max_residues)


def _ec(config: Namespace, needed: Sequence[str]) -> LabelledData:
    return ec_set(config.data, config.cutoff, config.ids, needed) if config.data else demo_set("ec")


def _atom3d(task: str, config: Namespace, needed: Sequence[str]) -> LabelledData:
    return atom3d_set(config.data, task, needed) if config.data else demo_set(task)


def _table(config: Namespace, needed: Sequence[str]) -> LabelledData:
    if not config.labels or not config.data:
        raise ConfigError("--task table needs --labels, a file, and --data, the structures that it names")
    return table_set(config.labels, config.data, config.kind, needed)


ATOM3D_SAMPLES = {
    "psr": samples.ValueSamples,
    "msp": samples.MutationSamples,
    "pip": samples.InterfaceSamples,
    "res": samples.EnvironmentSamples,
}
SETS = {"ec": Set(_ec, samples.ValueSamples), "table": Set(_table, samples.ValueSamples)}
SETS |= {task: Set(partial(_atom3d, task), ATOM3D_SAMPLES[task]) for task in LAYOUT}
