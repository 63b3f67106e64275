"""The structures whose mean vector is most like that of another one: `python nearest.py embeddings.npz STRUCTURE`."""

import os
import sys

import numpy as np

import siamdiff_min
from siamdiff_min.encoders.weights import find_weights
from siamdiff_min.files import checksum

FEW = 20  # structures: below, their mean and spread say more about these few than about proteins

if len(sys.argv) != 3 or not sys.argv[1].endswith(".npz"):
    sys.exit("usage: python nearest.py embeddings.npz STRUCTURE, with the .npz of siamdiff embed (a .csv is not read)")
path, structure = sys.argv[1:]
for given in (path, structure):
    if not os.path.exists(given):
        sys.exit(f"{given}: no such file; STRUCTURE is a file, not a name in {path}")
with np.load(path) as embeddings:
    names, x = embeddings["id"].tolist(), embeddings["mean"]
    encoder = "siamdiff-residue"
    if "encoder" in embeddings:
        encoder, written, _ = embeddings["encoder"].tolist()
        if checksum(find_weights(encoder)) != written:
            sys.exit(f"{encoder} is another encoder now than the one that wrote {path}: embed its structures again")
    else:
        print(f"{path}, of an older version, names no encoder, so {encoder} is taken", file=sys.stderr)

query = siamdiff_min.load_encoder(encoder).embed(structure).mean
if len(x) < FEW:
    print(f"{len(x)} structures are too few to standardise by: plain cosines", file=sys.stderr)
else:
    query, x = ((vectors - x.mean(0)) / (x.std(0) + 1e-9) for vectors in (query, x))
likeness = x @ query / (np.linalg.norm(x, axis=1) * np.linalg.norm(query))
for k in (-likeness).argsort()[:10]:
    print(f"{likeness[k]:+.2f}", names[k])
