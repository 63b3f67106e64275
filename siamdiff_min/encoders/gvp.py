"""GVP: message passing with geometric vector perceptrons at atom level (App. H).

Jing et al. (2021), "Learning from Protein Structure with Geometric Vector Perceptrons", and (2022), "Equivariant Graph
Neural Networks for 3D Macromolecular Structure", whose vector gates and default sizes the paper takes. A feature is a
pair of scalars (K, c) and vectors (K, 3, c): space comes before the channels, so that a linear layer mixes channels and
leaves directions alone, which is all there is to equivariance. Parameter names are gvp-pytorch's.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..protein.constants import NUM_ELEMENTS, NUM_RESIDUE_CHANNELS
from ..protein.protein import Protein
from .gearnet import Encoding
from .graph import Graph, GraphBuilder, edge_lengths
from .ops import Gather, segment_mean

Pair = tuple[Tensor, Tensor]  # scalars and vectors
Dims = tuple[int, int]  # numbers of scalar and of vector channels
SHORTEST = 1e-4  # lengths are clamped from below: the gradient of a norm has no value at zero


def norms(v: Tensor) -> Tensor:
    """Lengths (K, c) of vectors (K, 3, c)."""
    return v.square().sum(-2).clamp(min=SHORTEST**2).sqrt()


class GVP(nn.Module):
    """s' = relu(z) with z = W_s [s, |W_h V|] + b, and V' = W_v W_h V scaled by sigmoid(W_g z), its gate.

    Jing et al. (2022). Where `relu` is False s' is z. Without input vectors the output vectors are zero.
    """

    def __init__(self, in_dims: Dims, out_dims: Dims, relu: bool = True):
        super().__init__()
        (scalars, vectors), (self.out_scalars, self.out_vectors) = in_dims, out_dims
        self.relu = relu
        hidden = max(vectors, self.out_vectors) if vectors else 0
        self.ws = nn.Linear(scalars + hidden, self.out_scalars)
        if vectors:
            self.wh = nn.Linear(vectors, hidden, bias=False)
            if self.out_vectors:
                self.wv = nn.Linear(hidden, self.out_vectors, bias=False)
                self.wsv = nn.Linear(self.out_scalars, self.out_vectors)

    def forward(self, s: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(K, scalars), (K, 3, vectors) -> the same of the output widths."""
        if v is None:
            return self.activate(self.ws(s), None)
        h = self.wh(v)  # (K, 3, hidden)
        return self.activate(self.ws(torch.cat([s, norms(h)], dim=-1)), h)

    def activate(self, s: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What follows the two linear maps: W_s [s, |h|] + b (K, out_scalars) and h = W_h V (K, 3, hidden)."""
        v = None
        if self.out_vectors and h is None:
            v = s.new_zeros(len(s), 3, self.out_vectors)
        elif self.out_vectors:
            v = self.wv(h) * torch.sigmoid(self.wsv(s))[:, None]
        return (F.relu(s) if self.relu else s), v


class TupleNorm(nn.Module):
    """Layer norm of the scalars; vectors are divided by the root mean square of their lengths."""

    def __init__(self, scalars: int):
        super().__init__()
        self.scalar_norm = nn.LayerNorm(scalars)

    def forward(self, s: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if v is not None:
            square = v.square().sum(-2, keepdim=True).clamp(min=SHORTEST**2)  # (K, 1, c)
            v = v * square.mean(-1, keepdim=True).rsqrt()
        return self.scalar_norm(s), v


class TupleDropout(nn.Module):
    """Drops single scalars, and whole vectors: dropping components would depend on the axes."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, s: Tensor, v: Tensor) -> Pair:
        channels = F.dropout(v.new_ones(len(v), 1, v.shape[-1]), self.rate, self.training)
        return F.dropout(s, self.rate, self.training), v * channels


class GVPConv(nn.Module):
    """The mean over j of GVPs of (s_j, e_ji, s_i): messages along the edges j -> i. Jing et al. (2022).

    Only products that need an edge of their own are computed per edge: there are 15 times more of them than atoms.
    """

    def __init__(self, node_dims: Dims, out_dims: Dims, edge_dims: Dims):
        super().__init__()
        self.node_dims, self.edge_dims = node_dims, edge_dims
        width = tuple(2 * n + e for n, e in zip(node_dims, edge_dims))
        self.message_func = nn.ModuleList(
            [GVP(width, out_dims), GVP(out_dims, out_dims), GVP(out_dims, out_dims, relu=False)]
        )

    def forward(self, node: Pair, edge: Pair, from_ends: Gather, to_target: Gather) -> Pair:
        """node (N, .), (N, 3, .) and edge (E, .), (E, 3, .) -> (N, .), (N, 3, .); nodes without edges receive zeros.

        from_ends sums the rows 0 .. N - 1 of sources and N .. 2 N - 1 of targets per edge, to_target edges per node.
        """
        s, v = self.message_func[1](*self.first(node, edge, from_ends))
        # The last scalars are linear: W_s follows the mean, and meets W_g for the gate, which is needed per edge.
        last = self.message_func[2]
        h = last.wh(v)  # (E, 3, vectors)
        x = torch.cat([s, norms(h)], dim=-1)  # (E, scalars + vectors)
        gate = F.linear(x, last.wsv.weight @ last.ws.weight, last.wsv(last.ws.bias)).sigmoid()
        message = torch.cat([x, (last.wv(h) * gate[:, None]).flatten(1)], dim=-1)
        count = to_target.offsets.diff()[:, None]  # (N, 1)
        x, v = (to_target(message) / count.clamp(min=1)).tensor_split([x.shape[-1]], dim=-1)
        return last.ws(x) * (count > 0), v.unflatten(-1, (3, -1))

    def first(self, node: Pair, edge: Pair, from_ends: Gather) -> Pair:
        """The first GVP of every edge, whose two products are sums over source, edge and target: (E, .), (E, 3, .)."""
        gvp, (scalars, vectors), (edge_scalars, edge_vectors) = self.message_func[0], self.node_dims, self.edge_dims
        hidden = gvp.wh.out_features
        s_source, s_edge, s_target, s_norm = gvp.ws.weight.split([scalars, edge_scalars, scalars, hidden], dim=1)
        h_source, h_edge, h_target = gvp.wh.weight.split([vectors, edge_vectors, vectors], dim=1)
        parts = [
            torch.cat([F.linear(node[0], s_part), F.linear(node[1], h_part).flatten(1)], dim=-1)
            for s_part, h_part in ((s_source, h_source), (s_target, h_target))
        ]
        s, h = from_ends(torch.cat(parts)).split([gvp.out_scalars, 3 * hidden], dim=-1)  # (E, ...)
        h = h.unflatten(-1, (3, -1)) + F.linear(edge[1], h_edge)
        own = torch.cat([edge[0], norms(h)], dim=-1)
        s = s + F.linear(own, torch.cat([s_edge, s_norm], dim=1), gvp.ws.bias)
        return gvp.activate(s, h)


class GVPConvLayer(nn.Module):
    """A convolution and a feed-forward network, each with dropout, short cut and norm. Jing et al. (2022)."""

    def __init__(self, node_dims: Dims, edge_dims: Dims, dropout: float = 0.1):
        super().__init__()
        wide = (4 * node_dims[0], 2 * node_dims[1])
        self.conv = GVPConv(node_dims, node_dims, edge_dims)
        self.ff_func = nn.ModuleList([GVP(node_dims, wide), GVP(wide, node_dims, relu=False)])
        self.norm = nn.ModuleList(TupleNorm(node_dims[0]) for _ in range(2))
        self.dropout = TupleDropout(dropout)

    def forward(self, node: Pair, edge: Pair, from_ends: Gather, to_target: Gather) -> Pair:
        node = self.norm[0](*add(node, self.dropout(*self.conv(node, edge, from_ends, to_target))))
        wide = self.ff_func[0](*node)
        return self.norm[1](*add(node, self.dropout(*self.ff_func[1](*wide))))


def add(a: Pair, b: Pair) -> Pair:
    """Scalars to scalars, vectors to vectors."""
    return a[0] + b[0], a[1] + b[1]


def radial_basis(length: Tensor, longest: float, number: int) -> Tensor:
    """exp(-((length - mu) / sigma)^2) (E, number), centres mu in 0 .. longest angstrom, sigma = longest / number."""
    centres = torch.linspace(0, longest, number, dtype=length.dtype, device=length.device)
    return (-((length[:, None] - centres) * (number / longest)).square()).exp()


class GVPGNN(nn.Module):
    """GVPs on the atom graph; a node starts from the embeddings of its element and of its residue type (App. H)."""

    def __init__(
        self,
        builder: GraphBuilder,
        dims: Dims = (100, 16),
        num_layers: int = 5,
        edge_dims: Dims = (32, 1),
        num_basis: int = 16,
        longest: float = 4.5,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.builder, self.num_basis, self.longest, self.out_dim = builder, num_basis, longest, dims[0]
        self.layer_dims = [self.out_dim]
        self.embedding = nn.Embedding(NUM_ELEMENTS, NUM_ELEMENTS)
        self.residue_embedding = nn.Linear(NUM_RESIDUE_CHANNELS, NUM_ELEMENTS, bias=False)
        self.W_v = nn.ModuleList([TupleNorm(NUM_ELEMENTS), GVP((NUM_ELEMENTS, 0), dims, relu=False)])
        self.W_e = nn.ModuleList([TupleNorm(num_basis), GVP((num_basis, 1), edge_dims, relu=False)])
        self.layers = nn.ModuleList(GVPConvLayer(dims, edge_dims, dropout) for _ in range(num_layers))
        self.W_out = nn.ModuleList([TupleNorm(dims[0]), GVP(dims, (dims[0], 0))])

    def forward(self, protein: Protein, graph: Graph | None = None) -> Encoding:
        """Encode a batch. `graph` (default: built from the protein) gives edges and one-hots; edge vectors are always
        those of `protein.pos`."""
        if graph is None:
            protein = self.builder.view(protein)
            graph = self.builder(protein)
        n, edge_id = graph.num_nodes, torch.arange(graph.num_edges, device=graph.src.device)
        ends = torch.stack([graph.src, graph.dst + n], dim=1).flatten()  # rows of the parts of sources and targets
        from_ends = Gather.build(ends, edge_id.repeat_interleave(2), 2 * n, graph.num_edges)
        to_target = Gather.build(edge_id, graph.dst, graph.num_edges, n)

        element, residue = graph.node_feature.split([NUM_ELEMENTS, NUM_RESIDUE_CHANNELS], dim=-1)
        node = element @ self.embedding.weight + self.residue_embedding(residue), None  # residue is 0 where masked
        vector = (protein.pos[graph.src] - protein.pos[graph.dst])[:, :, None]  # (E, 3, 1), a unit vector after W_e[0]
        edge = radial_basis(edge_lengths(graph, protein.pos), self.longest, self.num_basis), vector
        for node_layer, edge_layer in zip(self.W_v, self.W_e):
            node, edge = node_layer(*node), edge_layer(*edge)
        for layer in self.layers:
            node = layer(node, edge, from_ends, to_target)
        for layer in self.W_out:
            node = layer(*node)
        node = node[0].to(protein.pos.dtype)  # bfloat16 under autocast, in which sums over many atoms go astray
        return Encoding(
            node=node,
            residue=segment_mean(node, protein.atom_residue, protein.num_residues),
            graph=segment_mean(node, protein.atom_graph, protein.num_graphs),
        )
