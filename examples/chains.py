"""Every chain of `complex.pdb` alone, beside its vectors in the whole."""

import torch

import siamdiff_min

encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")
structure = siamdiff_min.read_structure("complex.pdb")
complex, names = structure.protein, structure.chain_names
with torch.inference_mode():
    together = encoder(complex).residue  # (R, d)
    for k, name in enumerate(names):
        alone = encoder(complex.select_residues(complex.chain == k)).residue
        change = torch.cosine_similarity(together[complex.chain == k], alone).mean()
        print(f"chain {name}: {len(alone)} residues, cosine to itself alone {change:.3f}")
