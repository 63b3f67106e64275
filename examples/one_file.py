"""DiffPreT and SiamDiff in one file: read it from top to bottom beside the paper (Zhang et al., 2023).

    python examples/one_file.py --data FOLDER --size tiny --batch-size 4 --lr 2e-3 --epochs 5  # a laptop
    torchrun --nproc_per_node 4 examples/one_file.py --data FOLDER                             # the paper's setting

FOLDER holds PDB or mmCIF files, plain or gzip; some are in siamdiff_min/reading/bundle/structures.tar. The result is
OUT/encoder.pt, which `siamdiff_min.load_encoder` reads.

At the end of a line stand the shape of what it makes, then its place in the paper. Letters of shapes:
N atoms, R residues, B proteins, E edges, L pairs of edges, M masked residues, d width of the representations.
"Row 5" is row 5 of docs/differences.md: there the paper leaves something open, or the released code differs from it.

The package siamdiff_min computes the same loss and gradients (a test compares them), faster and in less memory, with
checkpoints and validation. This file trusts its input, and reads all of it first.
"""
# ruff: noqa: SIM905

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
MASK = 21  # [MASK], the absorbing state of Eq. 3; the types are 0 .. 19, and 20 is "unknown", which never occurs here

ATOMS = "N CA C O CB CG CG1 CG2 OG OG1 SG CD CD1 CD2 OD1 OD2 ND1 ND2 SD CE CE1 CE2 CE3 NE NE1 NE2".split()
ATOMS += "OE1 OE2 CZ CZ2 CZ3 NZ CH2 NH1 NH2 OH OXT".split()  # all heavy atoms; the first four are the backbone
ATOMIC_NUMBER = [{"C": 6, "N": 7, "O": 8, "S": 16}[name[0]] for name in ATOMS]
VDW_RADIUS = [{"C": 1.70, "N": 1.55, "O": 1.52, "S": 1.80}[name[0]] for name in ATOMS]  # angstrom, Bondi (1964)
STEPS_FROM_CA = ["ABGDEZH".find(name[1:2]) for name in ATOMS]  # Greek letter: CB 1, CG 2, ...; backbone 0 or -1

FAR = 100_000  # is added to the places of each next chain, so that residues of two chains are never close


@dataclass
class Protein:
    """One protein, or a batch: the atoms and residues of several, one after the other. Called p below."""

    pos: torch.Tensor  # (N, 3)  R, in angstrom
    atom_name: torch.Tensor  # (N,)  index into ATOMS
    atom_residue: torch.Tensor  # (N,)  residue of each atom
    residue_type: torch.Tensor  # (R,)  S, as index into RESIDUES, or MASK
    residue_index: torch.Tensor  # (R,)  place along the sequence
    residue_protein: torch.Tensor  # (R,)  protein of each residue

    @property
    def atom_protein(self):
        return self.residue_protein[self.atom_residue]  # (N,)

    @property
    def num_proteins(self):
        return int(self.residue_protein[-1]) + 1

    def keep_atoms(self, keep):
        return replace(self, pos=self.pos[keep], atom_name=self.atom_name[keep], atom_residue=self.atom_residue[keep])


def read_structure(path):
    """The residues of the 20 types in all chains of the first model."""
    parser = MMCIFParser(QUIET=True) if ".cif" in path.suffixes else PDBParser(QUIET=True)
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        model = parser.get_structure(path.name, file)[0]
    pos, atoms, residues = [], [], []
    for c, chain in enumerate(model):
        known = [residue for residue in chain if residue.resname in RESIDUES and "CA" in residue]
        for index, residue in enumerate(known):
            heavy = [atom for atom in residue if atom.name in ATOMS]
            pos += [atom.coord for atom in heavy]
            atoms += [(ATOMS.index(atom.name), len(residues)) for atom in heavy]  # name, residue
            residues.append((RESIDUES.index(residue.resname), FAR * c + index, 0))  # type, index, protein
    return Protein(torch.from_numpy(np.array(pos)), *torch.tensor(atoms).T, *torch.tensor(residues).T)


