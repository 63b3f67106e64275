"""DiffPreT and SiamDiff: pre-training by sequence-structure diffusion (Sec. 3 and 4, App. B).

Read `SiamDiff.forward` next to Alg. 1; everything it calls is one equation. DiffPreT is the case of one view. Neither
the encoder nor the heads are told t, unlike epsilon(P^t, t) of the paper (differences.md, row 20).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..encoders import formulas
from ..encoders.encoder import Encoder
from ..encoders.encoding import Encoding
from ..encoders.graph import Graph, edge_lengths
from ..encoders.ops import MLP, raised, segment_mean, segment_sum
from ..protein.conformer import GaussianConformer, TorsionalConformer
from ..protein.constants import NUM_RESIDUE_TYPES
from ..protein.protein import Protein
from ..statistics import Entropy, Mean
from .diffusion import Schedule, add_gaussian_noise, edges_to_vectors, hide_residues, random_mask
from .held_out import HeldOutNoise, drawn_once, stream
from .objective import LossAndLogs, Objective


@dataclass(frozen=True)
class Noisy:
    """One conformer at step t of its trajectory."""

    protein: Protein  # P^t: coordinates R^t, sequence S^t
    graph: Graph  # edges of the clean structure (differences.md, row 5)
    edge_target: Tensor  # (E,) minus the noise on a length, over the deviation on a coordinate (differences.md, row 6)


class SiamDiff(Objective):
    """SiamDiff (Eq. 14) with `conformer`, DiffPreT (Eq. 12) without one.

    SiamDiff denoises each view from the other. Minus that loss (Eq. 13; Eq. 14 simplifies it) plus a constant is, with
    some approximations, a lower bound on the mutual information of both representations (Sec. 4.3, App. C).
    `stages` holds the schedule of stage 1 and 2; a zero weight leaves that diffusion out altogether. `held_out` are
    other schedules for evaluation. Head names are those of the released task checkpoints.
    """

    def __init__(
        self,
        encoder: Encoder,
        conformer: TorsionalConformer | GaussianConformer | None,
        stages: dict[int, Schedule],
        conventions: Conventions = PAPER,
        head_dim: int | None = None,
        held_out: dict[int, Schedule] | None = None,
    ):
        super().__init__(encoder)
        self.draw_conformer = conformer
        self.conventions = conventions
        d = encoder.out_dim
        hidden = head_dim or d
        self.dist_mlp = MLP(1, hidden, hidden, d)
        self.struct_mlp = MLP(2 * d, hidden, hidden, 1)
        self.seq_mlp = MLP(d, hidden, hidden, NUM_RESIDUE_TYPES)
        self.stages = stages
        self.held_out = held_out or stages
        self.register_buffer("alpha_bar", stages[1].alpha_bar.float(), persistent=False)
        self.set_stage(1)

    def set_stage(self, stage: int) -> None:
        """Train on the noise steps t of stage 1 or 2 (Sec. 3.4)."""
        self.stage = stage
        self.schedule = (self.stages if self.training else self.held_out)[stage]
        self.alpha_bar = self.schedule.alpha_bar.to(self.alpha_bar)

    def train(self, mode: bool = True) -> "SiamDiff":
        """Training mode, or that of evaluation, at the noise of `held_out`."""
        super().train(mode)
        self.set_stage(self.stage)
        return self

    def kept_heads(self) -> dict[str, nn.Module]:
        """The sequence head (Eq. 7), which tells how likely a mutant is, if any stage trains it."""
        trained = any(schedule.weight_sequence for schedule in self.stages.values())
        return {"seq_mlp": self.seq_mlp} if trained else {}

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        """Alg. 1, lines 2-11, on a batch: the loss, and its logs."""
        views, logs = self.views(protein, generator)  # lines 2-3
        t = self.schedule.draw_t(views[0].num_proteins, generator)  # line 4: one t per protein, for both views
        chosen = self.draw_mask(views[0], t, generator)  # line 7: the same residues in both views
        noisy = [self.add_noise(view, t, chosen, generator) for view in views]  # lines 5-7
        h = [self.encoder(n.protein, n.graph) for n in noisy]  # lines 8-9
        crossed = h[::-1]  # Sec. 4.3: each view is denoised from the other one; a single view from itself

        loss = 0.0  # Eq. 8, or Eq. 13 for two views, is the sum of a structure and a sequence loss (Eq. 9)
        if self.schedule.weight_structure:
            structure, structure_logs = self.structure_loss(noisy, crossed)  # line 10
            loss, logs = loss + self.schedule.weight_structure * structure, logs | structure_logs
        if self.schedule.weight_sequence:
            sequence, sequence_logs = self.sequence_loss(views[0], chosen, crossed)  # line 11
            loss, logs = loss + self.schedule.weight_sequence * sequence, logs | sequence_logs
        return loss, logs  # type: ignore[return-value]  # 0.0 if both weights are 0

    @drawn_once
    def views(self, protein: Protein, generator: torch.Generator) -> tuple[list[Protein], dict]:
        """P_1 and P_2 (Alg. 1, lines 2-3), and the logs of the conformer. DiffPreT has P_1 alone."""
        native = self.encoder.builder.select_nodes(protein)
        if self.draw_conformer is None:
            return [native], {}
        conformer, logs = self.draw_conformer(native, stream(generator, "second view"))
        return [native, conformer], logs

    @drawn_once
    def draw_mask(self, protein: Protein, t: Tensor, generator: torch.Generator) -> Tensor:
        """The residues to mask (M,) at the steps t (B,); none without the sequence loss."""
        if not self.schedule.weight_sequence:
            return t.new_zeros(0)
        own = stream(generator, "mask")
        return random_mask(protein, self.schedule.mask_rate(t), own, self.conventions.mask_with_replacement)

    @drawn_once
    def add_noise(self, protein: Protein, t: Tensor, chosen: Tensor, generator: torch.Generator) -> Noisy:
        """q(P^t | P^0) of Eq. 2 and Eq. 3: mask the sequence, build the graph, then move the atoms."""
        protein = hide_residues(protein, chosen, self.conventions.backbone)
        show_types = not (self.conventions.hide_all_types and self.schedule.weight_sequence)
        graph = self.encoder.builder(protein, show_types)
        if isinstance(generator, HeldOutNoise):
            graph = replace(graph, prepared={})  # it comes again with the same coordinates
        clean_length = edge_lengths(graph, protein.pos)

        atom_alpha_bar = self.alpha_bar[t - 1][protein.atom_protein]  # (N,)
        if self.schedule.weight_structure:
            noisy = add_gaussian_noise(protein.pos, atom_alpha_bar, stream(generator, "noise"))
            protein = replace(protein, pos=noisy)

        edge_alpha_bar = atom_alpha_bar[graph.src]  # (E,)
        inverse_std = (edge_alpha_bar / (1 - edge_alpha_bar)).sqrt()
        edge_target = (clean_length - edge_lengths(graph, protein.pos)) * inverse_std
        return Noisy(protein, graph, edge_target)

    def structure_loss(self, noisy: list[Noisy], crossed: list[Encoding]) -> LossAndLogs:
        """|eps - eps_theta|^2 of Eq. 10: the mean over atoms, views, then proteins. And its logs."""
        # Eq. 5: m_ij = MLP(a_i * a_j, MLP(|r_i - r_j|)) of every edge, a from the other view, r from this one. Line 10
        # of Alg. 1 has h for a (differences.md, row 36).
        predicted = formulas.edge_scores(noisy, crossed, self.dist_mlp, self.struct_mlp)
        errors = [noise_errors(view, m) for view, m in zip(noisy, predicted)]
        loss, baseline = torch.stack(errors).mean(0).t().contiguous()  # (B,) each
        return loss.mean(), {"structure_loss": Mean.of(loss), "structure_loss_constant": Mean.of(baseline)}

    def sequence_loss(self, protein: Protein, chosen: Tensor, crossed: list[Encoding]) -> LossAndLogs:
        """CE(s_i^0, p(s_i^0 | P^t)) of Eq. 11: the mean over masked residues, views, then proteins. And its logs.

        It needs p of Eq. 7 alone; nothing takes the step of Eq. 6.
        """
        target = protein.residue_type[chosen]  # (M,)
        protein_of = protein.residue_protein[chosen]
        logits = [raised(self.seq_mlp(h.residue.index_select(0, chosen))) for h in crossed]  # (M, 20); softmax: Eq. 7
        errors = [F.cross_entropy(of_view, target, reduction="none") for of_view in logits]
        means = [segment_mean(error, protein_of, protein.num_proteins) for error in errors]
        loss = torch.stack(means).mean(0)  # (B,)

        # The best answer without a look: the frequencies of the types, every protein weighing the same.
        count = segment_sum(torch.ones_like(chosen.float()), protein_of, protein.num_proteins)
        weight = 1 / count[protein_of]
        correct = torch.stack(logits).argmax(-1) == target
        return loss.mean(), {
            "sequence_loss": Mean.of(loss),
            "sequence_loss_constant": Entropy.of(target, NUM_RESIDUE_TYPES, weight),
            "sequence_accuracy": Mean.of(correct.float()),
        }

    @torch.no_grad()
    def denoise(self, protein: Protein, t: int, generator: torch.Generator) -> list[Tensor]:
        """R^0, R^t, and an estimate of R^0: three times (N, 3), angstrom.

        It is no step of Eq. 4, which takes a part of eps_theta away: the estimate takes all of it. But eps_theta is
        shorter than the noise at small t and longer at large t (differences.md, row 6). So even true scores take only
        about half of the noise away, and at t = 100 next to nothing (CA: a third). As in training, eps_theta comes from
        the other view. Nothing is masked. Batch norm's statistics stay as they are.
        """
        # Both views at step t, as in training, with no residue chosen.
        views, _ = self.views(protein, generator)
        steps = torch.full((views[0].num_proteins,), t, device=protein.pos.device)
        noisy = [self.add_noise(view, steps, steps[:0], generator) for view in views]

        # Encode the other view, with copies of the statistics that a training encoder would change.
        other = noisy[-1]
        buffers = {name: buffer.clone() for name, buffer in self.encoder.named_buffers()}
        encoding = torch.func.functional_call(self.encoder, buffers, (other.protein, other.graph))

        # Eq. 5, and a step back by its noise.
        (m,) = formulas.edge_scores(noisy[:1], [encoding], self.dist_mlp, self.struct_mlp)
        pos = noisy[0].protein.pos
        graph = noisy[0].graph
        noise = -edges_to_vectors(m, pos, graph.src, graph.dst)  # eps_theta; `Noisy.edge_target` says why minus
        std = (1 / self.alpha_bar[t - 1] - 1).sqrt()
        return [views[0].pos, pos, pos - std * noise]


def noise_errors(noisy: Noisy, m: Tensor) -> Tensor:
    """|eps - eps_theta|^2 per protein (B, 2), averaged over its atoms: by m (E,) of Eq. 5, and by m = 0, the baseline.

    Noise and prediction are both numbers of edges, and become vectors in one go (differences.md, row 6).
    """
    protein = noisy.protein
    graph = noisy.graph
    difference = torch.stack([m - noisy.edge_target, -noisy.edge_target], dim=1)
    vector = edges_to_vectors(difference, protein.pos, graph.src, graph.dst)  # (N, 2, 3)
    return segment_mean(vector.square().sum(-1), protein.atom_protein, protein.num_proteins)
