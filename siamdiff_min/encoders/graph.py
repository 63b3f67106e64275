"""Graph construction (App. D): radius, k-nearest-neighbour and sequential edges, the edge features of GearNet, and the
line graph with its angle bins (Zhang et al. 2022, Sec. 3.2-3.3).

A graph does not hold edge lengths or angles. SiamDiff builds it from the clean structure and reads it at noised
coordinates (differences.md, row 5), so lengths and angles are noised too. Objectives that hide coordinates show the
vectors of the edges instead, by `shown_vector` and `shown_length`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..files import ConfigError
from ..protein.constants import NUM_ELEMENTS, NUM_RESIDUE_CHANNELS, NUM_RESIDUE_TYPES
from ..protein.geometry import length
from ..protein.neighbors import nearest_neighbors, radius_neighbors, ranges
from ..protein.protein import Protein
from .ops import Links

MAX_SEQUENCE_DISTANCE = 10  # one-hot classes 0..9 and "10 or more"


@dataclass(frozen=True)
class Graph:
    """Directed edges src -> dst with a relation, sorted by (dst, relation, src). Raises ValueError if they are not."""

    src: Tensor  # (E,) long   where the message comes from
    dst: Tensor  # (E,) long   where it goes
    relation: Tensor  # (E,) long   edge type, 0 .. num_relations - 1
    edge_feature: Tensor  # (E, edge_dim - 1)   one-hots: types of both ends, relation, sequence distance
    node_feature: Tensor  # (N, node_dim)   one-hots of element (atom level) and residue type
    num_relations: int
    shown_length: Tensor | None = None  # (E,) angstrom   in place of the lengths at the coordinates
    shown_vector: Tensor | None = None  # (E, 3)   in place of pos[src] - pos[dst], if the coordinates are hidden
    is_sorted: bool = False  # True from a builder; the edges of other graphs are checked
    prepared: dict | None = None  # made by `once`, for a graph that is encoded again at the same coordinates

    def __post_init__(self):
        if not self.is_sorted:
            key = sort_key(self.src, self.dst, self.relation, self.num_nodes, self.num_relations)
            if (key[1:] < key[:-1]).any():
                raise ValueError("the edges of a graph must be sorted by (dst, relation, src)")

    @property
    def num_nodes(self) -> int:
        return len(self.node_feature)

    @property
    def num_edges(self) -> int:
        return len(self.src)

    def once(self, name: str, make: Callable):
        """What `make()` returns; a graph with `prepared` keeps it under this name."""
        if self.prepared is None:
            return make()
        if name not in self.prepared:
            self.prepared[name] = make()
        return self.prepared[name]

    @property
    def links(self) -> Links:
        """A message along every edge, from node to node."""
        return Links(self.src, self.dst, self.relation, self.num_nodes, self.num_nodes, self.num_relations)

    @property
    def pair(self) -> Tensor:
        """i * N + j (E,) of the two nodes i <= j that an edge joins: the same for all edges between them."""
        return torch.minimum(self.src, self.dst) * self.num_nodes + torch.maximum(self.src, self.dst)

    def select_edges(self, keep: Tensor) -> Graph:
        """Keep the edges where `keep` (E,) is True. Nodes stay, even those that lose every edge."""
        kept = keep.nonzero().squeeze(1)
        names = ["src", "dst", "relation", "edge_feature"]
        names += [name for name in ("shown_vector", "shown_length") if getattr(self, name) is not None]
        return replace(self, prepared=None, **{name: getattr(self, name)[kept] for name in names})


@dataclass(frozen=True)
class GraphBuilder:
    """How a level of detail turns a `Protein` into a `Graph`; `ATOM_GRAPH` and `RESIDUE_GRAPH` are the paper's."""

    radius: float  # d_radius of App. D, angstrom; 0: no such edges
    num_neighbors: int = 0  # k of the kNN edges; 0: none
    max_offset: int = -1  # d_seq - 1: sequential edges of offsets -max_offset .. max_offset, residue level; -1: none
    min_sequence_distance: int = 0  # d_long: the two spatial kinds keep only |i - j| >= this
    with_elements: bool = True  # node features start with the element one-hot
    conventions: Conventions = PAPER

    def __post_init__(self):
        if self.with_elements and self.num_offsets:
            raise ConfigError("max_offset is for the residue level: its edges join residues, not atoms")

    def select_nodes(self, protein: Protein) -> Protein:
        """The nodes of this level: all atoms, or one CA per residue (App. B.3)."""
        return protein if self.with_elements else protein.alpha_carbons()

    @property
    def level(self) -> str:
        return "atom" if self.with_elements else "residue"

    @property
    def num_offsets(self) -> int:
        return max(0, 2 * self.max_offset + 1)

    @property
    def num_relations(self) -> int:
        """Sequential offsets, then radius, then kNN."""
        return self.num_offsets + bool(self.radius) + bool(self.num_neighbors)

    @property
    def node_dim(self) -> int:
        return NUM_RESIDUE_CHANNELS + NUM_ELEMENTS * self.with_elements

    @property
    def edge_dim(self) -> int:
        """Width of the edge input: the one-hots and the length."""
        return 2 * NUM_RESIDUE_TYPES + self.num_relations + MAX_SEQUENCE_DISTANCE + 1 + 1

    def __call__(self, protein: Protein, show_types: bool = True) -> Graph:
        """The graph of a batch; no edge joins two proteins. `show_types` is that of `node_feature`."""
        # Edges (src, dst, relation) of each kind, in the order of their relations.
        pos = protein.pos
        edges = []
        if self.num_offsets:
            edges.append(self.sequential_edges(protein))
        if self.radius:
            src, dst = radius_neighbors(pos, protein.atom_protein, self.radius, self.conventions.max_neighbors)
            edges.append((src, dst, torch.full_like(src, self.num_offsets)))
        if self.num_neighbors:
            src, dst = nearest_neighbors(pos, protein.atom_protein, protein.num_proteins, self.num_neighbors)
            edges.append((src, dst, torch.full_like(src, self.num_relations - 1)))
        src, dst, relation = (torch.cat(x) for x in zip(*edges))

        # Of the spatial kinds, those that join residues far apart in the sequence are kept.
        src_residue = protein.atom_residue.index_select(0, src)
        dst_residue = protein.atom_residue.index_select(0, dst)
        distance = self.offset(protein, src_residue, dst_residue).abs()  # |i - j|
        far = distance >= self.min_sequence_distance
        kept = (far | (relation < self.num_offsets)).nonzero().squeeze(1)

        # Sort them as a graph has them.
        key = sort_key(src, dst, relation, protein.num_atoms, self.num_relations)
        order = kept[key[kept].argsort()]
        src, dst, relation, distance = (x.index_select(0, order) for x in (src, dst, relation, distance))
        edge_feature = self.edge_feature(protein, src, dst, relation, distance)
        node_feature = self.node_feature(protein, show_types)
        return Graph(src, dst, relation, edge_feature, node_feature, self.num_relations, is_sorted=True)

    def sequential_edges(self, protein: Protein) -> tuple[Tensor, Tensor, Tensor]:
        """Residues of one chain at offset -max_offset .. max_offset, one relation each, offset 0 being the self edge.

        Only for the residue level, where node i is residue i.
        """
        row = torch.arange(protein.num_residues, device=protein.pos.device)
        shift = torch.arange(-self.max_offset, self.max_offset + 1, device=row.device)
        src = row.repeat(len(shift))
        end = (row + shift[:, None]).flatten()  # the first and last residues lead out of the batch
        dst = end.clamp(0, len(row) - 1)
        offset = self.offset(protein, src, dst)
        near = (dst == end) & (offset.abs() <= self.max_offset)
        kept = (near & same_chain(protein, src, dst)).nonzero().squeeze(1)
        return src[kept], dst[kept], offset[kept] + self.max_offset

    def offset(self, protein: Protein, i: Tensor, j: Tensor) -> Tensor:
        """Signed distance along the chain from residue i to j. Other chains are far (differences.md, row 16)."""
        if self.conventions.rows_as_distance:
            return j - i
        offset = protein.residue_index[j] - protein.residue_index[i]
        return offset.masked_fill(~same_chain(protein, i, j), MAX_SEQUENCE_DISTANCE)

    def node_feature(self, protein: Protein, show_types: bool = True) -> Tensor:
        """One-hot element (atom level) and residue type, the latter all zeros where masked: (N, node_dim).

        Without `show_types` atoms show no type at all; the residue level always shows them (differences.md, row 10).
        """
        shown = ~protein.masked & (show_types or not self.with_elements)
        residue = one_hot(protein.residue_type, NUM_RESIDUE_CHANNELS, protein.pos.dtype) * shown[:, None]
        if not self.with_elements:
            return residue[protein.atom_residue]
        element = one_hot(protein.element, NUM_ELEMENTS, protein.pos.dtype)
        return torch.cat([element, residue[protein.atom_residue]], dim=-1)

    def edge_feature(self, protein: Protein, src: Tensor, dst: Tensor, relation: Tensor, distance: Tensor) -> Tensor:
        """One-hots of the residue types of both ends, the relation, and the distance in sequence: (E, edge_dim - 1).

        A masked residue has zeros, or the bits of glycine (differences.md, row 8), whatever its type.
        """
        dtype = protein.pos.dtype
        shown_type = protein.residue_type.masked_fill(protein.masked, 0)
        residue = one_hot(shown_type, NUM_RESIDUE_TYPES, dtype)  # (R, 20)
        if not self.conventions.mask_is_glycine:
            residue = residue * ~protein.masked[:, None]
        src_residue = protein.atom_residue.index_select(0, src)
        dst_residue = protein.atom_residue.index_select(0, dst)
        features = [
            residue.index_select(0, src_residue),
            residue.index_select(0, dst_residue),
            one_hot(relation, self.num_relations, dtype),
            one_hot(distance.clamp(max=MAX_SEQUENCE_DISTANCE), MAX_SEQUENCE_DISTANCE + 1, dtype),
        ]
        return torch.cat(features, dim=-1)


