"""Random walks of 1, 2 or 3 edges: the atoms whose distance, angle or dihedral is predicted (App. D)."""

import torch
from torch import Tensor

from ..encoders.graph import Graph
from ..encoders.ops import segment_sum


def sample_walks(graph: Graph, node_protein: Tensor, num: int, edges: int, generator: torch.Generator) -> Tensor:
    """Walks of `edges` steps from one node to another, no node twice: edge ids (M, edges).

    `num` per protein are drawn with replacement, all walks of that many steps being equally likely. Those that come
    back to one of their nodes are then left out, so M is a little less than num * B for more than one step.
    node_protein (N,) is the protein of every node.

    A batch of atom graphs has 14 million walks, too many to list. So count the walks that begin with each edge, step by
    step, and draw edge after edge in proportion to these counts.
    """
    n, src, dst = graph.num_nodes, graph.src, graph.dst
    if not graph.num_edges:
        return src.new_zeros(0, edges)
    on = (src != dst).long()  # self edges lead nowhere
    order = src.argsort(stable=True)
    first = torch.searchsorted(src[order], torch.arange(n + 1, device=src.device))  # edges of every node in that order
    ways, count = [], torch.ones(n, dtype=torch.long, device=src.device)
    for _ in range(edges):  # number of walks that begin with an edge; float64 holds all below 2^53
        ways.append((on * count[dst])[order].cumsum(0).double())
        count = segment_sum(on * count[dst], src, n)
    start = torch.searchsorted(node_protein, torch.arange(int(node_protein[-1]) + 2, device=src.device))
    low, high = first[start[:-1]], first[start[1:]]  # edges of every protein, nodes being sorted by protein
    low, high, protein = (x.repeat_interleave(num) for x in (low, high, torch.arange(len(low), device=src.device)))
    walk = []
    for total in reversed(ways):
        cumulative = torch.cat([total.new_zeros(1), total])
        u = torch.rand(len(low), generator=generator, device=src.device, dtype=torch.float64)
        drawn = cumulative[low] + u * (cumulative[high] - cumulative[low])
        position = torch.searchsorted(total, drawn, right=True).clamp(max=len(total) - 1)
        walk.append(order[position])
        low, high = first[dst[walk[-1]]], first[dst[walk[-1]] + 1]
    walks = torch.stack(walk, dim=1)  # (M, edges)
    nodes = walk_nodes(graph, walks)
    own = node_protein[nodes[:, 0]] == protein  # an empty protein finds a walk of another
    connected = (src[walks[:, 1:]] == dst[walks[:, :-1]]).all(1) & (on[walks] > 0).all(1)  # a dead end breaks it
    ordered = nodes.sort(1).values
    return walks[own & connected & (ordered[:, 1:] != ordered[:, :-1]).all(1)]


def walk_nodes(graph: Graph, walk: Tensor) -> Tensor:
    """The nodes (M, edges + 1) of walks given by their edges (M, edges)."""
    return torch.cat([graph.src[walk[:, :1]], graph.dst[walk]], dim=1)