def random_crop(p, length, rng):
    """A window of at most `length` residues of one protein."""
    first = rng.integers(max(len(p.residue_type) - length, 0) + 1)
    p = p.keep_atoms((p.atom_residue >= first) & (p.atom_residue < first + length))
    residues = (x[first : first + length] for x in (p.residue_type, p.residue_index, p.residue_protein))
    return Protein(p.pos, p.atom_name, p.atom_residue - first, *residues)


def pack(proteins):
    """Several proteins as a batch."""
    rows = [0, *itertools.accumulate(len(p.residue_type) for p in proteins)]  # first residue of each
    moved = [
        replace(p, atom_residue=p.atom_residue + row, residue_protein=p.residue_protein + b)
        for b, (row, p) in enumerate(zip(rows, proteins))
    ]
    return Protein(*map(torch.cat, zip(*(vars(p).values() for p in moved))))


# ---- 2. The second conformer (Sec. 4.1, App. B.3) --------------------------------------------------------------------

# The atoms beyond CB along which a side chain can turn. Chi 1 is the dihedral angle of N, CA, CB and the first of them,
# chi 2 that of CA, CB and the first two, and so on. Glycine and alanine have none; proline's ring stays shut (row 17).
CHI_ATOMS = {
    "SER": "OG", "CYS": "SG", "VAL": "CG1", "THR": "OG1", "ILE": "CG1 CD1", "LEU": "CG CD1", "ASN": "CG OD1",
    "ASP": "CG OD1", "HIS": "CG ND1", "PHE": "CG CD1", "TYR": "CG CD1", "TRP": "CG CD1", "MET": "CG SD CE",
    "GLN": "CG CD OE1", "GLU": "CG CD OE1", "LYS": "CG CD CE NZ", "ARG": "CG CD NE CZ",
}  # fmt: skip
CHI_PATHS = [[ATOMS.index(atom) for atom in f"N CA CB {CHI_ATOMS.get(name, '')}".split()] for name in RESIDUES]
CHI_PATHS = [path + [len(ATOMS)] * (7 - len(path)) for path in CHI_PATHS]  # (20, 7)  filled up with an index of no atom


def look_up(table, index):
    return torch.tensor(table, device=index.device)[index]


def normal_like(x, generator):
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def rotate(point, start, end, angle):
    """Points, turned about the axis start -> end (Rodrigues)."""
    axis, r = F.normalize(end - start, dim=-1), point - end
    along = axis * (axis * r).sum(-1, keepdim=True)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return end + along + (r - along) * cos + torch.linalg.cross(axis, r) * sin


def rotate_side_chains(p, angles):
    """perturb(R, eps): turn chi 1 .. 4 of each residue by angles (R, 4). What lies beyond a bond moves as one body."""
    slot = torch.full((len(p.residue_type), len(ATOMS) + 1), -1, device=p.pos.device)
    slot[p.atom_residue, p.atom_name] = torch.arange(len(p.pos), device=p.pos.device)  # (R, 38)  row of each atom
    path = slot.gather(1, look_up(CHI_PATHS, p.residue_type))  # (R, 7)  rows of the atoms along the path, -1: missing
    steps, pos = look_up(STEPS_FROM_CA, p.atom_name), p.pos
    for k in range(4):
        turns = (path[:, : k + 4] >= 0).all(1) & (angles[:, k] != 0)  # (R,)  no turn without all four atoms (row 18)
        moves = turns[p.atom_residue] & (steps >= k + 2)  # (N,)
        start, end = (pos[path[p.atom_residue, atom]] for atom in (k + 1, k + 2))  # (N, 3)  ends of the bond
        pos = torch.where(moves[:, None], rotate(pos, start, end, angles[p.atom_residue, k]), pos)  # (N, 3)
    return replace(p, pos=pos)