ATOM_GRAPH = GraphBuilder(radius=4.5)
RESIDUE_GRAPH = GraphBuilder(radius=10.0, num_neighbors=10, max_offset=2, min_sequence_distance=5, with_elements=False)


def sort_key(src: Tensor, dst: Tensor, relation: Tensor, num_nodes: int, num_relations: int) -> Tensor:
    """One number per edge (E,), which ascends in the order of a graph: by (dst, relation, src)."""
    return (dst * num_relations + relation) * num_nodes + src


def one_hot(index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Rows of the identity matrix (K, size) in a floating type."""
    return F.one_hot(index, size).to(dtype)


def same_chain(protein: Protein, i: Tensor, j: Tensor) -> Tensor:
    """True if the residues i and j belong to one chain of one protein."""
    same_protein = protein.residue_protein[i] == protein.residue_protein[j]
    return same_protein & (protein.chain[i] == protein.chain[j])


def edge_vectors(graph: Graph, pos: Tensor) -> Tensor:
    """pos[src] - pos[dst] (E, 3) at the coordinates pos (N, 3), angstrom, unless the graph has vectors of its own."""
    if graph.shown_vector is not None:
        return graph.shown_vector
    return pos.index_select(0, graph.src) - pos.index_select(0, graph.dst)


def edge_lengths(graph: Graph, pos: Tensor) -> Tensor:
    """Lengths (E,) of the edges, angstrom, unless the graph has lengths of its own."""
    return length(edge_vectors(graph, pos)) if graph.shown_length is None else graph.shown_length


def line_graph(graph: Graph, pos: Tensor, num_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of edges k -> j, j -> i as edge ids, and the bin of the angle between them: edge_in, edge_out, bin (L,).

    Sorted by edge_out. k may be i: the way back, at angle 0 (differences.md, row 35). Bin b holds the angles k-j-i in
    [b, b + 1) pi / num_bins.
    """
    # The edges that end where edge_out begins are one range each, as edges are sorted by dst.
    node = torch.arange(graph.num_nodes + 1, device=graph.dst.device)
    start = torch.searchsorted(graph.dst.contiguous(), node)
    edge_out, edge_in = ranges(start[graph.src], start[graph.src + 1])

    # The cosine, one coordinate at a time: a sum over rows of three numbers takes more than twice as long.
    direction = F.normalize(edge_vectors(graph, pos), dim=-1, eps=1e-12)
    x, y, z = (part.index_select(0, edge_in) * part.index_select(0, edge_out) for part in direction.unbind(-1))
    cosine = -(x + y + z)
    no_length = (direction == 0).all(-1)  # a self edge has no direction: angle 0
    without_angle = no_length.index_select(0, edge_in) | no_length.index_select(0, edge_out)
    cosine = cosine.masked_fill(without_angle, 1.0)

    # Its bin: a comparison with every bound takes half as long as `bucketize`.
    angle_bin = torch.zeros_like(cosine, dtype=torch.uint8)
    for bound in range(1, num_bins):
        angle_bin += cosine <= math.cos(bound * math.pi / num_bins)
    return edge_in, edge_out, angle_bin.long()
