"""ESM-2, a language model of protein sequences, and ESM-GearNet, which reads its representations (Sec. 5.4, Table 4).

Lin et al. (2023), "Evolutionary-scale prediction of atomic-level protein structure with a language model"; Zhang et al.
(2023), "Enhancing protein language models with structure-based encoder and pre-training". Parameter names follow
fair-esm, whose weight files load. Sequences of a batch lie one after the other without padding: **T** tokens of **W**
sequences.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..protein.constants import ONE_LETTER
from ..protein.protein import Protein
from .encoder import Encoder
from .encoding import Encoding
from .gearnet import GearNet
from .graph import Graph, GraphBuilder
from .ops import segment_mean, segment_sum

VOCABULARY = ("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>")
CLS, EOS, MASK = (VOCABULARY.index(name) for name in ("<cls>", "<eos>", "<mask>"))
RESIDUE_TOKEN = tuple(VOCABULARY.index(letter) for letter in ONE_LETTER)  # in the order of RESIDUES
MAX_RESIDUES = 1022  # ESM-2 was trained on 1,024 tokens at most, <cls> and <eos> included
TRAINED_MASK_RATE = 0.15 * 0.8  # share of <mask> in training: 15 % of the tokens were chosen, 80 % of those hidden
ESM_SIZES = {  # published models -> layers, width, attention heads
    "8M": (6, 320, 20),
    "35M": (12, 480, 20),
    "150M": (30, 640, 20),
    "650M": (33, 1280, 20),
    "3B": (36, 2560, 40),
    "15B": (48, 5120, 40),
}
ESM_LR_FACTOR = 0.1  # learning rate of ESM-2, relative to all other parameters
RANDOM_ESM = "the ESM-2 part has random weights; give it a fair-esm file, as in the paper"


@dataclass(frozen=True)
class Tokens:
    """Sequences of a batch, shortest first, each between <cls> and <eos>."""

    token: Tensor  # (T,) long   index into VOCABULARY
    position: Tensor  # (T,) long   in the sequence, <cls> being 0
    scale: Tensor  # (T, 1)  factor of the embeddings, see `tokenise`
    of_residue: Tensor  # (R,) long   the token of every residue
    groups: list[tuple[int, int]]  # (number of sequences, their number of tokens) for every length that occurs


def tokenise(protein: Protein, dtype: torch.dtype = torch.float32) -> Tokens:
    """Every chain is a sequence of its own; masked residues are <mask>.

    A chain of more than 1,022 residues is cut into consecutive windows of equal size (to one residue), as few as
    possible. Positions count by `residue_index`: residues that a selection left out leave a gap, residues that are
    missing from the structure do not. In training the embeddings of <mask> were set to zero, a share of 0.12. So that
    their sum stays as large, the others are scaled by (1 - 0.12) / (1 - share of <mask> in the sequence).
    """
    # The chain, window and sequence of every residue (R,), and the number of residues of every sequence (W,).
    chains = torch.stack([protein.residue_protein, protein.chain])
    _, chain, size = chains.unique_consecutive(dim=1, return_inverse=True, return_counts=True)
    row = torch.arange(protein.num_residues, device=chain.device)
    number = (size + MAX_RESIDUES - 1) // MAX_RESIDUES  # windows per chain
    in_chain = row - (size.cumsum(0) - size)[chain]
    window = in_chain * number[chain] // size[chain]
    windows = torch.stack([chain, window])
    _, sequence, length = windows.unique_consecutive(dim=1, return_inverse=True, return_counts=True)

    # Where every sequence begins and ends among the tokens, shortest first (W,), and which token is a residue's (R,).
    shortest_first = length.argsort(stable=True)
    tokens = length[shortest_first] + 2
    start = torch.empty_like(length).index_copy(0, shortest_first, tokens.cumsum(0) - tokens)
    end = start + length + 1
    first = length.cumsum(0) - length  # residue
    last = first + length - 1
    of_residue = start[sequence] + 1 + row - first[sequence]

    # The tokens: residue types between <cls> and <eos>. All are <eos> to begin with.
    types = _residue_token(row.device)[protein.residue_type].masked_fill(protein.masked, MASK)
    token = row.new_full((len(row) + 2 * len(length),), EOS)
    token = token.index_copy(0, start, torch.full_like(start, CLS)).index_copy(0, of_residue, types)

    # Their positions: <cls> is 0, the first residue 1, and <eos> follows the last.
    of_first = protein.residue_index[first]
    place = protein.residue_index - of_first[sequence] + 1
    position = torch.zeros_like(token).index_copy(0, of_residue, place).index_copy(0, end, place[last] + 1)

    # Their scale, by the share of <mask> in every sequence (W,).
    share = segment_sum(protein.masked.to(dtype), sequence, len(length)) / (length + 2)
    scale = ((1 - TRAINED_MASK_RATE) / (1 - share))[shortest_first]
    scale = scale.repeat_interleave(tokens, output_size=len(token))
    lengths, counts = tokens.unique_consecutive(return_counts=True)
    groups = list(zip(counts.tolist(), lengths.tolist()))
    return Tokens(token, position, scale[:, None], of_residue, groups)


@cache
def _residue_token(device: torch.device) -> Tensor:
    return torch.tensor(RESIDUE_TOKEN, device=device)  # once: the copy to a GPU waits


def rotary_angles(position: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine (T, 1, width) of position / 10000^(2 i / width), i < width / 2 twice over (Su et al. 2021)."""
    even = torch.arange(0, width, 2, dtype=dtype, device=position.device)
    frequency = 1 / 10000 ** (even / width)
    angle = (position[:, None] * frequency).repeat(1, 2)[:, None]
    return angle.cos(), angle.sin()


