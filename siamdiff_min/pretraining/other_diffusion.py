"""Two other diffusion models as objectives: score matching on distances (Guo et al. 2022; App. D), and torsional
diffusion of side chains (App. G). In both the network sees the noised quantity and predicts the noise.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..encoders.encoder import Encoder
from ..encoders.graph import edge_lengths
from ..encoders.ops import MLP
from ..protein.conformer import chi_atoms, rotate_side_chains
from ..protein.constants import MAX_CHI, RESIDUE_INDEX
from ..protein.geometry import normal_like
from ..protein.protein import Protein
from ..statistics import Mean
from .diffusion import Schedule
from .hide import encode_edges
from .objective import LossAndLogs, Objective, mean_or_zero

NUM_SIGMAS = 50
SMALLEST, LARGEST = 0.01, 10.0  # angstrom


def sigmas() -> Tensor:
    """Standard deviations sigma_1 .. sigma_50 (50,) of the noise on distances, log-linear from 0.01 to 10 (App. D)."""
    return torch.logspace(torch.tensor(SMALLEST).log10(), torch.tensor(LARGEST).log10(), NUM_SIGMAS)


class ScoreMatching(Objective):
    """|sigma s(d~) - (d - d~) / sigma|^2 over the edges: the noise on every distance, from the noised distances.

    The score of d~ = d + sigma eps is -eps / sigma. The head predicts sigma times it, so that all sigmas weigh the same
    and predicting zero costs 1. There is one sigma per protein, which the network is not told. The graph comes from the
    clean structure and shows d~ instead of its lengths: the same for an edge, its reverse and its repetitions. Angles
    (GearNet) and directions (GVP) stay clean; the coordinates are hidden.
    """

    def __init__(self, encoder: Encoder):
        super().__init__(encoder)
        d = encoder.out_dim
        self.dist_mlp = MLP(1, d, d)
        self.mlp = MLP(2 * d, d, 1)
        self.register_buffer("sigma", sigmas(), persistent=False)

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        protein = self.encoder.builder.select_nodes(protein)
        graph = self.encoder.builder(protein)
        pair, edge_pair = torch.unique(graph.pair, return_inverse=True)
        i = pair // protein.num_atoms
        j = pair % protein.num_atoms

        # Draw a sigma per protein.
        drawn = torch.randint(NUM_SIGMAS, (protein.num_proteins,), generator=generator, device=pair.device)
        of_protein = self.sigma.to(protein.pos)[drawn]
        sigma = of_protein[protein.atom_protein[i]]  # (P,)

        # Noise the lengths, those of one pair alike. A self edge has no length to be noised.
        noise = normal_like(sigma, generator).masked_fill(i == j, 0.0)
        noised = edge_lengths(graph, protein.pos) + (sigma * noise)[edge_pair]  # (E,)

        # Encode, and predict from both ends and the length shown.
        a = encode_edges(self.encoder, protein, graph, noised).node
        shown = torch.zeros_like(noise).index_copy_(0, edge_pair, noised)[:, None]  # (P, 1) edges of a pair agree
        of_length = self.dist_mlp(shown)
        product = a.index_select(0, i) * a.index_select(0, j)
        predicted = self.mlp(torch.cat([product, of_length], dim=-1)).squeeze(-1).to(noise.dtype)

        # Compare with minus the noise.
        joins_two = i != j
        loss = (predicted + noise).square().masked_select(joins_two)
        baseline = noise.square()[joins_two]
        return mean_or_zero(loss), {
            "score_matching_loss": Mean.of(loss),
            "score_matching_loss_constant": Mean.of(baseline),
        }


class TorsionalDiffusion(Objective):
    """(eps - MLP(a_1, a_2, a_3, a_4))^2: the noise on one side-chain torsion of every residue, from its four atoms.

    In every residue with a chi, one of them, at random, turns by a normal angle of variance (1 - abar_t) / abar_t, as
    the noise on coordinates in Eq. 3, wrapped to (-pi, pi]. The head predicts that angle over its standard deviation.
    Proline does not turn. The graph comes from the clean structure, as in DiffPreT (differences.md, row 5).
    """

    def __init__(self, encoder: Encoder, schedule: Schedule):
        super().__init__(encoder)
        self.schedule = schedule
        self.mlp = MLP(4 * encoder.out_dim, encoder.out_dim, 1)
        self.register_buffer("alpha_bar", schedule.alpha_bar, persistent=False)

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        graph = self.encoder.builder(protein)

        # Draw a step for every protein; with it goes the standard deviation (R,), radian.
        t = self.schedule.draw_t(protein.num_proteins, generator)
        abar = self.alpha_bar.to(protein.pos)[t - 1][protein.residue_protein]
        std = ((1 - abar) / abar).sqrt()

        # Draw one of the chi that are defined in each residue, all equally likely.
        atoms, defined = chi_atoms(protein)  # (R, 4, 4), (R, 4)
        is_proline = protein.residue_type == RESIDUE_INDEX["PRO"]
        defined = defined & ~is_proline[:, None]
        u = torch.rand(defined.shape, generator=generator, device=abar.device)
        chi = u.masked_fill(~defined, -1.0).argmax(1)  # (R,)

        # Draw its angle in (-pi, pi], and turn it.
        turned = std * normal_like(std, generator)
        turned = torch.pi - torch.remainder(torch.pi - turned, 2 * torch.pi)
        angles = turned[:, None] * F.one_hot(chi, MAX_CHI) * defined
        noised = rotate_side_chains(protein, angles)

        # Encode, and predict from the four atoms of each chi that turned.
        a = self.encoder(noised, graph).node
        turns = defined.any(1)
        row = torch.arange(len(chi), device=chi.device)
        four = atoms[row, chi][turns]  # (M, 4)
        of_four = a.index_select(0, four.flatten()).view(len(four), 4 * a.shape[1])  # (M, 4 d)
        predicted = self.mlp(of_four).squeeze(-1).to(abar.dtype)

        # Compare with the angle over its standard deviation.
        noise = (turned / std)[turns]  # (M,)
        loss = (predicted - noise).square()
        return mean_or_zero(loss), {
            "torsion_loss": Mean.of(loss),
            "torsion_loss_constant": Mean.of(noise.square()),
        }
