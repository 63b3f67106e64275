"""DiffPreT and SiamDiff in one file: read it from top to bottom, and you have read the paper.

    python one_file.py --data FOLDER --size tiny --batch-size 4 --lr 2e-3 --epochs 5  # a laptop
    torchrun --nproc_per_node 4 one_file.py --data FOLDER                             # the paper's setting

FOLDER holds PDB or mmCIF files, plain or gzip. The result, OUT/encoder.pt, is read by `siamdiff_min.load_encoder`.

A comment at the end of a line gives the shape of what the line makes, then its place in the paper. Shape letters:
N atoms, R residues, B proteins, E edges, L pairs of edges, M masked residues, d width of the representations.
"Row 5" is row 5 of docs/differences.md. There the paper's text leaves something open, or the released code differs.

The package `siamdiff_min` computes the same loss, and a test compares the two. It is faster, needs less memory, survives
damaged files and kills, and measures what was learned. This file trusts its input, and keeps all of it in memory.
"""

import argparse
import gzip
import itertools
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from Bio.PDB import MMCIFParser, PDBParser
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

# ---- 1. Proteins: P = (S, R) of Sec. 3.1 -----------------------------------------------------------------------------

RESIDUES = "GLY ALA SER PRO VAL THR CYS ILE LEU ASN ASP GLN LYS GLU MET HIS PHE ARG TYR TRP".split()
MASK = 21  # [MASK], the absorbing state of Eq. 3; types are 0 .. 19, and released encoders keep 20 for "unknown"

ATOMS = (  # the heavy atoms of all residues; the first four are the backbone
    "N CA C O CB CG CG1 CG2 OG OG1 SG CD CD1 CD2 OD1 OD2 ND1 ND2 SD CE CE1 CE2 CE3 NE NE1 NE2 OE1 OE2 "
    "CZ CZ2 CZ3 NZ CH2 NH1 NH2 OH OXT"
).split()
ATOMIC_NUMBER = [{"C": 6, "N": 7, "O": 8, "S": 16}[name[0]] for name in ATOMS]
VDW_RADIUS = [{"C": 1.70, "N": 1.55, "O": 1.52, "S": 1.80}[name[0]] for name in ATOMS]  # angstrom, Bondi (1964)
STEPS_FROM_CA = ["ABGDEZH".find(name[1:2]) for name in ATOMS]  # by the Greek letter: CB 1, CG 2, CD 3, CE 4, CZ 5, CH 6

FAR = 100_000  # from one chain to the next along the sequence: residues of different chains are always far apart


@dataclass
class Protein:
    """One or more proteins, their atoms and residues in a row. A batch is a longer protein."""

    pos: torch.Tensor  # (N, 3)  angstrom
    atom_name: torch.Tensor  # (N,)  index into ATOMS
    atom_residue: torch.Tensor  # (N,)  residue of every atom
    residue_type: torch.Tensor  # (R,)  index into RESIDUES, or MASK
    residue_index: torch.Tensor  # (R,)  place along the sequence
    residue_protein: torch.Tensor  # (R,)  protein of every residue

    @property
    def num_proteins(self):
        return int(self.residue_protein[-1]) + 1

    @property
    def atom_protein(self):
        return self.residue_protein[self.atom_residue]  # (N,)

    def keep_atoms(self, keep):
        atoms = {name: getattr(self, name)[keep] for name in ("pos", "atom_name", "atom_residue")}
        return replace(self, **atoms)


def read_structure(path):
    """All residues of the 20 types, in all chains of the first model."""
    parser = MMCIFParser(QUIET=True) if ".cif" in path.suffixes else PDBParser(QUIET=True)
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        model = parser.get_structure(path.name, file)[0]
    pos, atom_name, atom_residue, residue_type, residue_index = [], [], [], [], []
    for c, chain in enumerate(model):
        residues = [residue for residue in chain if residue.resname in RESIDUES and "CA" in residue]
        for place, residue in enumerate(residues):
            for atom in residue:
                if atom.name in ATOMS:
                    pos.append(atom.coord)
                    atom_name.append(ATOMS.index(atom.name))
                    atom_residue.append(len(residue_type))
            residue_type.append(RESIDUES.index(residue.resname))
            residue_index.append(c * FAR + place)
    indices = map(torch.tensor, (atom_name, atom_residue, residue_type, residue_index, [0] * len(residue_type)))
    return Protein(torch.from_numpy(np.array(pos, dtype=np.float32)), *indices)


