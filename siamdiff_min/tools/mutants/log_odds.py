"""What an encoder expects at each position: its features, and the log-odds of its head for residue types (Eq. 7).

Each position is masked on its own, and read there alone. So of a GearNet only that is computed which the masked residue
depends on: after layer l, the nodes that are at most L - l edges away from it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...encoders import formulas
from ...encoders.encoder import Encoder
from ...encoders.gearnet import GearNet, RelationalConv
from ...encoders.graph import Graph, edge_lengths, line_graph
from ...encoders.ops import MLP, Links
from ...encoders.weights import load_encoder, load_encoder_file, load_weights
from ...files import ConfigError
from ...machine import cores
from ...pretraining.diffusion import hide_residues
from ...protein.protein import Protein

# Of a masked residue, the encoder sees what is this near, in angstrom. Compared with the whole structure, log-odds of
# 1STN, 1BNI and 2LZM differ by .01 on average, and by .11 at most.
AROUND = {"residue": 35.0, "atom": 20.0}
HEAD = "seq_mlp"


def type_head(name: str, encoder: Encoder) -> MLP:
    """The head of an encoder file that predicts residue types. Raises ConfigError if there is none."""
    state = load_encoder_file(name).get(HEAD)
    if not state:
        how = "siamdiff train with --method siamdiff or diffpret writes one into encoder.pt"
        raise ConfigError(f"{name} has no head for the types of residues, so no log-odds: {how}")
    sizes = [len(tensor) for key, tensor in state.items() if key.endswith("weight")]
    head = MLP(encoder.out_dim, *sizes)
    load_weights(head, state, name)
    return head


@torch.inference_mode()
def log_odds(
    name: str, protein: Protein, residues: Sequence[Sequence[int]], done: Callable[[], object] = list
) -> Tensor:
    """log p(type) - log p(own type) at P positions, each masked on its own: (P, 20).

    `residues` are the rows of each position in the protein: one, or one for each copy of its chain. All copies are
    masked, and the first is read. `done` is called after every position. Threads share the work: one for each core.
    """
    encoder = load_encoder(name, "cpu")
    head = type_head(name, encoder)
    builder = encoder.builder
    ca = protein.alpha_carbons().pos

    @torch.inference_mode()
    def score(copies: Sequence[int]) -> Tensor:
        # Cut out the surroundings. A residue's row there is the number of residues before it that are near.
        first = copies[0]
        near = (ca - ca[first]).norm(dim=-1) < AROUND[builder.level]
        row = near.cumsum(0) - 1
        masked = [copy for copy in copies if near[copy]]
        hidden = hide_residues(protein.select_residues(near), row[masked], builder.conventions.backbone)

        # What the head expects at the masked residue.
        hidden = builder.select_nodes(hidden)
        graph = builder(hidden, not builder.conventions.hide_all_types)
        logs = head(state_of(encoder, hidden, graph, int(row[first]))).log_softmax(-1)
        done()
        return logs - logs[protein.residue_type[first]]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations of several threads wait for each other
    try:
        with ThreadPoolExecutor(min(threads, cores())) as pool:
            return torch.stack([*pool.map(score, residues)])
    finally:
        torch.set_num_threads(threads)


def state_of(encoder: Encoder, protein: Protein, graph: Graph, residue: int) -> Tensor:
    """The representation of one residue (d,), as `encoder(protein, graph).residue[residue]`."""
    if type(encoder) is not GearNet:
        return encoder(protein, graph).residue[residue]

    # After every layer, the nodes that later ones look at.
    own = protein.atom_residue == residue
    needed = [own]
    for _ in encoder.layers[1:]:
        needed.insert(0, needed[0].index_fill(0, graph.src[needed[0][graph.dst]], True))

    # Of each layer on the nodes, edges and pairs of edges that are left, numbered anew. `source`, and `edge_in`, may
    # name rows that are no longer there: only of edges that no later layer looks at.
    x = graph.node_feature
    edge = torch.cat([graph.edge_feature, edge_lengths(graph, protein.pos)[:, None]], dim=-1)
    source, target, relation = graph.src, graph.dst, graph.relation
    edge_in, edge_out, angle_bin = line_graph(graph, protein.pos, encoder.num_angle_bins)
    hidden = []
    before = torch.ones_like(own)
    for layer, needed_now in enumerate(needed):
        keep = needed_now[before]
        ends = keep[target]
        pairs = ends[edge_out].nonzero().squeeze(1)
        nodes, edges = keep.nonzero().squeeze(1), ends.nonzero().squeeze(1)
        number, number_of_edge = keep.cumsum(0) - 1, ends.cumsum(0) - 1
        source, target, relation = source[edges], number[target[edges]], relation[edges]
        edge_in, edge_out, angle_bin = edge_in[pairs], number_of_edge[edge_out[pairs]], angle_bin[pairs]

        conv = encoder.layers[layer]
        between_nodes = Links(source, target, relation, len(x), len(nodes), graph.num_relations)
        h = updated(conv, x, between_nodes, nodes)
        if h.shape[1] == x.shape[1]:
            h = h + x[nodes]

        # Messages between edges, and from every edge to the node where it ends.
        if encoder.num_angle_bins:
            between_edges = Links(edge_in, edge_out, angle_bin, len(edge), len(edges), encoder.num_angle_bins)
            edge = updated(encoder.edge_layers[layer], edge, between_edges, edges)
            to_nodes = replace(between_nodes, source=torch.arange(len(edges)), num_sources=len(edges))
            h = h + F.relu(formulas.aggregate(edge, to_nodes, conv.linear))
        x = encoder.batch_norms[layer](h)
        hidden.append(x[own[needed_now]].mean(0))
        before, source, edge_in = needed_now, number[source], number_of_edge[edge_in]
    return torch.cat(hidden)


def updated(conv: RelationalConv, x: Tensor, links: Links, rows: Tensor) -> Tensor:
    """What the layer makes of some rows (K, out), which are the targets of `links`."""
    return F.relu(conv.batch_norm(formulas.aggregate(x, links, conv.linear) + conv.self_loop(x[rows])))