def distances(pos, protein):
    """Protein by protein: the rows (n,) of its points, and their distances (n, n), infinite from a point to itself."""
    for b in protein.unique():
        rows = (protein == b).nonzero().squeeze(1)
        distance = torch.cdist(pos[rows], pos[rows], compute_mode="donot_use_mm_for_euclid_dist")  # the exact mode
        yield rows, distance.fill_diagonal_(torch.inf)


def near(pos, protein, radius):
    """Pairs (2, E) of points of one protein that are closer than the radius, each pair in both directions."""
    return torch.cat([rows[(distance < radius).nonzero()] for rows, distance in distances(pos, protein)]).T


def new_clashes(p, pos):
    """Residues (R,) with a moved atom that overlaps, at `pos`, with an atom of another residue, and did not before."""
    overlap = 0.8  # angstrom; the spheres of a hydrogen bond overlap by about 0.5
    i, j = near(pos, p.atom_protein, 2 * max(VDW_RADIUS) - overlap)  # (E,) each
    contact = look_up(VDW_RADIUS, p.atom_name[i]) + look_up(VDW_RADIUS, p.atom_name[j]) - overlap  # (E,)
    now, before = ((x[i] - x[j]).norm(dim=1) < contact for x in (pos, p.pos))
    clash = now & ~before & (p.atom_residue[i] != p.atom_residue[j]) & (pos[i] != p.pos[i]).any(1)
    return torch.bincount(p.atom_residue[i[clash]], minlength=len(p.residue_type)) > 0


def second_conformer(p, level, generator):
    """P_2 has the sequence of P_1 and another structure."""
    if level == "residue":  # CA atoms have no side chain
        return replace(p, pos=p.pos + 0.3 * normal_like(p.pos, generator))  # (N, 3)  R_2 = R_1 + eps, App. B.3
    angles = p.pos.new_zeros(len(p.residue_type), 4)  # (R, 4)  radian
    std = torch.full_like(angles, 0.1 * torch.pi)
    again = torch.ones_like(p.residue_type, dtype=torch.bool)  # (R,)  all, then those that clash (row 12)
    for attempt in itertools.count():
        eps = normal_like(angles, generator) * std % (2 * torch.pi) if attempt < 5 else 0 * std  # wrapped, Sec. 4.1
        angles = torch.where(again[:, None], eps, angles)  # (R, 4)
        conformer = rotate_side_chains(p, angles)  # R_2 = perturb(R_1, eps), Sec. 4.1
        again = new_clashes(p, conformer.pos)
        if not again.any():  # at the latest when all side chains are as they were
            return conformer
        std = torch.where(again[:, None], std / 2, std)  # (R, 4)  half the noise


# ---- 3. The graph and its line graph (App. D) ------------------------------------------------------------------------


@dataclass
class Graph:
    """Edges src -> dst, sorted by dst. Lengths and angles are read later, at noised coordinates."""

    src: torch.Tensor  # (E,)
    dst: torch.Tensor  # (E,)
    relation: torch.Tensor  # (E,)  type of the edge
    edge_feature: torch.Tensor  # (E, 52) or (E, 58)
    node_feature: torch.Tensor  # (N, 39) or (N, 21)

    def lengths(self, pos):
        return (pos[self.src] - pos[self.dst]).norm(dim=1)  # (E,)


def nearest(pos, protein, k):
    """Pairs (2, E) of a neighbour and its point: the k nearest neighbours of each point within its protein."""
    pairs = []
    for rows, distance in distances(pos, protein):
        neighbour = rows[distance.sort(dim=1, stable=True).indices[:, : min(k, len(rows) - 1)]]  # (n, k)
        pairs.append(torch.stack([neighbour, rows[:, None].expand_as(neighbour)]).flatten(1))
    return torch.cat(pairs, dim=1)