def crop(p, start, length):
    """The residues start .. start + length - 1 of one protein."""
    p = p.keep_atoms((p.atom_residue >= start) & (p.atom_residue < start + length))
    residues = {name: getattr(p, name)[start : start + length] for name in vars(p) if name.startswith("residue")}
    return replace(p, atom_residue=p.atom_residue - start, **residues)


def pack(proteins):
    """A batch of several proteins."""
    first = [0, *itertools.accumulate(len(p.residue_type) for p in proteins)]  # row of each protein's first residue
    moved = [
        replace(p, atom_residue=p.atom_residue + row, residue_protein=p.residue_protein + b)
        for b, (p, row) in enumerate(zip(proteins, first))
    ]
    return Protein(*(torch.cat(tensors) for tensors in zip(*(vars(p).values() for p in moved))))


# ---- 2. The second conformer (Sec. 4.1, App. B.3) --------------------------------------------------------------------

# The atoms beyond CB along which a side chain turns: chi 1 is the dihedral angle of N, CA, CB and the first of them,
# chi 2 that of CA, CB and the first two, and so on. Glycine and alanine have none, and proline's ring stays shut (row 17).
CHI_ATOMS = {
    "SER": "OG", "CYS": "SG", "VAL": "CG1", "THR": "OG1", "ILE": "CG1 CD1", "LEU": "CG CD1", "ASN": "CG OD1",
    "ASP": "CG OD1", "HIS": "CG ND1", "PHE": "CG CD1", "TYR": "CG CD1", "TRP": "CG CD1", "MET": "CG SD CE",
    "GLN": "CG CD OE1", "GLU": "CG CD OE1", "LYS": "CG CD CE NZ", "ARG": "CG CD NE CZ",
}  # fmt: skip
NONE = len(ATOMS)  # the name of an atom that no residue has
CHI_PATH = [[ATOMS.index(a) for a in f"N CA CB {CHI_ATOMS.get(r, '')}".split()] for r in RESIDUES]
CHI_PATH = [path + [NONE] * (7 - len(path)) for path in CHI_PATH]  # 20 x 7


def look_up(table, index):
    """The entries of a list of constants."""
    return torch.tensor(table, device=index.device)[index]


def mean(x, index, size):
    """Mean of the rows of x that share an index; 0 where there are none."""
    total = x.new_zeros(size, *x.shape[1:]).index_add(0, index, x)
    count = torch.bincount(index, minlength=size).clamp(min=1)
    return total / count.view(-1, *[1] * (x.dim() - 1))


def rotate(point, start, end, angle):
    """Points, turned by an angle about the axis start -> end (Rodrigues)."""
    axis, r = F.normalize(end - start, dim=-1), point - end
    along = axis * (axis * r).sum(-1, keepdim=True)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return end + along + (r - along) * cos + torch.linalg.cross(axis, r) * sin


def rotate_side_chains(p, angles):
    """perturb(R, eps): turn chi 1 .. 4 of every residue by the angles (R, 4). All beyond the bond moves as one body."""
    slot = torch.full((len(p.residue_type), len(ATOMS) + 1), -1, device=p.pos.device)
    slot[p.atom_residue, p.atom_name] = torch.arange(len(p.pos), device=p.pos.device)
    path = slot.gather(1, look_up(CHI_PATH, p.residue_type))  # (R, 7)  the atoms themselves, -1 if missing
    steps, pos = look_up(STEPS_FROM_CA, p.atom_name), p.pos
    for k in range(4):
        turns = (path[:, : k + 4] >= 0).all(1) & (angles[:, k] != 0)  # (R,)  row 18: never about a missing atom
        moves = turns[p.atom_residue] & (steps >= k + 2)  # (N,)
        start, end = pos[path[:, k + 1]][p.atom_residue], pos[path[:, k + 2]][p.atom_residue]  # (N, 3)  the bond
        pos = torch.where(moves[:, None], rotate(pos, start, end, angles[p.atom_residue, k]), pos)  # (N, 3)
    return replace(p, pos=pos)


