"""GVP: message passing with geometric vector perceptrons at atom level (App. H).

Jing et al. (2021), "Learning from Protein Structure with Geometric Vector Perceptrons", and (2022), "Equivariant Graph
Neural Networks for 3D Macromolecular Structure", whose vector gates and default sizes the paper takes. A feature is a
pair of scalars (K, c) and vectors (K, 3, c): space comes before the channels, so that a linear layer mixes channels and
leaves directions alone, which is all there is to equivariance. Parameter names are gvp-pytorch's.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..conventions import Conventions
from ..protein.constants import NUM_ELEMENTS, NUM_RESIDUE_CHANNELS
from ..protein.protein import Protein
from .encoder import Encoder
from .encoding import Encoding
from .graph import Graph, GraphBuilder, edge_lengths, edge_vectors
from .ops import Links, segment_mean

Pair = tuple[Tensor, Tensor]  # scalars and vectors
Dims = tuple[int, int]  # numbers of scalar and of vector channels
SHORTEST = 1e-4  # lengths are clamped from below: the gradient of a norm has no value at zero


class GVP(nn.Module):
    """s' = relu(z) with z = W_s [s, |W_h V|] + b, and V' = W_v W_h V scaled by sigmoid(W_g z), its gate.

    Jing et al. (2022). Where `relu` is False s' is z. Without input vectors the output vectors are zero.
    """

    def __init__(self, in_dims: Dims, out_dims: Dims, relu: bool = True):
        super().__init__()
        scalars, vectors = in_dims
        self.out_scalars, self.out_vectors = out_dims
        self.relu = relu
        hidden = max(vectors, self.out_vectors) if vectors else 0
        self.ws = nn.Linear(scalars + hidden, self.out_scalars)
        if vectors:
            self.wh = nn.Linear(vectors, hidden, bias=False)
        if vectors and self.out_vectors:
            self.wv = nn.Linear(hidden, self.out_vectors, bias=False)
            self.wsv = nn.Linear(self.out_scalars, self.out_vectors)

    def forward(self, s: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(K, scalars), (K, 3, vectors) -> the same of the output widths."""
        if v is not None:
            h = self.wh(v)  # (K, 3, hidden)
            norm = h.square().sum(-2).clamp(min=SHORTEST**2).sqrt()
            s = torch.cat([s, norm], dim=-1)
        z = self.ws(s)
        scalars = F.relu(z) if self.relu else z
        if not self.out_vectors:
            return scalars, None
        if v is None:
            return scalars, z.new_zeros(len(z), 3, self.out_vectors)
        gate = torch.sigmoid(self.wsv(z))[:, None]
        return scalars, self.wv(h) * gate


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
    """The mean over j of GVPs of (s_j, e_ji, s_i): messages along the edges j -> i. Jing et al. (2022)."""

    def __init__(self, node_dims: Dims, out_dims: Dims, edge_dims: Dims):
        super().__init__()
        scalars = 2 * node_dims[0] + edge_dims[0]
        vectors = 2 * node_dims[1] + edge_dims[1]
        self.message_func = nn.ModuleList(
            [GVP((scalars, vectors), out_dims), GVP(out_dims, out_dims), GVP(out_dims, out_dims, relu=False)]
        )

    def forward(self, node: Pair, edge: Pair, links: Links) -> Pair:
        """node (N, .), (N, 3, .) and edge (E, .), (E, 3, .) -> (N, .), (N, 3, .); nodes without edges receive zeros."""

        def of_edges(x: Tensor, of_edge: Tensor) -> Tensor:
            source = x.index_select(0, links.source)
            target = x.index_select(0, links.target)
            return torch.cat([source, of_edge, target], dim=-1)

        s, v = (of_edges(*pair) for pair in zip(node, edge))
        for layer in self.message_func:
            s, v = layer(s, v)
        s = segment_mean(s, links.target, links.num_targets)
        v = segment_mean(v, links.target, links.num_targets)
        return s, v


