"""The objectives of this study: DiffPreT and SiamDiff on nearly clean structures, with heads of 128.

    python train.py --plugin studies/2026-11-scale/plugin.py --method siamdiff-scale --level atom --size small ...

`HEAD` replaces --head-dim, which only the paper's two methods have. `siamdiff-clean-partner` asks one question more:
is a view denoised better from a partner whose atoms have not been moved?
"""

import os

from benchmarks.nearly_clean import SCHEDULE
from siamdiff_min import OBJECTIVES
from siamdiff_min.pretraining import SiamDiff
from siamdiff_min.pretraining.diffusion import hide_residues
from siamdiff_min.protein.conformer import GaussianConformer, TorsionalConformer
from siamdiff_min.training.config import TABLE_5

HEAD = int(os.environ.get("SCALE_HEAD", "128"))  # width of the hidden layers of the heads


class CleanPartner(SiamDiff):
    """SiamDiff whose `crossed` representations come from the first view before noise, with the same residues masked.

    The types stay hidden, as they would be the answer of the sequence loss.
    """

    def forward(self, protein, generator):
        """Alg. 1 with another line 8: both views are denoised from P_1 without noise on its coordinates."""
        views, logs = self.views(protein, generator)
        t = self.schedule.draw_t(views[0].num_proteins, generator)
        chosen = self.draw_mask(views[0], t, generator)
        noisy = [self.add_noise(view, t, chosen, generator) for view in views]
        clean = hide_residues(views[0], chosen, self.conventions.backbone)
        crossed = [self.encoder(clean, noisy[0].graph)] * len(noisy)
        structure, a = self.structure_loss(noisy, crossed)
        sequence, b = self.sequence_loss(views[0], chosen, crossed)
        return structure + sequence, logs | a | b


def build(encoder, level: str, preset: str = "paper", siamese: bool = False, kind: type = SiamDiff) -> SiamDiff:
    """One of the three objectives; the schedule is that of `benchmarks.nearly_clean` throughout."""
    conformers = {"atom": TorsionalConformer, "residue": GaussianConformer}
    return kind(encoder, conformers[level]() if siamese else None, {1: SCHEDULE}, head_dim=HEAD)


OBJECTIVES["diffpret-scale"] = build
OBJECTIVES["siamdiff-scale"] = lambda *args: build(*args, siamese=True)
OBJECTIVES["siamdiff-clean-partner"] = lambda *args: build(*args, siamese=True, kind=CleanPartner)
for name in ("diffpret-scale", "siamdiff-scale", "siamdiff-clean-partner"):
    TABLE_5[name] = TABLE_5[name.split("-")[0]]
