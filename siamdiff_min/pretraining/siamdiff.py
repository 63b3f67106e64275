"""DiffPreT and SiamDiff: pre-training by sequence-structure diffusion (Sec. 3 and 4, App. B).

Read `SiamDiff.forward` next to Alg. 1; everything it calls is one equation. DiffPreT is the case of one view. Neither
the encoder nor the heads are told t (differences.md, row 20). Eq. 1, Eq. 4, Eq. 6, Eq. 8, Eq. 9, Eq. 13
and App. C derive the losses from the reverse process. Pre-training never runs it, so they have no code.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..data.conformers import given_or_simulated, two_views
from ..encoders import kernels
from ..encoders.gearnet import Encoding
from ..encoders.graph import Graph, edge_lengths
from ..encoders.ops import MLP, raised, segment_mean, segment_sum
from ..protein.conformer import GaussianConformer, TorsionalConformer
from ..protein.constants import NUM_RESIDUE_CHANNELS, NUM_RESIDUE_TYPES
from ..protein.protein import Protein
from .diffusion import Schedule, add_gaussian_noise, edges_to_vectors, hide_residues, random_mask
from .objective import LossAndLogs, Objective, class_counts, sum_and_count


@dataclass(frozen=True)
class Noisy:
    """One conformer at step t of its trajectory."""

    protein: Protein  # P^t: coordinates R^t, sequence S^t
    graph: Graph  # edges of the clean structure (differences.md, row 5)
    target: Tensor  # (E,) the noise on every distance (differences.md, row 6)


class SiamDiff(Objective):
    """The objective of Eq. 14 with `conformer`, of DiffPreT (Eq. 12) without one.

    `stages` holds the schedule of stage 1 and 2; a zero weight leaves that diffusion out altogether. Head names are
    those of the released task checkpoints. With `given`, batches are those of `ConformerCrops` (ours, not the paper's).
    """

    def __init__(
        self,
        encoder: nn.Module,
        conformer: TorsionalConformer | GaussianConformer | None,
        stages: dict[int, Schedule],
        conventions: Conventions = PAPER,
        head_dim: int | None = None,
        given: bool = False,
    ):
        super().__init__(encoder)
        self.conformer, self.stages, self.conventions, self.given = conformer, stages, conventions, given
        d, hidden = encoder.out_dim, head_dim or encoder.out_dim
        self.dist_mlp = MLP(1, hidden, hidden, d)
        self.struct_mlp = MLP(2 * d, hidden, hidden, 1)
        self.seq_mlp = MLP(d, hidden, hidden, NUM_RESIDUE_TYPES)
        self.register_buffer("alpha_bar", torch.empty(0), persistent=False)
        self.set_stage(1)

    def set_stage(self, stage: int) -> None:
        """Train on the noise steps t of stage 1 or 2 (Sec. 3.4)."""
        self.schedule = self.stages[stage]
        self.alpha_bar = self.schedule.alpha_bar.to(self.alpha_bar)

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        """Alg. 1, lines 2-11, on a batch: the loss, and what to log."""
        if self.given:
            protein, other = two_views(protein)
        views, logs = [self.encoder.builder.select_nodes(protein)], {}  # line 2
        if self.conformer is not None:
            conformer, logs = self.conformer(views[0], generator)  # line 3
            if self.given:
                conformer, real = given_or_simulated(views[0], self.encoder.builder.select_nodes(other), conformer)
                logs = logs | {"real_views": sum_and_count(real.float())}
            views.append(conformer)
        t = self.schedule.draw_t(protein.num_proteins, generator)  # line 4: one t per protein, for both views
        masked = t.new_zeros(0)
        if self.schedule.weight_sequence:  # line 7: one mask, for both views
            rate = self.schedule.mask_rate(t)
            masked = random_mask(protein, rate, generator, self.conventions.mask_with_replacement)
        noisy = [self.add_noise(view, t, masked, generator) for view in views]  # lines 5-7
        h = [self.encoder(n.protein, n.graph) for n in noisy]  # lines 8-9
        other = h[::-1]  # App. B.1: each view is denoised from the other one; a single view from itself

        loss = 0.0
        if self.schedule.weight_structure:
            structure, found = self.structure_loss(noisy, other)  # line 10
            loss, logs = loss + self.schedule.weight_structure * structure, logs | found
        if self.schedule.weight_sequence:
            sequence, found = self.sequence_loss(protein, masked, other)  # line 11
            loss, logs = loss + self.schedule.weight_sequence * sequence, logs | found
        return loss, logs

    def add_noise(self, protein: Protein, t: Tensor, masked: Tensor, generator: torch.Generator) -> Noisy:
        """q(P^t | P^0) of Eq. 2 and Eq. 3: mask the sequence, build the graph, then move the atoms."""
        protein = hide_residues(protein, masked, self.conventions.backbone)
        graph = self.encoder.builder(protein)
        if self.conventions.hide_all_types and self.schedule.weight_sequence and self.encoder.builder.with_elements:
            elements = graph.node_feature[:, :-NUM_RESIDUE_CHANNELS]  # differences.md, row 10
            graph = replace(graph, node_feature=F.pad(elements, (0, NUM_RESIDUE_CHANNELS)))
        clean_length = edge_lengths(graph, protein.pos)
        alpha_bar = self.alpha_bar[t - 1][protein.atom_protein]  # (N,)
        if self.schedule.weight_structure:
            protein = replace(protein, pos=add_gaussian_noise(protein.pos, alpha_bar, generator))
        alpha_bar = alpha_bar[graph.src]
        target = (clean_length - edge_lengths(graph, protein.pos)) * (alpha_bar / (1 - alpha_bar)).sqrt()
        return Noisy(protein, graph, target)

    def structure_loss(self, noisy: list[Noisy], other: list[Encoding]) -> LossAndLogs:
        """|eps - eps_theta|^2 of Eq. 10: the mean over atoms, views, then proteins. And what to log."""
        views = [(o.node, n.graph, n.protein.pos) for n, o in zip(noisy, other)]
        # Eq. 5: m_ij = MLP(a_i * a_j, MLP(|r_i - r_j|)) of every edge, a from the other view, r from this one
        scores = kernels.edge_scores(views, self.dist_mlp, self.struct_mlp)
        loss = torch.stack([noise_error(n, m) for n, m in zip(noisy, scores)]).mean(0)  # (B,)
        zero = torch.stack([noise_error(n, torch.zeros_like(m)) for n, m in zip(noisy, scores)]).mean(0)
        return loss.mean(), {"structure_loss": sum_and_count(loss), "structure_loss_constant": sum_and_count(zero)}

    def sequence_loss(self, protein: Protein, masked: Tensor, other: list[Encoding]) -> LossAndLogs:
        """CE(s_i^0, p(s_i^0 | P^t)) of Eq. 11: the mean over masked residues, views, then proteins. And what to log."""
        target, of_protein = protein.residue_type[masked], protein.residue_protein[masked]  # (M,)
        weight = 1 / segment_sum(torch.ones_like(masked.float()), of_protein, protein.num_proteins)[of_protein]
        logits = [raised(self.seq_mlp(o.residue[masked])) for o in other]  # Eq. 7: p = softmax(MLP(h_i)), (M, 20)
        each = [F.cross_entropy(x, target, reduction="none") for x in logits]
        loss = torch.stack([segment_mean(x, of_protein, protein.num_proteins) for x in each]).mean(0)  # (B,)
        return loss.mean(), {
            "sequence_loss": sum_and_count(loss),
            "sequence_loss_constant": class_counts(target, NUM_RESIDUE_TYPES, weight),
            "sequence_accuracy": sum_and_count((torch.stack(logits).argmax(-1) == target).float()),
        }


def noise_error(noisy: Noisy, score: Tensor) -> Tensor:
    """|eps - eps_theta|^2 per protein (B,), averaged over its atoms; score (E,) is m_ij of Eq. 5.

    Noise and prediction are both numbers of edges, and become vectors in one go (differences.md, row 6).
    """
    protein, graph = noisy.protein, noisy.graph
    difference = edges_to_vectors(score - noisy.target, protein.pos, graph.src, graph.dst)  # (N, 3)
    return segment_mean(difference.square().sum(-1), protein.atom_protein, protein.num_proteins)