def build_graph(p, level):
    """Atom level: all pairs within a radius. Residue level: the sequence, a radius, and nearest neighbours."""
    index = p.residue_index[p.atom_residue] + FAR**2 * p.atom_protein  # (N,)  proteins are far apart, too
    if level == "atom":
        edges = [near(p.pos, p.atom_protein, 4.5)]
    else:  # an atom is a residue
        offset = index - index[:, None]  # (R, R)
        edges = [(offset == k).nonzero().T for k in range(-2, 3)]  # d_seq = 3; offset 0 joins a residue to itself
        for i, j in near(p.pos, p.atom_protein, 10.0), nearest(p.pos, p.atom_protein, 10):
            edges.append(torch.stack([i, j])[:, offset[i, j].abs() >= 5])  # d_long = 5
    src, dst = torch.cat(edges, dim=1)
    relation = torch.cat([torch.full_like(pairs[0], r) for r, pairs in enumerate(edges)])  # one for each of these kinds
    order = dst.argsort(stable=True)
    src, dst, relation = src[order], dst[order], relation[order]  # (E,) each

    residue = F.one_hot(p.residue_type, MASK + 1)[p.atom_residue]  # (N, 22)  no feature has the last column, [MASK]
    distance = F.one_hot((index[src] - index[dst]).abs().clamp(max=10), 11)  # (E, 11)  along the sequence (row 16)
    ends = residue[src, :20], residue[dst, :20]  # (E, 20) each
    edge_feature = torch.cat([*ends, F.one_hot(relation, len(edges)), distance], dim=1)
    element = F.one_hot(look_up(ATOMIC_NUMBER, p.atom_name), 18)  # (N, 18)
    node_feature = torch.cat([element, residue[:, :21]], dim=1) if level == "atom" else residue[:, :21]
    return Graph(src, dst, relation, edge_feature.to(p.pos.dtype), node_feature.to(p.pos.dtype))


def line_graph(graph, pos):
    """Pairs of edges k -> j, j -> i, and the bin of the angle k-j-i. k may be i: the way back, at angle 0."""
    src, dst, device = graph.src, graph.dst, pos.device
    into = torch.bincount(dst, minlength=len(pos))  # (N,)  edges into each node; their rows follow one another
    first, count = (into.cumsum(0) - into)[src], into[src]  # (E,) each  of the edges into src: first row, number
    edge_out = torch.arange(len(src), device=device).repeat_interleave(count)  # (L,)
    nth = torch.arange(len(edge_out), device=device) - (count.cumsum(0) - count)[edge_out]  # (L,)  0 .. count - 1
    edge_in = first[edge_out] + nth  # (L,)
    k, j, i = src[edge_in], dst[edge_in], dst[edge_out]
    u, v = pos[k] - pos[j], pos[i] - pos[j]  # (L, 3)
    angle = torch.atan2(torch.linalg.cross(u, v).norm(dim=1), (u * v).sum(1))  # (L,)  0 .. pi
    return edge_in, edge_out, (angle / torch.pi * 8).long().clamp(max=7)  # (L,) each


# ---- 4. The encoder phi(S, R): GearNet-Edge (App. D; Zhang et al., 2022) ---------------------------------------------

WIDTHS = {"atom": {"paper": [128] * 6, "tiny": [32] * 3}, "residue": {"paper": [512] * 6, "tiny": [32] * 4}}


def mean(x, index, size):
    """The mean of the rows of x that have the same index, 0 of none: (size, ...)."""
    zeros = x.new_zeros(size, *x.shape[1:])
    return zeros.index_add(0, index, x) / zeros.index_add(0, index, torch.ones_like(x)).clamp(min=1)


