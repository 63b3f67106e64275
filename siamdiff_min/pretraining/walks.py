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
    src = graph.src
    dst = graph.dst
    if not graph.num_edges:
        return src.new_zeros(0, edges)

    # Edges in the order of their first nodes: those of node i are first[i] .. first[i + 1] - 1.
    order = src.argsort(stable=True)
    node = torch.arange(graph.num_nodes + 1, device=src.device)
    first = torch.searchsorted(src[order], node)

    # How many walks of 1, 2, ... steps begin with each edge, as running sums. float64 holds all below 2^53.
    leads_on = (src != dst).long()  # self edges lead nowhere
    totals = []
    count = torch.ones(graph.num_nodes, dtype=torch.long, device=src.device)  # of walks from each node
    for _ in range(edges):
        walks_of_edge = leads_on * count[dst]
        totals.append(walks_of_edge[order].cumsum(0).double())
        count = segment_sum(walks_of_edge, src, graph.num_nodes)

    # The first edge may be any of the protein; nodes are sorted by protein.
    protein = torch.arange(int(node_protein[-1]) + 1, device=src.device)
    low = first[torch.searchsorted(node_protein, protein)].repeat_interleave(num)
    high = first[torch.searchsorted(node_protein, protein, right=True)].repeat_interleave(num)
    wanted = protein.repeat_interleave(num)

    # Draw it, then the next among the edges of the node where it ends.
    steps = []
    for total in reversed(totals):
        cumulative = torch.cat([total.new_zeros(1), total])
        u = torch.rand(len(low), generator=generator, device=src.device, dtype=torch.float64)
        drawn = cumulative[low] + u * (cumulative[high] - cumulative[low])
        position = torch.searchsorted(total, drawn, right=True).clamp(max=len(total) - 1)
        edge = order[position]
        steps.append(edge)
        low = first[dst[edge]]
        high = first[dst[edge] + 1]
    walks = torch.stack(steps, dim=1)  # (M, edges)

    # Keep what is a walk: an empty protein finds one of another, a dead end breaks it, and no node comes twice.
    nodes = walk_nodes(graph, walks)
    own = node_protein[nodes[:, 0]] == wanted
    connected = (src[walks[:, 1:]] == dst[walks[:, :-1]]).all(1) & (leads_on[walks] > 0).all(1)
    ordered = nodes.sort(1).values
    distinct = (ordered[:, 1:] != ordered[:, :-1]).all(1)
    return walks[own & connected & distinct]


def walk_nodes(graph: Graph, walk: Tensor) -> Tensor:
    """The nodes (M, edges + 1) of walks given by their edges (M, edges)."""
    return torch.cat([graph.src[walk[:, :1]], graph.dst[walk]], dim=1)
