"""Embeddings of whatever holds structures: files, folders, archives, objects of Biopython; in batches.

`Encoder.embed` calls `Embedder.embed`, and `siamdiff embed` calls `Embedder.embed_group` for thousands of structures.
The representations of a structure do not depend on the other structures of a call, nor on their order.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from Bio.PDB.Entity import Entity
from torch import nn

from ...embedding import INCLUDE, Embedding, embed_batch, in_memory, nodes_of
from ...files import ConfigError, StructureError, first_three
from ...machine import no_memory_left
from ...protein.check import check_protein
from ...protein.constants import ATOM_NAMES, BACKBONE, RESIDUE_ATOMS, RESIDUES
from ...protein.constants import MAX_MISSING as MAX_MISSING_BACKBONE
from ...protein.protein import Protein
from ...reading.parse import name_of, read_structure
from ...reading.sources import NOT_A_STRUCTURE, find_structures, is_archive
from ...reading.structure import Structure

SIDE_CHAIN = torch.tensor([len(RESIDUE_ATOMS[residue]) - len(BACKBONE) for residue in RESIDUES])  # atoms
MAX_MISSING = 0.1  # of the side-chain atoms. The lowest cosine to the whole was 0.91 there, and 0.75 at 0.2


class Embedder:
    """An encoder of `ENCODERS` ready for use: in evaluation mode, on `device`.

    A batch has at most `batch_nodes` nodes (atoms, or residues at residue level), and memory grows with it; a larger
    structure goes alone. By default a GPU takes 8,000, and on a CPU each structure goes alone, as a batch leaves the
    cache. `amp` "bf16" is autocast to bfloat16. For atoms call `encoder(protein).node`: the layers side by side,
    `encoder.layer_dims` wide.
    """

    def __init__(self, encoder: nn.Module, device="cpu", batch_nodes: int | None = None, amp: str = "off"):
        self.encoder = encoder.to(device).eval()
        self.device = torch.device(device)
        self.amp = amp
        self.batch_nodes = batch_nodes or (1 if self.device.type == "cpu" else 8000)

    def embed(self, *inputs, include: Sequence[str] = INCLUDE[:2]) -> Embedding | list[Embedding]:
        """Embed the inputs: paths of files, folders or archives, proteins, structures, objects of Biopython, and
        lists of all these.

        One gives one embedding, many give a list in order; a folder, an archive, a list and a batch are many. `include`
        names the vectors to fill in: `mean`, `per_residue`, `per_atom`. Raises StructureError for a structure that
        cannot be read or embedded. A warning counts the structure files in folders and archives that are not read,
        such as a second file of one structure.
        """
        if unknown := set(include) - set(INCLUDE):
            raise ConfigError(f"include has {', '.join(sorted(unknown))}, which is none of {', '.join(INCLUDE)}")
        skipped = []  # (file, reason)
        named = []
        for i, (name, structure) in enumerate(structures_in(inputs, skipped)):
            if name is None:  # from memory: files were checked when they were read
                check_protein(i, structure.protein, structure.chain_names)
            named.append((str(i) if name is None else name, structure))
        results = self.embed_group(named, include)
        for result in results:
            if isinstance(result, StructureError):
                raise result
        for reason in count_reasons(skipped):
            warnings.warn(f"left out: {reason}", stacklevel=4)  # where `encoder.embed` is called
        return results if len(inputs) != 1 or is_many(inputs[0]) else results[0]

    def embed_group(
        self, structures: Sequence[tuple[str, Structure]], include: Sequence[str]
    ) -> list[Embedding | StructureError]:
        """The embedding of each (id, structure). They are computed in batches of similar size, the largest ones first.

        If a structure has no nodes of this level, coordinates or representations that are not finite, or if the memory
        is too small for it alone, its embedding is a StructureError.
        """
        views = []
        for name, structure in structures:
            try:
                views.append(nodes_of(self.encoder, name, structure.protein))
            except StructureError as error:
                views.append(error)
        found = [*views]
        batches = []
        room = 0
        usable = [i for i, view in enumerate(views) if isinstance(view, Protein)]
        for i in sorted(usable, key=lambda i: -views[i].num_atoms):
            if views[i].num_atoms > room:
                batches.append([])
                room = self.batch_nodes
            batches[-1].append(i)
            room -= views[i].num_atoms

        # A batch that the memory is too small for is halved.
        at_atoms = self.encoder.builder.level == "atom"
        while batches:
            batch = batches.pop(0)
            try:
                items = [(*structures[i], views[i]) for i in batch]
                embedded = embed_batch(self.encoder, items, include, self.amp)
            except (RuntimeError, MemoryError) as error:
                if not no_memory_left(error):
                    raise
                if len(batch) > 1:
                    batches[:0] = batch[: len(batch) // 2], batch[len(batch) // 2 :]
                else:
                    size = f"{views[batch[0]].num_residues} residues"
                    found[batch[0]] = StructureError(structures[batch[0]][0], "no memory left for it", size)
                continue
            for i, embedding in zip(batch, embedded):
                name, structure = structures[i]
                about = {"incomplete": incomplete(structure, at_atoms), "dropped": structure.dropped}
                found[i] = replace(embedding, **about)
                if not np.isfinite(embedding.mean).all():
                    found[i] = StructureError(name, "no finite representation", "numbers overflow in this encoder")
        return found


def structures_in(source, skipped: list[tuple[str, str]]) -> Iterator[tuple[str | None, Structure]]:
    """Every structure in what `embed` takes, with its name if it has any. Raises StructureError, ConfigError.

    (File, reason) of what is not read of folders and archives is added to `skipped`.
    """
    if isinstance(source, Structure):
        yield None, source
    elif isinstance(source, Protein):
        for protein in source.to("cpu").unpack():
            yield None, in_memory(protein)
    elif isinstance(source, (str, os.PathLike)):
        listing = find_structures(source)
        if not listing.sources:
            reasons = ", ".join(sorted({reason for _, reason in listing.skipped}))
            raise StructureError(source, "no structure in it", reasons)
        skipped += [row for row in listing.skipped if row[1] != NOT_A_STRUCTURE]
        yield from ((file.name, file.read()) for file in listing.sources)
    elif isinstance(source, Entity):
        yield name_of(source), read_structure(source)
    elif isinstance(source, Iterable):
        for item in source:
            yield from structures_in(item, skipped)
    else:
        accepted = "paths, proteins, structures, objects of Biopython, and lists of them"
        raise ConfigError(f"embed takes {accepted}; it was given {type(source).__name__}")


def is_many(source) -> bool:
    """Whether this input may hold several structures."""
    if isinstance(source, (str, os.PathLike)):
        return os.path.isdir(source) or is_archive(source)
    if isinstance(source, Protein):
        return source.num_proteins != 1
    return not isinstance(source, (Structure, Entity))


def incomplete(structure: Structure, atoms: bool) -> str:
    """What is missing in a structure and changes its vectors, or "". `atoms`: at atom level."""
    protein = structure.protein
    warning = []
    if atoms:
        # Side chains, and the atoms of the backbone one by one.
        expected = int(SIDE_CHAIN[protein.residue_type].sum())
        side_chain = (protein.atom_name >= len(BACKBONE)) & (protein.atom_name != ATOM_NAMES.index("OXT"))
        missing = 1 - int(side_chain.sum()) / max(expected, 1)
        if expected and missing > MAX_MISSING:
            warning.append(f"{missing:.0%} of the side-chain atoms are missing, so use --checkpoint siamdiff-residue")
        there = torch.bincount(protein.atom_name, minlength=len(BACKBONE))[: len(BACKBONE)]
        lacking = (protein.num_residues - there).tolist()
        whole = len(BACKBONE) * protein.num_residues
        if sum(lacking) > MAX_MISSING_BACKBONE * whole:
            names = ", ".join(f"{name} {count}" for name, count in zip(BACKBONE, lacking) if count)
            warning.append(f"{sum(lacking)} of {whole} backbone atoms are missing ({names})")
    lost = ("residues", "amino acids")  # not waters, ligands, hydrogens, alternatives
    left_out = [f"{reason} {count}" for reason, count in sorted(structure.dropped.items()) if reason.startswith(lost)]
    if left_out:
        warning.append(f"left out: {', '.join(left_out)}")
    return "; ".join(warning)


def count_reasons(skipped: Sequence[tuple[str, str]]) -> list[str]:
    """For every reason a line with its number of files, and the names of the first three."""
    names_of = {}
    for file, reason in skipped:
        names_of.setdefault(reason, []).append(os.path.basename(file))
    return [f"{reason} {len(names)} ({first_three(names)})" for reason, names in sorted(names_of.items())]