def distances(pos, protein):
    """For one protein after the other: the rows (n,) of its points, and their distances (n, n), inf to themselves."""
    for b in protein.unique():
        rows = (protein == b).nonzero().squeeze(1)
        distance = torch.cdist(pos[rows], pos[rows], compute_mode="donot_use_mm_for_euclid_dist")  # exact
        yield rows, distance.fill_diagonal_(torch.inf)


def near(pos, protein, radius):
    """Pairs of points of one protein that are closer than the radius: (2, E), each pair in both directions."""
    return torch.cat([rows[(distance < radius).nonzero()] for rows, distance in distances(pos, protein)]).T


def new_clashes(p, pos):
    """Residues (R,) that moved, at coordinates `pos`, into an atom of another residue. Overlaps of before do not count."""
    overlap = 0.8  # angstrom; the spheres of a hydrogen bond overlap by about 0.5
    i, j = near(pos, p.atom_protein, 2 * max(VDW_RADIUS) - overlap)  # (E,) each
    touch = look_up(VDW_RADIUS, p.atom_name[i]) + look_up(VDW_RADIUS, p.atom_name[j]) - overlap
    now, before = ((x[i] - x[j]).norm(dim=-1) < touch for x in (pos, p.pos))
    clash = now & ~before & (p.atom_residue[i] != p.atom_residue[j]) & (pos[i] != p.pos[i]).any(-1)
    return torch.bincount(p.atom_residue[i[clash]], minlength=len(p.residue_type)) > 0


def second_conformer(p, level, generator):
    """P_2: the same sequence, another structure (Alg. 1, line 3)."""

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=p.pos.device, dtype=p.pos.dtype)

    if level == "residue":  # CA atoms have no side chains to turn
        return replace(p, pos=p.pos + 0.3 * normal(*p.pos.shape))  # (N, 3)  App. B.3: R_2 = R_1 + eps
    num_residues = len(p.residue_type)
    std = p.pos.new_full((num_residues, 1), 0.1 * torch.pi)  # radian
    angles, again = p.pos.new_zeros(num_residues, 4), p.residue_type >= 0
    for attempt in itertools.count():  # row 12: a clash is drawn again with half the noise, the sixth time with none
        drawn = normal(num_residues, 4) * std % (2 * torch.pi) if attempt < 5 else torch.zeros_like(angles)
        angles = torch.where(again[:, None], drawn, angles)  # (R, 4)  eps of Sec. 4.1, a wrapped normal
        conformer = rotate_side_chains(p, angles)
        again = new_clashes(p, conformer.pos)  # (R,)
        if not again.any():
            return conformer
        std = torch.where(again[:, None], std / 2, std)


# ---- 3. The graph and its line graph (App. D) ------------------------------------------------------------------------


@dataclass
class Graph:
    """Edges src -> dst, sorted by dst. They have no lengths: these are read at coordinates that may be noised."""

    src: torch.Tensor  # (E,)
    dst: torch.Tensor  # (E,)
    relation: torch.Tensor  # (E,)  type of the edge
    edge_feature: torch.Tensor  # (E, 52) or (E, 58)
    node_feature: torch.Tensor  # (N, 39) or (N, 21)


NUM_RELATIONS = {"atom": 1, "residue": 7}
NUM_ANGLES = 8


def nearest(pos, protein, k):
    """Each point with its k nearest neighbours: (2, E), neighbours first."""
    pairs = []
    for rows, distance in distances(pos, protein):
        neighbour = rows[distance.topk(min(k, len(rows) - 1), largest=False).indices]  # (n, k)
        pairs.append(torch.stack([neighbour, rows[:, None].expand_as(neighbour)]).flatten(1))
    return torch.cat(pairs, dim=1)


