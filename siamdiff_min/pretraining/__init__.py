"""Pre-training objectives. `--method` chooses from `OBJECTIVES`, `--ablation` from `ABLATIONS`.

Table 1 and Table 2 compare the objectives, Table 3 the ablations. App. A (related work) and App. E (sizes of data) need
no code of their own.
"""

from collections.abc import Callable
from dataclasses import replace

from ..conventions import CONVENTIONS
from ..encoders.encoder import Encoder
from ..files import ConfigError
from ..names import ABLATIONS, STAGED
from ..protein.conformer import GaussianConformer, TorsionalConformer
from .contrast import MultiviewContrast
from .diffusion import SCHEDULES, Schedule
from .objective import Objective
from .other_diffusion import ScoreMatching, TorsionalDiffusion
from .self_prediction import Geometry, ResidueTypes, SelfPrediction
from .siamdiff import SiamDiff

__all__ = ["ABLATIONS", "OBJECTIVES", "SCHEDULES", "STAGED", "Schedule", "SiamDiff"]


def schedules_of(preset: str) -> dict[int, Schedule]:
    """The schedules of both stages. Raises ConfigError for a preset of a plugin that has none."""
    if preset not in SCHEDULES:
        raise ConfigError(f"preset {preset} has no noise: SCHEDULES[{preset!r}] = {{1: Schedule(...), 2: ...}} adds it")
    return SCHEDULES[preset]


def trained_noise(method: str, preset: str, ablation: str = "none") -> dict[int, Schedule]:
    """The schedule of every stage that a method trains on, as its ablation changes it."""
    schedules = schedules_of(preset)
    if method == "torsional":  # every t, and one loss
        steps = schedules[1].steps
        return {1: replace(schedules[1], t_range=(1, steps), weight_structure=1.0, weight_sequence=0.0)}
    changes = ABLATIONS[ablation]
    if "t" in changes:
        schedules = dict.fromkeys(schedules, schedules[1])  # one t of one schedule in both stages
    return {stage: schedule.ablated(**changes) for stage, schedule in schedules.items()}


def build_siamdiff(
    encoder: Encoder,
    level: str,
    preset: str = "paper",
    ablation: str = "none",
    head_dim: int | None = None,
    siamese: bool = True,
) -> SiamDiff:
    """SiamDiff (Sec. 4): two conformers, each denoised from the other's representations; DiffPreT (Sec. 3) has one."""
    if level != encoder.builder.level:
        raise ConfigError(f"the encoder is of {encoder.builder.level} level, the objective of {level} level")
    conventions = CONVENTIONS[preset]
    if ablation == "no-clash-check":
        if not siamese or level != "atom":
            raise ConfigError(f"--ablation {ablation} is for siamdiff at atom level: only there side chains may clash")
        conventions = replace(conventions, clash_check=False)
    simulated = {"atom": TorsionalConformer(conventions=conventions), "residue": GaussianConformer()}[level]
    stages = trained_noise("siamdiff", preset, ablation)
    held_out = None
    if "t" in ABLATIONS[ablation]:
        held_out = schedules_of(preset)  # all of it, as of the whole method: so that losses can be compared
    return SiamDiff(encoder, simulated if siamese else None, stages, conventions, head_dim, held_out)


def build_diffpret(
    encoder: Encoder, level: str, preset: str = "paper", ablation: str = "none", head_dim: int | None = None
) -> SiamDiff:
    """DiffPreT (Sec. 3): one view. "w/o MI max." in Table 3."""
    return build_siamdiff(encoder, level, preset, ablation, head_dim, siamese=False)


def build_self_prediction(types: bool = False, geometry: str | None = None) -> Callable[..., SelfPrediction]:
    """A function that builds residue type, distance, angle or dihedral prediction, or a combination (App. D, F)."""

    def build(encoder: Encoder, level: str, preset: str = "paper") -> SelfPrediction:
        conventions = CONVENTIONS[preset]
        residue_types = ResidueTypes(encoder.out_dim, conventions) if types else None
        hidden_edges = Geometry(encoder.out_dim, geometry, conventions) if geometry else None
        return SelfPrediction(encoder, residue_types, hidden_edges)

    return build


def build_multiview(encoder: Encoder, level: str, preset: str = "paper") -> MultiviewContrast:
    """Multiview contrast (App. D)."""
    return MultiviewContrast(encoder, CONVENTIONS[preset])


def build_score_matching(encoder: Encoder, level: str, preset: str = "paper") -> ScoreMatching:
    """Score matching on distances (App. D)."""
    return ScoreMatching(encoder)


def build_torsional(encoder: Encoder, level: str, preset: str = "paper") -> TorsionalDiffusion:
    """Torsional diffusion of side chains (App. G), at every t of the schedule of DiffPreT."""
    if level != "atom":
        raise ConfigError("torsional diffusion exists at atom level only: CA atoms alone have no side-chain torsions")
    return TorsionalDiffusion(encoder, trained_noise("torsional", preset)[1])


OBJECTIVES: dict[str, Callable[..., Objective]] = {  # (encoder, level, preset) -> objective; the first two take options
    "diffpret": build_diffpret,
    "siamdiff": build_siamdiff,
    "residue-type": build_self_prediction(types=True),
    "distance": build_self_prediction(geometry="distance"),
    "angle": build_self_prediction(geometry="angle"),
    "dihedral": build_self_prediction(geometry="dihedral"),
    "residue-type+distance": build_self_prediction(types=True, geometry="distance"),
    "residue-type+angle": build_self_prediction(types=True, geometry="angle"),
    "residue-type+dihedral": build_self_prediction(types=True, geometry="dihedral"),
    "multiview": build_multiview,
    "score-matching": build_score_matching,
    "torsional": build_torsional,
}