class RelationalConv(nn.Module):
    """x_i <- relu(BN(W_self x_i + sum_r W_r sum_{j in N_r(i)} x_j)), with all W_r side by side in one matrix."""

    def __init__(self, in_dim, out_dim, num_relations):
        super().__init__()
        self.self_loop = nn.Linear(in_dim, out_dim)
        self.linear = nn.Linear(num_relations * in_dim, out_dim)
        self.batch_norm = nn.BatchNorm1d(out_dim)
        self.num_relations = num_relations

    def aggregate(self, message, dst, relation, size):
        """sum_r W_r sum_j message_j, over the messages j of type r to each destination: (size, out_dim)."""
        sums = message.new_zeros(size * self.num_relations, message.shape[1])
        sums = sums.index_add(0, dst * self.num_relations + relation, message)
        return self.linear(sums.view(size, -1))

    def forward(self, x, src, dst, relation):
        return F.relu(self.batch_norm(self.self_loop(x) + self.aggregate(x[src], dst, relation, len(x))))


class GearNetEdge(nn.Module):
    """Messages pass from node to node and, in the line graph, from edge to edge. All layers are the output."""

    def __init__(self, level, size):
        super().__init__()
        node_dim, edge_dim, relations = {"atom": (39, 53, 1), "residue": (21, 59, 7)}[level]
        nodes = [node_dim, *WIDTHS[level][size]]
        edges = [edge_dim, *nodes[:-1]]
        self.layers = nn.ModuleList(RelationalConv(a, b, relations) for a, b in itertools.pairwise(nodes))
        self.edge_layers = nn.ModuleList(RelationalConv(a, b, 8) for a, b in itertools.pairwise(edges))
        self.batch_norms = nn.ModuleList(nn.BatchNorm1d(width) for width in nodes[1:])

    def forward(self, p, graph):
        src, dst, relation = graph.src, graph.dst, graph.relation
        edge_in, edge_out, angle = line_graph(graph, p.pos)
        x = graph.node_feature  # (N, 39) or (N, 21)
        m = torch.cat([graph.edge_feature, graph.lengths(p.pos)[:, None]], dim=1)  # (E, 53) or (E, 59)
        layers = []
        for conv, edge_conv, norm in zip(self.layers, self.edge_layers, self.batch_norms):
            new = conv(x, src, dst, relation)  # (N, width)
            new = new + x if new.shape == x.shape else new  # short cut
            m = edge_conv(m, edge_in, edge_out, angle)  # (E, width of x)
            x = norm(new + F.relu(conv.aggregate(m, dst, relation, len(x))))  # (N, width)  the same W_r
            layers.append(x)
        a = torch.cat(layers, dim=1)  # (N, d)  atoms, Sec. 3.1
        h = mean(a, p.atom_residue, len(p.residue_type))  # (R, d)  residues, Sec. 3.1
        return a, h


# ---- 5. The forward process (Sec. 3.2, Sec. 3.4) ---------------------------------------------------------------------

T = 100
BETA = torch.linspace(-6, 6, T, dtype=torch.float64).sigmoid() * (0.1 - 1e-4) + 1e-4  # (T,)  App. D, row 1
ALPHA_BAR = (1 - BETA).cumprod(0)  # (T,)  below Eq. 4
STAGES = (10, 100), (1, 9)  # first and last t of large and of small noise, Sec. 3.4


def random_mask(p, t, generator):
    """The residues (M,) to mask, at least one of each protein."""
    rate = 0.15 + 0.85 * t / T  # (B,)  App. D
    u = torch.rand(len(p.residue_type), generator=generator, device=t.device)  # (R,)
    smallest = u.new_ones(len(t)).scatter_reduce(0, p.residue_protein, u, "amin")  # (B,)
    return ((u < rate[p.residue_protein]) | (u == smallest[p.residue_protein])).nonzero().squeeze(1)  # (M,)  Eq. 3


