"""Public names as a user's code has them, for a type checker: `mypy` reads this file, nobody runs it."""

from pathlib import Path

import numpy as np
import torch
from typing_extensions import assert_type  # comes with torch; in `typing` from Python 3.11 on

import siamdiff_min
from siamdiff_min import (
    ENCODERS,
    OBJECTIVES,
    SCHEDULES,
    TASKS,
    Embedder,
    Embedding,
    Encoder,
    Encoding,
    Protein,
    Ranking,
    Schedule,
    SiamDiffError,
    Structure,
    rank_mutants,
)

assert_type(siamdiff_min.list_encoders(), dict[str, str])
structure = siamdiff_min.read_structure(Path("1abc.cif.gz"))
assert_type(structure, Structure)
assert_type(siamdiff_min.bundled("5PTI_A"), Structure)
protein = Protein.pack([structure.protein, structure.protein])
assert_type(protein, Protein)
assert_type(protein.pos, torch.Tensor)
assert_type(protein.num_residues, int)

encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")
assert_type(encoder, Encoder)
assert_type(encoder.out_dim, int)
encoding: Encoding = encoder(protein.to(encoder.device))
assert_type(encoding.residue, torch.Tensor)
embedding: Embedding = encoder.embed("1abc.pdb", structure)
assert_type(embedding.mean, np.ndarray)
Embedder(encoder, "cpu").embed("1abc.pdb", include=["mean"])
encoder.save("mine.pt", epochs=3)

objective = OBJECTIVES["siamdiff"](ENCODERS["gearnet"]("atom", "tiny"), "atom")
loss, logs = objective(protein, torch.Generator().manual_seed(0))
task = TASKS["psr"](encoder)
assert_type(SCHEDULES["paper"][1], Schedule)

try:
    ranking = rank_mutants("1abc.pdb", {"A52G": 1.3}, lower_is_better=True)
except SiamDiffError as error:
    raise SystemExit(str(error)) from error
assert_type(ranking, Ranking)
assert_type(ranking.verdict, str)
assert_type(ranking.predict("A52G"), list[tuple[float, float, float]])
