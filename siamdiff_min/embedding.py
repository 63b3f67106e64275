"""Embeddings: the representations of proteins in memory, in numpy.

`encoder.embed` of a `Protein` needs no more. `tools/embed/embedder.py` adds files, folders and batches, and says what
is missing in a structure. The representations of a structure do not depend on the other structures of a call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from .encoders.encoder import Encoder
from .files import ConfigError, StructureError
from .names import INCLUDE
from .protein.check import check_protein
from .protein.constants import ATOM_NAMES, ONE_LETTER
from .protein.protein import Protein
from .reading.structure import Structure


@dataclass(frozen=True, eq=False, repr=False)
class Embedding:
    """Representations of one structure, and the residues and atoms that they belong to."""

    id: str
    mean: np.ndarray  # (d,)    mean over the residues
    per_residue: np.ndarray  # (R, d), or no rows if they were not asked for
    chain: list[str]  # (R,)   author chain
    residue_number: np.ndarray  # (R,) int   by the author
    insertion_code: list[str]  # (R,)   "" without one
    sequence: str  # (R,)   one letter each
    per_atom: np.ndarray  # (N, d), or no rows; of the CA atoms at residue level
    atom_name: list[str]  # (N,)
    atom_residue: np.ndarray  # (N,) int   row of the atom's residue
    plddt: float | None  # mean pLDDT of a predicted structure, None for others, nan if that cannot be told
    residue_plddt: np.ndarray  # (R,) that of every residue, nan if it has none
    incomplete: str = ""  # warning if much of the structure is missing; `siamdiff_min.Embedder` looks
    dropped: Mapping[str, int] = field(default_factory=dict)  # what the reader left out or replaced, by reason

    def __repr__(self) -> str:
        return f"Embedding({self.id!r}, R={len(self.sequence)}, d={len(self.mean)})"


def embed(encoder: Encoder, *structures, batch_nodes: int | None = None, **options):
    """What `encoder.embed` returns: by `siamdiff_min.Embedder`, or without tools/ by `embed_proteins`."""
    try:
        from . import Embedder
    except ImportError:
        return embed_proteins(encoder, *structures, **options)
    return Embedder(encoder, encoder.device, batch_nodes).embed(*structures, **options)


def embed_proteins(
    encoder: Encoder, *proteins: Protein, include: Sequence[str] = INCLUDE[:2]
) -> Embedding | list[Embedding]:
    """One protein gives one embedding; several, or a batch, give a list in order. The encoder is in evaluation mode.

    Raises StructureError for a protein that cannot be embedded, ConfigError for what is no `Protein`.
    """
    results = []
    for given in proteins:
        if not isinstance(given, Protein):
            raise ConfigError(f"without siamdiff_min/tools embed takes proteins alone, not {type(given).__name__}")
        for protein in given.to("cpu").unpack():
            name = str(len(results))
            structure = in_memory(protein)
            check_protein(name, protein, structure.chain_names)
            view = nodes_of(encoder, name, protein)
            results += embed_batch(encoder, [(name, structure, view)], include)
    alone = len(proteins) == 1 and proteins[0].num_proteins == 1
    return results[0] if alone else results


def in_memory(protein: Protein) -> Structure:
    """A protein whose chains are called by their numbers."""
    count = 1 + int(protein.chain.max()) if protein.num_residues else 0
    return Structure(protein, tuple(map(str, range(count))))


def nodes_of(encoder: Encoder, name: str, protein: Protein) -> Protein:
    """The nodes of the encoder's level. Raises StructureError: in a batch a coordinate of nan would spoil the others.

    Float64 weights get float64 coordinates.
    """
    if not protein.num_residues:
        raise StructureError(name, "no residue in it")
    try:
        view = encoder.builder.select_nodes(protein)
    except ValueError as error:
        raise StructureError(name, str(error)) from error
    weights = next(encoder.parameters()).dtype
    return replace(view, pos=view.pos.to(torch.promote_types(weights, torch.float32)))


def embed_batch(
    encoder: Encoder, batch: Sequence[tuple[str, Structure, Protein]], include: Sequence[str], amp: str = "off"
) -> list[Embedding]:
    """The embedding of each (id, structure, `nodes_of` it), computed at once where the encoder is.

    `amp` "bf16" is autocast to bfloat16. Vectors that overflow are not finite.
    """
    packed = Protein.pack([view for _, _, view in batch]).to(encoder.device)
    with torch.inference_mode(), torch.autocast(encoder.device.type, torch.bfloat16, amp == "bf16"):
        encoding = encoder(packed)
    residues = encoding.residue.float().cpu().split([view.num_residues for _, _, view in batch])
    atoms = encoding.node.float().cpu().split([view.num_atoms for _, _, view in batch])

    results = []
    for (name, structure, view), vectors, nodes in zip(batch, residues, atoms):
        no_plddt = np.full(view.num_residues, np.nan)
        embedding = Embedding(
            id=name,
            mean=vectors.mean(0).numpy(),
            per_residue=(vectors if "per_residue" in include else vectors[:0]).clone().numpy(),
            chain=[structure.chain_names[c] for c in view.chain.tolist()],
            residue_number=view.residue_number.clone().numpy(),
            insertion_code=[chr(c).strip() for c in view.insertion_code.tolist()],
            sequence="".join(ONE_LETTER[t] for t in view.residue_type.tolist()),
            per_atom=(nodes if "per_atom" in include else nodes[:0]).clone().numpy(),
            atom_name=[ATOM_NAMES[atom] for atom in view.atom_name.tolist()],
            atom_residue=view.atom_residue.clone().numpy(),
            plddt=structure.plddt,
            residue_plddt=no_plddt if structure.residue_plddt is None else structure.residue_plddt,
        )
        results.append(embedding)
    return results