def diffuse(p, t, chosen, level, generator):
    """P^t, its graph, and the target of each edge: minus the noise on its length, in units of the noise on an atom."""
    p = replace(p, residue_type=p.residue_type.index_fill(0, chosen, MASK))  # S^t, Eq. 3
    p = p.keep_atoms((p.atom_name < 4) | (p.residue_type[p.atom_residue] != MASK))  # no side chains, App. D, row 9
    graph = build_graph(p, level)  # of the clean coordinates, row 5
    alpha_bar = ALPHA_BAR.to(p.pos)[t - 1][p.atom_protein]  # (N,)
    ratio = (1 - alpha_bar) / alpha_bar  # (N,)
    noised = p.pos + ratio.sqrt()[:, None] * normal_like(p.pos, generator)  # (N, 3)  Eq. 3 over sqrt(alpha_bar), row 4
    target = (graph.lengths(p.pos) - graph.lengths(noised)) / ratio.sqrt()[graph.src]  # (E,)  Sec. 3.3, row 6
    return replace(p, pos=noised), graph, target


# ---- 6. The losses, and Algorithm 1 ----------------------------------------------------------------------------------


def mlp(*widths):
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def to_vectors(m, graph, pos):
    """From edges (E,) to atoms (N, 3) by the chain rule: an edge grows if its ends move apart along it."""
    vector = m[:, None] * F.normalize(pos[graph.src] - pos[graph.dst], dim=1, eps=1e-10)  # (E, 3)  Eq. 5
    return mean(vector, graph.src, len(pos)) - mean(vector, graph.dst, len(pos))  # (N, 3)  Eq. 5, row 6


class SiamDiff(nn.Module):
    """An encoder, and three heads that are thrown away. DiffPreT is SiamDiff with a single conformer."""

    def __init__(self, method, level, size):
        super().__init__()
        self.method, self.level, self.stage = method, level, STAGES[0]
        self.encoder, d = GearNetEdge(level, size), sum(WIDTHS[level][size])
        self.dist_mlp, self.struct_mlp, self.seq_mlp = mlp(1, d, d, d), mlp(2 * d, d, d, 1), mlp(d, d, d, 20)

    def forward(self, p, generator):
        """Algorithm 1, lines 2-11, for a batch: the loss, and its two parts to print."""
        p = p if self.level == "atom" else p.keep_atoms(p.atom_name == ATOMS.index("CA"))  # App. B.3
        views = [p]  # line 2
        if self.method == "siamdiff":
            views.append(second_conformer(p, self.level, generator))  # line 3
        low, high = self.stage
        t = torch.randint(low, high + 1, (p.num_proteins,), generator=generator, device=p.pos.device)  # (B,)  line 4
        chosen = random_mask(p, t, generator)  # (M,)  line 7: the same residues in both views
        noised = [diffuse(view, t, chosen, self.level, generator) for view in views]  # lines 5-7
        encoded = [self.encoder(p_t, graph) for p_t, graph, _ in noised]  # lines 8-9
        crossed = encoded[::-1]  # each view is restored from the other one, Sec. 4.3; a single one from itself

        structure = [self.structure_loss(*view, a) for view, (a, _) in zip(noised, crossed)]  # line 10
        sequence = [self.sequence_loss(p, chosen, h) for _, h in crossed]  # line 11
        structure, sequence = sum(structure) / len(views), sum(sequence) / len(views)
        return structure + sequence, structure.detach(), sequence.detach()  # Eq. 12; with two views Eq. 14

    def structure_loss(self, p, graph, target, a):
        distance = self.dist_mlp(graph.lengths(p.pos)[:, None])  # (E, d)
        m = self.struct_mlp(torch.cat([a[graph.src] * a[graph.dst], distance], dim=1)).squeeze(1)  # (E,)  Eq. 5, row 7
        eps, eps_theta = to_vectors(target, graph, p.pos), to_vectors(m, graph, p.pos)  # (N, 3)  both negated
        error = (eps - eps_theta).square().sum(1)  # (N,)  Eq. 10
        return mean(error, p.atom_protein, p.num_proteins).mean()  # over atoms, then proteins, row 14

    def sequence_loss(self, p, chosen, h):
        logits = self.seq_mlp(h[chosen])  # (M, 20)  Eq. 7
        error = F.cross_entropy(logits, p.residue_type[chosen], reduction="none")  # (M,)  Eq. 11
        return mean(error, p.residue_protein[chosen], p.num_proteins).mean()  # over residues, then proteins, row 14