def build_graph(p, level):
    """Atom level: a radius. Residue level: five offsets along the sequence, a radius, nearest neighbours."""
    place = p.residue_index[p.atom_residue] + FAR**2 * p.atom_protein  # (N,)
    if level == "atom":
        kinds = [near(p.pos, p.atom_protein, 4.5)]
    else:
        offset = place - place[:, None]  # (R, R)
        kinds = [(offset == k).nonzero().T for k in range(-2, 3)]  # d_seq = 3; offset 0 is the edge to itself
        for spatial in near(p.pos, p.atom_protein, 10.0), nearest(p.pos, p.atom_protein, 10):
            kinds.append(spatial[:, offset[spatial[0], spatial[1]].abs() >= 5])  # d_long = 5
    src, dst = torch.cat(kinds, dim=1)  # (E,) each
    relation = torch.cat([torch.full_like(kind[0], r) for r, kind in enumerate(kinds)])  # (E,)
    order = dst.argsort(stable=True)
    src, dst, relation = src[order], dst[order], relation[order]

    residue = F.one_hot(p.residue_type, MASK + 1)[p.atom_residue]  # (N, 22)  the last column, [MASK], is never shown
    distance = F.one_hot((place[src] - place[dst]).abs().clamp(max=10), 11)  # (E, 11)  along the sequence
    ends = residue[src, :20], residue[dst, :20]  # (E, 20) each
    edge_feature = torch.cat([*ends, F.one_hot(relation, len(kinds)), distance], dim=1)
    node_feature = residue[:, :21]
    if level == "atom":
        node_feature = torch.cat([F.one_hot(look_up(ATOMIC_NUMBER, p.atom_name), 18), node_feature], dim=1)
    return Graph(src, dst, relation, edge_feature.to(p.pos.dtype), node_feature.to(p.pos.dtype))


def line_graph(graph, pos):
    """All pairs of edges k -> j, j -> i, and the bin of the angle at j. k may be i: the way back, at angle 0."""
    src, dst = graph.src, graph.dst
    ending = torch.bincount(dst, minlength=len(pos))  # (N,)  number of edges into each node; they follow one another
    pairs = ending[src]  # (E,)  how many edges j -> i goes on from
    edge = torch.arange(len(src), device=src.device)
    edge_out = edge.repeat_interleave(pairs)  # (L,)
    nth = torch.arange(len(edge_out), device=src.device) - (pairs.cumsum(0) - pairs)[edge_out]  # (L,)  0 .. pairs - 1
    edge_in = (ending.cumsum(0) - ending)[src[edge_out]] + nth  # (L,)
    to_k, to_i = pos[src[edge_in]] - pos[dst[edge_in]], pos[dst[edge_out]] - pos[src[edge_out]]  # (L, 3)
    angle = torch.atan2(torch.linalg.cross(to_k, to_i).norm(dim=-1), (to_k * to_i).sum(-1))  # (L,)  in [0, pi]
    return edge_in, edge_out, (angle / torch.pi * NUM_ANGLES).long().clamp(max=NUM_ANGLES - 1)


def edge_lengths(graph, pos):
    return (pos[graph.src] - pos[graph.dst]).norm(dim=-1)  # (E,)


# ---- 4. The encoder phi(S, R): GearNet-Edge (App. D; Zhang et al. 2022) ----------------------------------------------

WIDTHS = {  # of the hidden layers; "tiny" is for laptops
    ("paper", "atom"): [128] * 6,
    ("paper", "residue"): [512] * 6,
    ("tiny", "atom"): [32] * 3,
    ("tiny", "residue"): [32] * 4,
}


