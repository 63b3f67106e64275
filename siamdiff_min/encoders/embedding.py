"""Embeddings: the representations of a user's own structures, on the CPU and in numpy.

`Encoder.embed` calls `Embedder.embed`, and `siamdiff-embed` calls `Embedder.embed_group` for thousands of structures.
The representations of a structure do not depend on the other structures of a call, nor on their order.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..data.sources import ARCHIVES, Listing, find_structures
from ..data.store import is_ours
from ..files import StructureError
from ..protein.constants import ATOM_NAMES, BACKBONE, ONE_LETTER, RESIDUE_ATOMS, RESIDUES
from ..protein.protein import Protein
from ..protein.structure import Structure

INCLUDE = ("mean", "per_residue")
SIDE_CHAIN = torch.tensor([len(RESIDUE_ATOMS[residue]) - len(BACKBONE) for residue in RESIDUES])  # atoms
MAX_MISSING = 0.1  # of the side-chain atoms. The lowest cosine to the whole was 0.96 there, and 0.56 at 0.2


@dataclass(frozen=True)
class Embedding:
    """Representations of one structure, and whose they are."""

    id: str
    mean: np.ndarray  # (d,)    mean over the residues
    per_residue: np.ndarray  # (R, d), or no rows if they were not asked for
    chain: list[str]  # (R,)   author chain
    residue_number: np.ndarray  # (R,) int   by the author
    insertion_code: list[str]  # (R,)   "" without one
    sequence: str  # (R,)   one letter each
    incomplete: str = ""  # the parts of the structure that the encoder did not see, if they matter


class Embedder:
    """An encoder of `ENCODERS` ready for use: in evaluation mode, on `device`.

    A batch has at most `batch_nodes` nodes (atoms, or residues at residue level), and memory grows with it; a larger
    structure goes alone. For atoms call `encoder(protein).node`: the layers side by side, `encoder.layer_dims` wide.
    """

    def __init__(self, encoder: nn.Module, device="cpu", batch_nodes: int = 8000):
        self.encoder, self.device, self.batch_nodes = encoder.to(device).eval(), torch.device(device), batch_nodes

    def embed(self, *given) -> Embedding | list[Embedding]:
        """Embed what is given: paths of files, folders or archives, and structures that `read_structure` has read.

        One file or structure gives one embedding, all else a list. Raises StructureError for a structure that cannot be
        read, or whose representations are not finite.
        """
        structures, many = [], len(given) != 1
        for one in given:
            if isinstance(one, Structure):
                structures.append((str(len(structures)), one))
            else:
                listing = find_structures(one)
                if not listing.sources:
                    raise nothing_in(one, listing)
                structures += [(source.name, source.read()) for source in listing.sources]
                many |= os.path.isdir(one) or os.fspath(one).endswith(ARCHIVES)
        results = [result for _, result in sorted(self.embed_group(structures))]
        if failed := [result for result in results if isinstance(result, StructureError)]:
            raise failed[0]
        return results if many else results[0]

    def embed_group(
        self, structures: list[tuple[str, Structure]], include: Sequence[str] = INCLUDE
    ) -> Iterator[tuple[int, Embedding | StructureError]]:
        """Embeddings of (id, structure) with their places in the list, by batches of similar size, the largest first.

        A StructureError takes the place of one that is not finite.
        """
        views = [self.encoder.builder.select_nodes(structure.protein) for _, structure in structures]
        batches, room = [], 0
        for i in sorted(range(len(views)), key=lambda i: -views[i].num_atoms):
            if views[i].num_atoms > room:
                batches.append([])
                room = self.batch_nodes
            batches[-1].append(i)
            room -= views[i].num_atoms
        for batch in batches:
            with torch.inference_mode():
                encoding = self.encoder(Protein.pack([views[i] for i in batch]).to(self.device))
            residues = encoding.residue.float().cpu().split([views[i].num_residues for i in batch])
            for i, vectors in zip(batch, residues):
                (name, structure), view = structures[i], views[i]
                embedding = Embedding(
                    id=name,
                    mean=vectors.mean(0).numpy(),
                    per_residue=(vectors if "per_residue" in include else vectors[:0]).clone().numpy(),
                    chain=[structure.chain_names[c] for c in view.chain.tolist()],
                    residue_number=view.residue_number.numpy(),
                    insertion_code=[chr(c).strip() for c in view.insertion_code.tolist()],
                    sequence="".join(ONE_LETTER[t] for t in view.residue_type.tolist()),
                    incomplete=incomplete(structure, atoms=self.encoder.builder.with_elements),
                )
                overflow = StructureError(name, "no finite representation", "numbers overflow in this encoder")
                yield i, embedding if np.isfinite(embedding.mean).all() else overflow


def incomplete(structure: Structure, atoms: bool) -> str:
    """The missing parts of a structure that change its representation; "" if it is complete. `atoms`: at atom level."""
    protein, found = structure.protein, []
    expected = int(SIDE_CHAIN[protein.residue_type].sum())
    side_chain = (protein.atom_name >= len(BACKBONE)) & (protein.atom_name != ATOM_NAMES.index("OXT"))
    missing = 1 - int(side_chain.sum()) / max(expected, 1)
    if atoms and expected and missing > MAX_MISSING:
        found.append(f"{missing:.0%} of the side-chain atoms are missing, so use --checkpoint siamdiff-residue")
    left_out = {reason: count for reason, count in structure.dropped.items() if reason.startswith("residues")}
    if left_out:
        found.append("left out: " + ", ".join(f"{reason} {count}" for reason, count in sorted(left_out.items())))
    return "; ".join(found)


def nothing_in(path, listing: Listing) -> StructureError:
    """An error that says why a path holds no structure: a file of another kind, or a folder or archive without any."""
    if is_ours(path):
        return StructureError(path, "a store", "embeddings are made from structure files")
    alone = len(listing.skipped) == 1 and not os.path.isdir(path)
    return StructureError(path, listing.skipped[0][1] if alone else "no structure in it")
