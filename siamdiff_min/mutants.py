"""draft"""
import numpy as np
import torch
from .encoders.ops import MLP
from .encoders.weights import load_encoder, load_encoder_file, load_weights
from .pretraining.diffusion import hide_residues
from .protein.protein import Protein

AROUND = {True: 20.0, False: 35.0}


def log_odds(name, protein, rows, bar=lambda n: None):
    encoder, state = load_encoder(name, "cpu"), load_encoder_file(name)["seq_mlp"]
    head = MLP(encoder.out_dim, *[len(x) for key, x in state.items() if key.endswith("weight")])
    load_weights(head, state, name)
    builder, ca = encoder.builder, protein.alpha_carbons().pos
    scores, batch, places = [], [], []
    with torch.inference_mode():
        for k, i in enumerate(rows):
            near = (ca - ca[i]).norm(dim=-1) < AROUND[builder.with_elements]
            row = near[:i].sum()
            hidden = hide_residues(protein.select_residues(near), row[None], builder.conventions.backbone)
            batch.append(builder.select_nodes(hidden))
            places.append(int(row))
            if sum(p.num_atoms for p in batch) > 2000 or k == len(rows) - 1:
                packed = Protein.pack(batch)
                start = np.cumsum([0, *(p.num_residues for p in batch[:-1])])
                h = encoder(packed, builder(packed, not builder.conventions.hide_all_types)).residue[start + places]
                scores.append(head(h).log_softmax(-1))
                bar(len(batch))
                batch, places = [], []
    score = torch.cat(scores)
    return (score - score.gather(1, protein.residue_type[rows][:, None])).numpy()