# ---- 7. Training: the loop of Algorithm 1, on one process or several -------------------------------------------------

MAX_LENGTH = {"atom": 100, "residue": 150}  # residues of a protein, Table 5
BATCH_SIZE = {"atom": {"diffpret": 64, "siamdiff": 32}, "residue": {"diffpret": 16, "siamdiff": 16}}  # Table 5


def main(argv=None):
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of structures")
    parser.add_argument("--method", choices=["diffpret", "siamdiff"], default="siamdiff", help="one conformer or two")
    parser.add_argument("--level", choices=["atom", "residue"], default="atom", help="all heavy atoms, or CA alone")
    parser.add_argument("--size", choices=["paper", "tiny"], default="paper", help="size of the encoder")
    parser.add_argument("--epochs", type=int, default=25, help="epochs of each stage: large noise, then small noise")
    parser.add_argument("--batch-size", type=int, help="proteins per process and step; None: as in Table 5")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate of Adam")
    parser.add_argument("--out", type=Path, default=Path("runs/one_file"), help="folder for encoder.pt")
    o = parser.parse_args(argv)
    batch_size = o.batch_size or BATCH_SIZE[o.level][o.method]

    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets them
    device = torch.device(f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu")
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)  # all processes begin with the same weights
    rng, generator = np.random.default_rng(rank), torch.Generator(device).manual_seed(rank)  # crops; noise
    paths = sorted(path for path in o.data.rglob("*") if {".pdb", ".ent", ".cif"} & set(path.suffixes))
    proteins = [read_structure(path) for path in tqdm(paths, desc="reading", disable=rank > 0)]
    objective = SiamDiff(o.method, o.level, o.size).to(device)
    model = nn.parallel.DistributedDataParallel(objective) if world > 1 else objective
    optimizer = torch.optim.Adam(model.parameters(), lr=o.lr)  # App. D
    steps = len(proteins) // (world * batch_size)
    if not steps:
        raise SystemExit(f"error: --batch-size {batch_size} x {world} is more than there are proteins, {len(proteins)}")

    for epoch in range(2 * o.epochs):
        objective.stage = STAGES[epoch // o.epochs]
        order = np.random.default_rng(epoch).permutation(len(proteins))  # the same on all processes
        batches = order[: steps * world * batch_size].reshape(steps, world, batch_size)[:, rank]  # ours
        bar, total = tqdm(batches, desc=f"epoch {epoch + 1}", disable=rank > 0), np.zeros(2)
        for step, batch in enumerate(bar, 1):  # line 1
            p = pack([random_crop(proteins[i], MAX_LENGTH[o.level], rng) for i in batch])
            loss, *parts = model(Protein(*(x.to(device) for x in vars(p).values())), generator)
            optimizer.zero_grad()
            loss.backward()  # DistributedDataParallel averages the gradients of all processes
            optimizer.step()  # line 12
            total += [part.item() for part in parts]
            bar.set_postfix_str("structure {:.3f}, sequence {:.3f}".format(*total / step))
        if rank == 0:
            header = {"format": "siamdiff_min encoder 1", "encoder": "gearnet", "level": o.level, "size": o.size}
            o.out.mkdir(parents=True, exist_ok=True)
            torch.save({**header, "preset": "paper", "state": objective.encoder.state_dict()}, o.out / "encoder.pt")
    if world > 1:
        dist.destroy_process_group()
    return objective


if __name__ == "__main__":
    main()
