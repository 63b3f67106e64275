"""The structures whose mean vector is most like that of another one: `python nearest.py embeddings.npz STRUCTURE`."""

import sys

import numpy as np

import siamdiff_min

path, structure = sys.argv[1:]
with np.load(path) as embeddings:
    names, x = embeddings["id"].tolist(), embeddings["mean"]
query = siamdiff_min.load_encoder("siamdiff-residue").embed(structure).mean  # the encoder of embeddings.npz
query, x = ((vectors - x.mean(0)) / (x.std(0) + 1e-9) for vectors in (query, x))
likeness = x @ query / (np.linalg.norm(x, axis=1) * np.linalg.norm(query))
for k in (-likeness).argsort()[:10]:
    print(f"{likeness[k]:+.2f}", names[k])
