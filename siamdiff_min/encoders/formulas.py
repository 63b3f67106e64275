"""The formulas that cost most, as published. `fast.py` has the same numbers faster, and is what runs by default.

SIAMDIFF_FORMULAS=plain in the environment, or `formulas.form = "plain"` in Python, runs what is written here: every
edge has a row of its own, and every message is stored. So does a layer that has to be called, because it has a hook, or
because another module took its place (LoRA): the fast form reads its weights.
"""

import os

import torch
from torch import Tensor, nn

from ..files import ConfigError
from ..protein.geometry import length
from . import fast
from .encoding import Encoding
from .ops import MLP, Links, segment_sum

FORMS = ("plain", "fast")
form = os.environ.get("SIAMDIFF_FORMULAS", "fast")


def is_fast(*layers: nn.Module) -> bool:
    """Whether these layers take the fast form. Raises ConfigError for a form that does not exist."""
    if form not in FORMS:
        raise ConfigError(f"SIAMDIFF_FORMULAS is {form!r}; there are {' and '.join(FORMS)}")
    return form == "fast" and not any(has_to_be_called(layer) for layer in layers)


def has_to_be_called(layer: nn.Module) -> bool:
    """Whether it does more than nn.Linear and MLP do."""
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    forward = getattr(layer.forward, "__func__", None)  # of its class, or put in its place on this layer alone
    return any(hooks) or forward not in (nn.Linear.forward, MLP.forward)


def edge_scores(noisy: list, crossed: list[Encoding], dist_mlp: MLP, struct_mlp: MLP) -> list[Tensor]:
    """m_ij = MLP(cat(a_i * a_j, MLP(|r_i - r_j|))) of every edge (Eq. 5; products as in differences.md, row 7).

    Edges and coordinates r are those of a noisy view (`Noisy` of siamdiff.py), a are the atoms of its `crossed`
    encoding, which is the other view's. Returns the scores (E,) of each noisy view.
    """
    # The fast form knows heads of three layers, and has no gradient of lengths.
    usual = [len(getattr(head, "layers", ())) for head in (dist_mlp, struct_mlp)] == [3, 3]
    moving = any(view.protein.pos.requires_grad for view in noisy)
    if usual and not moving and is_fast(dist_mlp, *dist_mlp.layers, struct_mlp, *struct_mlp.layers):
        return fast.edge_scores(noisy, crossed, dist_mlp, struct_mlp)

    scores = []
    for view, encoding in zip(noisy, crossed):
        i = view.graph.src
        j = view.graph.dst
        pos = view.protein.pos
        a = encoding.node
        edge = pos.index_select(0, i) - pos.index_select(0, j)
        distance = dist_mlp(length(edge)[:, None])  # (E, d)
        product = a.index_select(0, i) * a.index_select(0, j)
        m = struct_mlp(torch.cat([product, distance], dim=-1))  # (E, 1)
        scores.append(m.squeeze(-1).to(pos.dtype))
    return scores


def aggregate(x: Tensor, links: Links, linear: nn.Linear) -> Tensor:
    """sum_r W_r sum_{j in N_r(i)} x_j + b of every target i: GearNet (App. D), all W_r side by side in `linear`.

    x (num_sources, in) -> (num_targets, out).
    """
    if is_fast(linear):
        return fast.aggregate(x, links, linear)
    slot = links.target * links.num_relations + links.relation
    sums = segment_sum(x.index_select(0, links.source), slot, links.num_targets * links.num_relations)
    return linear(sums.view(links.num_targets, links.num_relations * x.shape[1]))