class RelationalConv(nn.Module):
    """h_i <- relu(BN(W_self h_i + sum_r W_r sum_{j in N_r(i)} h_j)), all W_r side by side in one matrix."""

    def __init__(self, in_dim, out_dim, num_relations):
        super().__init__()
        self.num_relations = num_relations
        self.self_loop = nn.Linear(in_dim, out_dim)
        self.linear = nn.Linear(num_relations * in_dim, out_dim)
        self.batch_norm = nn.BatchNorm1d(out_dim)

    def collect(self, message, dst, relation, size):
        """sum_r W_r of the sum of the messages that come over the edges of type r."""
        total = message.new_zeros(size * self.num_relations, message.shape[1])
        total = total.index_add(0, dst * self.num_relations + relation, message)
        return self.linear(total.view(size, -1))  # (size, out_dim)

    def forward(self, h, src, dst, relation):
        collected = self.collect(h[src], dst, relation, len(h))
        return F.relu(self.batch_norm(self.self_loop(h) + collected))


class GearNetEdge(nn.Module):
    """Messages go along the edges and, on the line graph, from edge to edge. All layers together are the output."""

    def __init__(self, level, size):
        super().__init__()
        widths, num_relations = WIDTHS[size, level], NUM_RELATIONS[level]
        node = [39 if level == "atom" else 21, *widths]
        edge = [40 + num_relations + 11 + 1, *node[:-1]]
        layers = range(len(widths))
        self.layers = nn.ModuleList(RelationalConv(node[k], node[k + 1], num_relations) for k in layers)
        self.edge_layers = nn.ModuleList(RelationalConv(edge[k], edge[k + 1], NUM_ANGLES) for k in layers)
        self.batch_norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths)
        self.out_dim = sum(widths)

    def forward(self, p, graph):
        src, dst, relation = graph.src, graph.dst, graph.relation
        edge_in, edge_out, angle = line_graph(graph, p.pos)  # (L,) each
        h = graph.node_feature  # (N, 39) or (N, 21)
        m = torch.cat([graph.edge_feature, edge_lengths(graph, p.pos)[:, None]], dim=1)  # (E, 53) or (E, 59)
        outputs = []
        for conv, edge_conv, norm in zip(self.layers, self.edge_layers, self.batch_norms):
            new = conv(h, src, dst, relation)  # (N, width)
            new = new + h if new.shape == h.shape else new  # short cut
            m = edge_conv(m, edge_in, edge_out, angle)  # (E, width of h)
            new = new + F.relu(conv.collect(m, dst, relation, len(h)))  # (N, width)  edges share the W_r of nodes
            h = norm(new)
            outputs.append(h)
        a = torch.cat(outputs, dim=1)  # (N, d)  representations of atoms
        return a, mean(a, p.atom_residue, len(p.residue_type))  # (N, d), (R, d)  and of residues: a, h of Sec. 3.1


# ---- 5. Diffusion: the forward process (Sec. 3.2, Sec. 3.4) ----------------------------------------------------------

T = 100
BETA = torch.linspace(-6, 6, T, dtype=torch.float64).sigmoid() * (0.1 - 1e-4) + 1e-4  # (T,)  App. D, row 1
ALPHA_BAR = (1 - BETA).cumprod(0)  # (T,)  below Eq. 4
STAGES = (10, 100), (1, 9)  # first and last t: large noise, then small noise (Sec. 3.4)


def random_mask(p, t, generator):
    """The residues to mask (M,), of every protein at least one (Alg. 1, line 7)."""
    rate = 0.15 + 0.85 * t / T  # (B,)  App. D
    u = torch.rand(len(p.residue_type), generator=generator, device=t.device)  # (R,)
    smallest = u.new_ones(len(t)).scatter_reduce(0, p.residue_protein, u, "amin")  # (B,)
    return ((u < rate[p.residue_protein]) | (u == smallest[p.residue_protein])).nonzero().squeeze(1)


def mask_residues(p, chosen):
    """S^t: the types of the chosen residues (M,) are hidden, and their side chains are gone (App. D, row 9)."""
    p = replace(p, residue_type=p.residue_type.index_fill(0, chosen, MASK))
    return p.keep_atoms((p.atom_name < 4) | (p.residue_type[p.atom_residue] != MASK))


