"""The formulas that cost most, as published. `fast.py` computes the same numbers faster; `kernels.py` chooses.

Here every edge has a row of its own and every message is stored.
"""

import torch
from torch import Tensor, nn

from ..protein.geometry import length
from .ops import MLP, Links, segment_sum


def edge_scores(views: list[tuple], dist_mlp: MLP, struct_mlp: MLP) -> list[Tensor]:
    """m_ij = MLP(cat(a_i * a_j, MLP(|r_i - r_j|))) of every edge: Eq. 5 (differences.md, row 7).

    A view is (representations a (N, d), graph, coordinates r (N, 3)). Returns the scores (E,) of each view.
    """
    scores = []
    for a, graph, pos in views:
        i, j = graph.src, graph.dst
        distance = dist_mlp(length(pos[i] - pos[j])[:, None])  # (E, d)
        scores.append(struct_mlp(torch.cat([a[i] * a[j], distance], dim=-1)).squeeze(-1).to(pos.dtype))
    return scores


def relational_sum(x: Tensor, links: Links, linear: nn.Linear) -> Tensor:
    """sum_r W_r sum_{j in N_r(i)} x_j + b of every target i: GearNet (App. D), all W_r side by side in `linear`.

    x (num_sources, in) -> (num_targets, out).
    """
    slot = links.target * links.num_relations + links.relation
    sums = segment_sum(x[links.source], slot, links.num_targets * links.num_relations)
    return linear(sums.view(links.num_targets, linear.in_features))