class GVPConvLayer(nn.Module):
    """A convolution and a feed-forward network, each with dropout, short cut and norm. Jing et al. (2022)."""

    def __init__(self, node_dims: Dims, edge_dims: Dims, dropout: float = 0.1):
        super().__init__()
        wide = (4 * node_dims[0], 2 * node_dims[1])
        self.conv = GVPConv(node_dims, node_dims, edge_dims)
        self.ff_func = nn.ModuleList([GVP(node_dims, wide), GVP(wide, node_dims, relu=False)])
        self.norm = nn.ModuleList(TupleNorm(node_dims[0]) for _ in range(2))
        self.dropout = TupleDropout(dropout)

    def forward(self, node: Pair, edge: Pair, links: Links) -> Pair:
        message = self.conv(node, edge, links)
        node = self.norm[0](*add(node, self.dropout(*message)))
        wide = self.ff_func[0](*node)
        change = self.ff_func[1](*wide)
        return self.norm[1](*add(node, self.dropout(*change)))


def add(a: Pair, b: Pair) -> Pair:
    """Scalars to scalars, vectors to vectors."""
    return a[0] + b[0], a[1] + b[1]


def radial_basis(length: Tensor, longest: float, number: int) -> Tensor:
    """exp(-((length - mu) / sigma)^2) (E, number), centres mu in 0 .. longest angstrom, sigma = longest / number."""
    centres = torch.linspace(0, longest, number, dtype=length.dtype, device=length.device)
    scaled = (length[:, None] - centres) * (number / longest)
    return (-scaled.square()).exp()


class GVPGNN(Encoder):
    """GVPs on the atom graph (App. H). A node starts from the embeddings of its element and of its residue type.

    `longest` is the last centre of the radial basis, angstrom. The output is the scalars of the last layer.
    """

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
        self.builder = builder
        self.num_basis = num_basis
        self.longest = longest
        self.layer_dims = [dims[0]]
        self.embedding = nn.Embedding(NUM_ELEMENTS, NUM_ELEMENTS)
        self.residue_embedding = nn.Linear(NUM_RESIDUE_CHANNELS, NUM_ELEMENTS, bias=False)
        self.W_v = nn.ModuleList([TupleNorm(NUM_ELEMENTS), GVP((NUM_ELEMENTS, 0), dims, relu=False)])
        self.W_e = nn.ModuleList([TupleNorm(num_basis), GVP((num_basis, 1), edge_dims, relu=False)])
        self.layers = nn.ModuleList(GVPConvLayer(dims, edge_dims, dropout) for _ in range(num_layers))
        self.W_out = nn.ModuleList([TupleNorm(dims[0]), GVP(dims, (dims[0], 0))])

    def follow(self, conventions: Conventions) -> None:
        """As every encoder; the radial basis is one of the conventions."""
        super().follow(conventions)
        self.longest = conventions.radial_basis

    def forward(self, protein: Protein, graph: Graph | None = None) -> Encoding:
        """Encode a batch. `graph` (default: the builder's) gives edges and one-hots, `protein.pos` the edge vectors."""
        protein, graph = self.with_graph(protein, graph)
        links = graph.links

        # Nodes begin with scalars alone, edges with the basis of their length and their vector.
        element, residue = graph.node_feature.split([NUM_ELEMENTS, NUM_RESIDUE_CHANNELS], dim=-1)
        scalars = element @ self.embedding.weight + self.residue_embedding(residue)  # residue is 0 where masked
        node = (scalars, None)
        vector = edge_vectors(graph, protein.pos)[:, :, None]  # (E, 3, 1), a unit vector after W_e[0]
        edge = (radial_basis(edge_lengths(graph, protein.pos), self.longest, self.num_basis), vector)

        # Norms and widths, convolutions, and the scalars that come out.
        for node_layer, edge_layer in zip(self.W_v, self.W_e):
            node = node_layer(*node)
            edge = edge_layer(*edge)
        for layer in self.layers:
            node = layer(node, edge, links)
        for layer in self.W_out:
            node = layer(*node)
        a = node[0].to(protein.pos.dtype)  # bfloat16 under autocast, in which sums over many atoms go astray
        return Encoding(
            node=a,
            residue=segment_mean(a, protein.atom_residue, protein.num_residues),
            protein=segment_mean(a, protein.atom_protein, protein.num_proteins),
            residue_protein=protein.residue_protein,
        )
