"""The one door to the formulas that cost most: as published (`plain.py`), or the same numbers faster (`fast.py`).

Fast is the default; `SIAMDIFF_KERNELS=plain` in the environment chooses the other form, and so does

    with kernels.use("plain"): ...
"""

import os
from contextlib import contextmanager

from torch import Tensor, nn

from ..files import ConfigError
from . import fast, plain
from .ops import MLP, Links

FORMS = {"plain": plain, "fast": fast}
_form = os.environ.get("SIAMDIFF_KERNELS", "fast")


@contextmanager
def use(form: str):
    """Within this context all formulas have this form."""
    global _form
    before, _form = _form, form
    try:
        yield
    finally:
        _form = before


def _chosen():
    if _form not in FORMS:
        raise ConfigError(f"SIAMDIFF_KERNELS is {_form!r}; there are {' and '.join(FORMS)}")
    return FORMS[_form]


def edge_scores(views: list[tuple], dist_mlp: MLP, struct_mlp: MLP) -> list[Tensor]:
    """m_ij = MLP(cat(a_i * a_j, MLP(d_ij))), Eq. 5: of every view (a, graph, pos) the scores of its edges (E,)."""
    return _chosen().edge_scores(views, dist_mlp, struct_mlp)


def relational_sum(x: Tensor, links: Links, linear: nn.Linear) -> Tensor:
    """sum_r W_r sum_{j in N_r(i)} x_j + b, with all W_r side by side in `linear`: (num_targets, out)."""
    return _chosen().relational_sum(x, links, linear)


def gvp_mean(node: tuple, edge: tuple, links: Links, layers: nn.ModuleList) -> tuple[Tensor, Tensor]:
    """The mean over the edges j -> i of GVP(GVP(GVP(s_j, e_ji, s_i))): (N, .), (N, 3, .)."""
    return _chosen().gvp_mean(node, edge, links, layers)
