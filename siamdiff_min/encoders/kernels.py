"""The formulas that cost most. Each exists twice: `plain.py` has it as published, `fast.py` the same numbers faster.

The fast form is the default. SIAMDIFF_KERNELS=plain in the environment, or `with kernels.use("plain"):` in Python,
takes the plain one.
"""

import os
from contextlib import contextmanager
from types import ModuleType

from torch import Tensor, nn

from ..files import ConfigError
from . import fast, plain
from .ops import MLP, Links

FORMS = {"plain": plain, "fast": fast}
_form = os.environ.get("SIAMDIFF_KERNELS", "fast")


@contextmanager
def use(form: str):
    """Take all formulas in this form, `plain` or `fast`, within the context."""
    global _form
    before, _form = _form, form
    try:
        yield
    finally:
        _form = before


def edge_scores(views: list[tuple], dist_mlp: MLP, struct_mlp: MLP) -> list[Tensor]:
    """m_ij = MLP(a_i * a_j, MLP(|r_i - r_j|)) of every edge of every view (Eq. 5): `plain.edge_scores`."""
    return _chosen().edge_scores(views, dist_mlp, struct_mlp)


def relational_sum(x: Tensor, links: Links, linear: nn.Linear) -> Tensor:
    """sum_r W_r sum_{j in N_r(i)} x_j + b of every target i (GearNet, App. D): `plain.relational_sum`."""
    return _chosen().relational_sum(x, links, linear)


def _chosen() -> ModuleType:
    if _form not in FORMS:
        raise ConfigError(f"SIAMDIFF_KERNELS is {_form!r}; there are {' and '.join(FORMS)}")
    return FORMS[_form]
