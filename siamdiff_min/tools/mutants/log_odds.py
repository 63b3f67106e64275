"""What an encoder expects at each position: its features, and the log-odds of its head for residue types (Eq. 7).

Each position is masked on its own, and read there alone. So of a GearNet only that is computed which the masked residue
depends on: after layer l of L, the nodes that are at most L - l edges away from it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...encoders import formulas
from ...encoders.encoder import Encoder
from ...encoders.gearnet import GearNet, RelationalConv, from_edges, line_links
from ...encoders.graph import Graph, edge_lengths
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
    if type(encoder) is not GearNet or not encoder.num_angle_bins:
        return encoder(protein, graph).residue[residue]

    # How many edges lead from each node to the residue.
    last = len(encoder.layers) - 1
    is_own = protein.atom_residue == residue
    own = int(is_own.sum())
    hops = torch.where(is_own, 0, last + 1)
    for hop in range(last):
        near = graph.src[hops[graph.dst] == hop]
        hops[near] = hops[near].clamp(max=hop + 1)

    # The nearest nodes first, and edges by the node where they end: every layer takes the first ones.
    order = hops.argsort(stable=True)
    place = order.argsort()
    edges = place[graph.dst].argsort(stable=True)
    graph = replace(
        graph,
        src=place[graph.src[edges]],
        dst=place[graph.dst[edges]],
        relation=graph.relation[edges],
        edge_feature=graph.edge_feature[edges],
        node_feature=graph.node_feature[order],
        is_sorted=True,
    )
    pos = protein.pos[order]

    # The layers, as in GearNet.forward.
    to_nodes = from_edges(graph)
    between_edges = line_links(graph, pos, encoder.num_angle_bins)
    x = graph.node_feature
    edge = torch.cat([graph.edge_feature, edge_lengths(graph, pos)[:, None]], dim=-1)
    hidden = []
    for layer, (conv, edge_conv, norm) in enumerate(zip(encoder.layers, encoder.edge_layers, encoder.batch_norms)):
        nodes = int((hops <= last - layer).sum())
        ends = first(to_nodes, nodes)
        h = updated(conv, x, first(graph.links, nodes))
        if h.shape[1] == x.shape[1]:
            h = h + x[:nodes]
        edge = updated(edge_conv, edge, first(between_edges, len(ends.target)))
        x = norm(h + F.relu(formulas.aggregate(edge, ends, conv.linear)))
        hidden.append(x[:own].mean(0))
    return torch.cat(hidden)


def first(links: Links, targets: int) -> Links:
    """The links that end at the first targets."""
    end = int(torch.searchsorted(links.target, targets))
    part = {name: getattr(links, name)[:end] for name in ("source", "target", "relation")}
    return replace(links, num_targets=targets, **part)


def updated(conv: RelationalConv, x: Tensor, links: Links) -> Tensor:
    """What the layer makes of the first rows, which are the targets of `links` (num_targets, out)."""
    message = formulas.aggregate(x, links, conv.linear)
    return F.relu(conv.batch_norm(message + conv.self_loop(x[: links.num_targets])))