def diffuse(p, t, chosen, level, generator):
    """P^t, its graph, and the noise that it hides (E,), as a number of every edge."""
    p = mask_residues(p, chosen)
    graph = build_graph(p, level)  # row 5: the edges of the clean structure
    alpha_bar = ALPHA_BAR.to(p.pos)[t - 1][p.atom_protein]  # (N,)
    eps = torch.randn(p.pos.shape, generator=generator, device=p.pos.device, dtype=p.pos.dtype)  # (N, 3)
    noised = replace(p, pos=p.pos + ((1 - alpha_bar) / alpha_bar).sqrt()[:, None] * eps)  # Eq. 3 / sqrt(abar), row 4
    change = edge_lengths(graph, p.pos) - edge_lengths(graph, noised.pos)  # (E,)
    return noised, graph, change * (alpha_bar / (1 - alpha_bar)).sqrt()[graph.src]  # Sec. 3.3, row 6


# ---- 6. The losses, and Algorithm 1 ----------------------------------------------------------------------------------


def mlp(*widths):
    """Linear layers with ReLU between them."""
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def to_vectors(score, graph, pos):
    """From numbers of edges (E,) to vectors of atoms (N, 3), by the chain rule: a distance grows along the edge."""
    src, dst = graph.src, graph.dst
    vector = F.normalize(pos[src] - pos[dst], dim=-1, eps=1e-10) * score[:, None]  # (E, 3)  Eq. 5
    return mean(vector, src, len(pos)) - mean(vector, dst, len(pos))  # (N, 3)  row 6


class SiamDiff(nn.Module):
    """An encoder to keep, and three heads to throw away. DiffPreT is the same with one conformer."""

    def __init__(self, method, level, size):
        super().__init__()
        self.method, self.level, self.stage = method, level, STAGES[0]
        self.encoder = GearNetEdge(level, size)
        d = self.encoder.out_dim
        self.dist_mlp, self.struct_mlp, self.seq_mlp = mlp(1, d, d, d), mlp(2 * d, d, d, 1), mlp(d, d, d, 20)

    def forward(self, p, generator):
        """Algorithm 1, lines 2-11, on a batch: the loss, and what to print of it."""
        first = p if self.level == "atom" else p.keep_atoms(p.atom_name == ATOMS.index("CA"))  # line 2
        views = [first]
        if self.method == "siamdiff":
            views.append(second_conformer(first, self.level, generator))  # line 3
        t = torch.randint(self.stage[0], self.stage[1] + 1, (p.num_proteins,), generator=generator, device=p.pos.device)
        chosen = random_mask(first, t, generator)  # (M,)  t (B,) is line 4, this line 7: the same for both views
        noisy = [diffuse(view, t, chosen, self.level, generator) for view in views]  # lines 5-7
        encoded = [self.encoder(noised, graph) for noised, graph, _ in noisy]  # lines 8-9
        crossed = encoded[
            ::-1
        ]  # Sec. 4.3: a view is denoised by the representations of the other; in DiffPreT, its own

        structure = [self.structure_loss(*each, a) for each, (a, _) in zip(noisy, crossed)]  # line 10
        sequence = [self.sequence_loss(first, chosen, h) for _, h in crossed]  # line 11
        loss = (sum(structure) + sum(sequence)) / len(views)  # Eq. 12; with two views Eq. 14
        return loss, {"structure": sum(structure).item() / len(views), "sequence": sum(sequence).item() / len(views)}

    def structure_loss(self, p, graph, hidden, a):
        """|eps - eps_theta|^2, the mean over the atoms of a protein, then over proteins."""
        i, j = graph.src, graph.dst
        distance = self.dist_mlp(edge_lengths(graph, p.pos)[:, None])  # (E, d)
        m = self.struct_mlp(torch.cat([a[i] * a[j], distance], dim=1)).squeeze(1)  # (E,)  Eq. 5, row 7
        eps, eps_theta = to_vectors(hidden, graph, p.pos), to_vectors(m, graph, p.pos)  # (N, 3)
        error = (eps - eps_theta).square().sum(1)  # (N,)  Eq. 10
        return mean(error, p.atom_protein, p.num_proteins).mean()

    def sequence_loss(self, p, chosen, h):
        """CE(s_i, p(s_i)), the mean over the masked residues of a protein, then over proteins."""
        logits = self.seq_mlp(h[chosen])  # (M, 20)  Eq. 7
        error = F.cross_entropy(logits, p.residue_type[chosen], reduction="none")  # (M,)  Eq. 11
        return mean(error, p.residue_protein[chosen], p.num_proteins).mean()


