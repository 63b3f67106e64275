"""The published formulas as they are written, to time a step of the package against.

    with plain(): ...      # in there every objective and encoder computes the plain way

The structure head runs once per directed edge and relation, with all five products; sums over neighbours are products
with sparse matrices; ReLU gives a new tensor. The numbers are the same (tests compare them to 1e-12).
"""

from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from siamdiff_min.encoders.gearnet import RelationalConv
from siamdiff_min.encoders.graph import Graph
from siamdiff_min.encoders.ops import Gather
from siamdiff_min.pretraining.siamdiff import SiamDiff
from siamdiff_min.protein.geometry import length


def edge_scores(self: SiamDiff, a: Tensor, graph: Graph, pos: Tensor, layers: None) -> Tensor:
    """m_ij = MLP(cat(a_i a_j, MLP(d_ij))) of every edge (E,)."""
    distance = length(pos[graph.src] - pos[graph.dst])[:, None]
    product = a[graph.src] * a[graph.dst]
    return self.struct_mlp(torch.cat([product, self.dist_mlp(distance)], dim=-1)).squeeze(-1).to(pos.dtype)


def sparse_sum(self: Gather, x: Tensor) -> Tensor:
    """The sums (targets, d) as a product of a sparse matrix and x (sources, d)."""
    target = torch.arange(len(self.offsets) - 1).repeat_interleave(self.offsets.diff().long())
    index = torch.stack([target, self.source.long()])
    ones = torch.ones(index.shape[1], dtype=x.dtype)
    return torch.sparse.mm(
        torch.sparse_coo_tensor(index, ones, (len(self.offsets) - 1, len(x)), check_invariants=False), x
    )


def linear(self: Gather, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer of the sums."""
    return torch.nn.functional.linear(sparse_sum(self, x).view(-1, weight.shape[1]), weight, bias)


def sum_transforms(self: RelationalConv, x: Tensor, from_relation: Gather) -> Tensor:
    """Neighbours are summed per (edge, angle bin), and the sums of all bins go through one linear layer."""
    row = torch.arange(len(from_relation.offsets) - 1).repeat_interleave(from_relation.offsets.diff().long())
    source, relation = from_relation.source.long() // self.num_relations, from_relation.source % self.num_relations
    index = torch.stack([row * self.num_relations + relation, source])
    shape = ((len(from_relation.offsets) - 1) * self.num_relations, len(x))
    ones = torch.ones(len(row), dtype=x.dtype)
    sums = torch.sparse.mm(torch.sparse_coo_tensor(index, ones, shape, check_invariants=False), x)
    return self.linear(sums.view(-1, self.linear.in_features))


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    return torch.relu(x)


@contextmanager
def plain():
    """Within this context the package computes the plain way, on a CPU."""
    with (
        mock.patch.object(SiamDiff, "distance_layers", lambda self: None),
        mock.patch.object(SiamDiff, "edge_scores", edge_scores),
        mock.patch.object(Gather, "__call__", sparse_sum),
        mock.patch.object(Gather, "linear", linear),
        mock.patch.object(RelationalConv, "sum_transforms", sum_transforms),
        mock.patch("torch.nn.functional.relu", relu),
    ):
        yield
