"""DiffPreT and SiamDiff: pre-training by sequence-structure diffusion (Sec. 3 and 4, App. B).

Read `SiamDiff.forward` next to Algorithm 1; everything it calls is one equation. DiffPreT is the case of one view.
Neither the encoder nor the heads are told the noise level t (README, row 20).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..encoders.graph import Graph, edge_lengths
from ..encoders.ops import MLP, ScalarLayers, pair_linear, segment_mean
from ..protein.conformer import Conformer
from ..protein.constants import NUM_RESIDUE_CHANNELS, NUM_RESIDUE_TYPES
from ..protein.geometry import length
from ..protein.protein import Protein
from .diffusion import Schedule, edges_to_vectors, hide_residues, perturb, random_mask, random_mask_official


@dataclass(frozen=True)
class Noisy:
    """One conformer at step t of its trajectory."""

    protein: Protein  # P^t: coordinates R^t, sequence S^t
    graph: Graph  # edges of the clean structure (README, row 5)
    alpha_bar: Tensor  # (N,)
    clean_length: Tensor  # (E,) angstrom, in R^0


@dataclass(frozen=True)
class DistanceLayers:
    """What the first layer of struct_mlp sees of a distance, the same for all views: weight @ looked_up + bias."""

    looked_up: ScalarLayers  # the first two layers of dist_mlp
    weight: Tensor  # (hidden, hidden)
    bias: Tensor  # (hidden,)


class SiamDiff(nn.Module):
    """The objective of Eq. 14 with `conformer`, of DiffPreT (Eq. 12) without one.

    `stages` holds the schedule of stage 1 and 2; a zero weight leaves that diffusion out altogether. `official`
    follows the released code where it differs from the paper. Head names are those of the released task checkpoints.
    """

    def __init__(
        self,
        encoder: nn.Module,
        conformer: Conformer | None,
        stages: dict[int, Schedule],
        official: bool = False,
        head_dim: int | None = None,
    ):
        super().__init__()
        self.encoder, self.conformer, self.stages, self.official = encoder, conformer, stages, official
        d, hidden = encoder.out_dim, head_dim or encoder.out_dim
        self.dist_mlp = MLP(1, hidden, hidden, d)
        self.struct_mlp = MLP(2 * d, hidden, hidden, 1)
        self.seq_mlp = MLP(d, hidden, hidden, NUM_RESIDUE_TYPES)
        self.register_buffer("alpha_bar", torch.empty(0), persistent=False)
        self.set_stage(1)

    def set_stage(self, stage: int) -> None:
        """Train on the noise levels of stage 1 or 2 (Sec. 3.4)."""
        self.schedule = self.stages[stage]
        self.alpha_bar = self.schedule.alpha_bar.to(self.alpha_bar)

    def forward(self, protein: Protein, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Algorithm 1, lines 2-11, on a batch: the loss, and what to log as tensors (total, count)."""
        logs, schedule = {}, self.schedule
        views = [self.encoder.builder.view(protein)]
        if self.conformer is not None:
            conformer, logs = self.conformer(views[0], generator)  # lines 2-3
            views.append(conformer)
        t = schedule.draw_level(protein.num_graphs, generator)  # line 4: one level per protein, for both views
        masked = self.draw_mask(protein, t, generator)  # line 7: one mask, for both views
        noisy = [self.add_noise(view, t, masked, generator) for view in views]  # lines 5-7
        h = [self.encoder(n.protein, n.graph) for n in noisy]  # lines 8-9
        other = h[::-1]  # each view is denoised from the other one, or from itself where there is one

        loss = 0.0
        if schedule.weight_structure:  # line 10
            layers = self.distance_layers()
            structure = torch.stack([self.structure_loss(n, o.node, layers) for n, o in zip(noisy, other)]).mean(0)
            loss = loss + schedule.weight_structure * structure[0].mean()
            logs["structure_loss"], logs["structure_loss_constant"] = total(structure[0]), total(structure[1])
        if schedule.weight_sequence:  # line 11
            sequence = [self.sequence_loss(protein, masked, o.residue, logs) for o in other]  # (B,) each
            sequence = torch.stack(sequence).mean(0)
            loss = loss + schedule.weight_sequence * sequence.mean()
            logs["sequence_loss"] = total(sequence)
            logs["sequence_loss_constant"] = counts(protein.residue_type[masked], NUM_RESIDUE_TYPES)
        return loss, logs

    def draw_mask(self, protein: Protein, t: Tensor, generator: torch.Generator) -> Tensor:
        """Residues that are [MASK] at step t (M,): none without sequence diffusion."""
        if not self.schedule.weight_sequence:
            return t.new_zeros(0)
        draw = random_mask_official if self.official else random_mask
        return draw(protein, self.schedule.mask_rate(t), generator)

    def add_noise(self, protein: Protein, t: Tensor, masked: Tensor, generator: torch.Generator) -> Noisy:
        """q(P^t | P^0) of Eq. 2-3: mask the sequence, build the graph, then move the atoms."""
        protein = hide_residues(protein, masked, backbone=3 if self.official else 4)
        graph = self.encoder.builder(protein)
        if self.official and self.schedule.weight_sequence and self.encoder.builder.with_elements:  # README, row 10
            elements = graph.node_feature[:, :-NUM_RESIDUE_CHANNELS]
            graph = replace(graph, node_feature=F.pad(elements, (0, NUM_RESIDUE_CHANNELS)))
        clean_length = edge_lengths(graph, protein.pos)
        alpha_bar = self.alpha_bar[t - 1][protein.atom_graph]
        if self.schedule.weight_structure:
            protein = replace(protein, pos=perturb(protein.pos, alpha_bar, generator))
        return Noisy(protein, graph, alpha_bar, clean_length)

    def structure_loss(self, noisy: Noisy, a: Tensor, layers: DistanceLayers) -> Tensor:
        """|eps - eps_theta|^2 of Eq. 10 per protein, averaged over its atoms, and |eps|^2 to compare with: (2, B).

        a (N, d) are the representations of the other view's atoms. The noise is decomposed into pairwise distances by
        the chain rule of GeoDiff, so prediction and target are both turned from edges into vectors (README, row 6).
        """
        pos, graph = noisy.protein.pos, noisy.graph
        alpha_bar = noisy.alpha_bar[graph.src]
        target = (noisy.clean_length - edge_lengths(graph, pos)) * (alpha_bar / (1 - alpha_bar)).sqrt()  # (E,)
        score = self.edge_scores(a, graph, pos, layers)  # (E,)
        error = edges_to_vectors(score - target, pos, graph.src, graph.dst).square().sum(-1)  # (N,)
        zero = edges_to_vectors(target, pos, graph.src, graph.dst).square().sum(-1)  # what predicting 0 would cost
        return torch.stack([segment_mean(e, noisy.protein.atom_graph, noisy.protein.num_graphs) for e in (error, zero)])

    def sequence_loss(self, protein: Protein, masked: Tensor, h: Tensor, logs: dict[str, Tensor]) -> Tensor:
        """CE(s_i^0, p(s_i^0 | P^t)) of Eq. 11 per protein (B,), averaged over its masked residues.

        h (R, d) are the representations of the other view's residues; the number of correct types is added to `logs`.
        """
        target = protein.residue_type[masked]  # (M,)
        logits = self.seq_mlp(h[masked]).to(h.dtype)  # (M, 20)
        correct = total((logits.argmax(-1) == target).float())
        logs["sequence_accuracy"] = logs.get("sequence_accuracy", 0.0) + correct
        loss = F.cross_entropy(logits, target, reduction="none")
        return segment_mean(loss, protein.residue_graph[masked], protein.num_graphs)

    def distance_layers(self) -> DistanceLayers:
        """dist_mlp and the half of struct_mlp's first layer that reads it.

        Two of their products of d x d per pair are spared: the first two layers are looked up, and the third is applied
        as one matrix with that of struct_mlp, as no activation lies between them.
        """
        *first, third = self.dist_mlp.layers
        mix = self.struct_mlp.layers[0]
        of_distance = mix.weight[:, -third.out_features :]
        looked_up = ScalarLayers.build(*first)
        return DistanceLayers(looked_up, of_distance @ third.weight, of_distance @ third.bias + mix.bias)

    def edge_scores(self, a: Tensor, graph: Graph, pos: Tensor, layers: DistanceLayers) -> Tensor:
        """m_ij = MLP(cat(a_i * a_j, MLP(d_ij))) of every edge (E,), Eq. 5 (README, row 7).

        It is symmetric in i and j and the same for all relations: computed once per unordered pair, and scattered. The
        head is most of a training step: three products of d x d per pair, of five as it is written.
        """
        pair, edge_pair = torch.unique(graph.pair, return_inverse=True)
        i, j = pair // len(pos), pair % len(pos)
        mix, *rest = self.struct_mlp.layers
        x = pair_linear(a, i, j, mix.weight[:, : a.shape[1]])  # (P, hidden)
        x.add_(layers.looked_up.relu_linear(length(pos[i] - pos[j]), layers.weight)).add_(layers.bias)
        for layer in rest:
            x = layer(F.relu(x, inplace=True))
        return x.squeeze(-1).to(pos.dtype)[edge_pair]


def counts(target: Tensor, size: int) -> Tensor:
    """How often each of `size` classes is the target (1, size): from these `means` knows the loss of a constant."""
    return torch.zeros(size, device=target.device).index_add_(0, target, torch.ones_like(target.float()))[None]


def total(x: Tensor) -> Tensor:
    """Sum and number of the entries of x as one tensor (2,): means over batches and ranks stay exact."""
    x = x.detach().flatten()
    return torch.stack([x.sum(), x.new_tensor(len(x))])