# ---- 7. Training: the loop of Algorithm 1, on one process or several -------------------------------------------------

TABLE_5 = {  # residues kept of each protein, proteins per process and step
    ("diffpret", "residue"): (150, 16),
    ("diffpret", "atom"): (100, 64),
    ("siamdiff", "residue"): (150, 16),
    ("siamdiff", "atom"): (100, 32),
}


def main(argv=None):
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of structures")
    parser.add_argument("--method", choices=["diffpret", "siamdiff"], default="siamdiff", help="one conformer, or two")
    parser.add_argument("--level", choices=["atom", "residue"], default="atom", help="all heavy atoms, or CA alone")
    parser.add_argument("--size", choices=["paper", "tiny"], default="paper", help="of the encoder")
    parser.add_argument("--epochs", type=int, default=25, help="of each of the two stages")
    parser.add_argument("--batch-size", type=int, help="proteins per process and step, if not as in Table 5")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--out", type=Path, default="runs/one_file", help="folder for encoder.pt")
    o = parser.parse_args(argv)
    max_length, batch_size = TABLE_5[o.method, o.level]
    batch_size = o.batch_size or batch_size

    rank, local, world = (int(os.environ.get(x, d)) for x, d in [("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1)])
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)  # the same weights on all processes, but other crops and other noise
    random, generator = np.random.default_rng(rank), torch.Generator(device).manual_seed(rank)

    paths = sorted(path for path in o.data.rglob("*") if {".pdb", ".ent", ".cif"} & set(path.suffixes))
    proteins = [read_structure(path) for path in tqdm(paths, desc="reading", disable=rank > 0)]
    objective = SiamDiff(o.method, o.level, o.size).to(device)
    model = nn.parallel.DistributedDataParallel(objective) if world > 1 else objective
    optimizer = torch.optim.Adam(model.parameters(), lr=o.lr)
    steps = len(proteins) // (batch_size * world)  # of an epoch
    assert steps, f"{len(proteins)} proteins are fewer than one step needs: {world} x --batch-size {batch_size}"

    for epoch in range(2 * o.epochs):
        objective.stage = STAGES[epoch // o.epochs]
        order = np.random.default_rng(epoch).permutation(len(proteins))  # the same on all processes
        batches = order[: steps * world * batch_size].reshape(steps, world, batch_size)[:, rank]
        bar = tqdm(batches, desc=f"epoch {epoch}, t = {objective.stage[0]} .. {objective.stage[1]}", disable=rank > 0)
        for batch in bar:
            crops = []
            for p in (proteins[i] for i in batch):
                start = random.integers(max(len(p.residue_type) - max_length, 0) + 1)
                crops.append(crop(p, start, max_length))
            p = pack(crops)
            loss, logs = model(Protein(*(x.to(device) for x in vars(p).values())), generator)
            optimizer.zero_grad()
            loss.backward()  # averages the gradients of all processes
            optimizer.step()  # line 12
            bar.set_postfix(logs)
        if rank == 0:
            about = {"encoder": "gearnet", "level": o.level, "size": o.size, "preset": "paper"}
            o.out.mkdir(parents=True, exist_ok=True)
            state = objective.encoder.state_dict()
            torch.save({"format": "siamdiff_min encoder 1", **about, "state": state}, o.out / "encoder.pt")
    if world > 1:
        dist.destroy_process_group()
    return objective


if __name__ == "__main__":
    main()