class Attention(nn.Module):
    """Softmax attention within every sequence, with rotary positions."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], groups: list[tuple[int, int]]) -> Tensor:
        """(T, width) -> (T, width)."""
        # Queries, keys and values of every head: (T, heads, width / heads).
        by_head = (self.heads, -1)
        q = self.q_proj(x).unflatten(-1, by_head)
        k = self.k_proj(x).unflatten(-1, by_head)
        v = self.v_proj(x).unflatten(-1, by_head)
        q = rotate(q, *rotation).to(v.dtype)
        k = rotate(k, *rotation).to(v.dtype)

        # Sequences of one length at a time, so that none is padded.
        sizes = [number * length for number, length in groups]
        parts = zip(q.split(sizes), k.split(sizes), v.split(sizes))
        results = []
        for (number, _), triple in zip(groups, parts):
            batch = [y.unflatten(0, (number, -1)).transpose(1, 2) for y in triple]  # (number, heads, length, .)
            result = F.scaled_dot_product_attention(*batch)
            results.append(result.transpose(1, 2).flatten(0, 1))
        return self.out_proj(torch.cat(results).flatten(1))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + width / 2}) of x (T, heads, width) by their angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


class Block(nn.Module):
    """Attention and feed-forward network, each after a layer norm and with a short cut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.final_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], groups: list[tuple[int, int]]) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), rotation, groups)
        hidden = F.gelu(self.fc1(self.final_layer_norm(x)))
        return x + self.fc2(hidden)


class ESM2(nn.Module):
    """ESM-2 without dropout, as it was trained, and without its heads."""

    def __init__(self, num_layers: int, width: int, heads: int):
        super().__init__()
        self.width = width
        self.heads = heads
        self.embed_tokens = nn.Embedding(len(VOCABULARY), width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(num_layers))
        self.emb_layer_norm_after = nn.LayerNorm(width)

    def forward(self, protein: Protein) -> Tensor:
        """Representations of all residues (R, width)."""
        tokens = tokenise(protein, self.embed_tokens.weight.dtype)
        return self.encode(tokens).index_select(0, tokens.of_residue)

    def encode(self, tokens: Tokens) -> Tensor:
        """Representations of all tokens (T, width): the last layer, after its norm."""
        hidden = (tokens.token == MASK)[:, None]
        x = self.embed_tokens(tokens.token).masked_fill(hidden, 0) * tokens.scale
        rotation = rotary_angles(tokens.position, self.width // self.heads, x.dtype)
        for layer in self.layers:
            x = layer(x, rotation, tokens.groups)
        return self.emb_layer_norm_after(x)


class ESMGearNet(Encoder):
    """GearNet on ESM's representations; gives both. `num_angle_bins` are ours (differences.md, row 33)."""

    has_esm = True

    def __init__(self, builder: GraphBuilder, dims: list[int], esm: ESM2, num_angle_bins: int = 0):
        super().__init__()
        self.builder = builder
        self.esm = esm
        self.gearnet = GearNet(builder, dims, num_angle_bins, readout="sum", node_dim=esm.width)
        self.layer_dims = [esm.width, *self.gearnet.layer_dims]

    def lr_factors(self) -> dict[str, float]:
        """A tenth of the run's learning rate for ESM."""
        return {f"esm.{name}": ESM_LR_FACTOR for name, _ in self.esm.named_parameters()}

    def forward(self, protein: Protein, graph: Graph | None = None) -> Encoding:
        """Encode a batch; `graph` gives edges alone. The vector of a protein is ESM's mean beside GearNet's sum."""
        protein, graph = self.with_graph(protein, graph)
        h = self.esm(protein)  # (R, width)
        of_node = h.index_select(0, protein.atom_residue)
        structure = self.gearnet(protein, replace(graph, node_feature=of_node))
        mean = segment_mean(h, protein.residue_protein, protein.num_proteins)
        return Encoding(
            node=torch.cat([h.index_select(0, protein.atom_residue), structure.node], dim=-1),
            residue=torch.cat([h, structure.residue], dim=-1),
            protein=torch.cat([mean, structure.protein], dim=-1),
            residue_protein=protein.residue_protein,
        )
