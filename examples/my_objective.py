"""An objective of one's own: how many residues are near each residue."""

import torch

from siamdiff_min import OBJECTIVES
from siamdiff_min.encoders.ops import MLP
from siamdiff_min.pretraining.objective import Objective
from siamdiff_min.protein.neighbors import radius_pairs
from siamdiff_min.statistics import Mean, Variance
from siamdiff_min.training.config import PRETRAIN, TABLE_5, option
from siamdiff_min.training.presets import Settings


class ContactNumber(Objective):
    """(n_i / 10 - MLP(h_i))^2, where n_i counts the CA atoms within `near` angstrom of that of residue i."""

    def __init__(self, encoder, level, preset="paper", near=10.0):
        super().__init__(encoder)
        self.head = MLP(encoder.out_dim, encoder.out_dim, 1)
        self.near = near

    def forward(self, protein, generator):
        ca = protein.alpha_carbons()
        i, j = radius_pairs(ca.pos, ca.residue_protein, self.near)
        number = torch.bincount(torch.cat([i, j]), minlength=protein.num_residues)
        predicted = self.head(self.encoder(protein).residue).squeeze(-1)
        error = (predicted - number / 10).square()
        baseline = Variance.of(number / 10)  # the same error of the best prediction that looks at nothing
        return error.mean(), {"contact_number_error": Mean.of(error), "contact_number_error_constant": baseline}


OBJECTIVES["contact-number"] = ContactNumber
TABLE_5["contact-number"] = {level: Settings(max_length=100, batch_size=16, lr=1e-3) for level in ("atom", "residue")}
PRETRAIN["near"] = option("radius, angstrom", 10.0, type=float, only=("contact-number",))  # --near, handed to it
