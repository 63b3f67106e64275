"""Representations of a user's own structures: `siamdiff-embed STRUCTURES...`.

In Python, `siamdiff_min.load_encoder("siamdiff-atom").embed("1abc.cif.gz")`. An encoder is one of those that come with
the package, or any file with the weights of one: encoder.pt, a checkpoint, a fine-tuned model, a released file. The
representations of a structure do not depend on the other structures of the command, nor on their order.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .data.pool import read_all
from .data.sources import ARCHIVES, Listing, find_structures
from .data.store import is_ours
from .encoders.weights import find_weights
from .files import ConfigError, SiamDiffError, StructureError, console, printable, replacing, writing
from .protein.constants import ATOM_NAMES, BACKBONE, ONE_LETTER, RESIDUE_ATOMS, RESIDUES
from .protein.protein import Protein
from .protein.structure import Structure
from .training import checkpoint
from .training.ranks import Ranks, catch_signals, choose_device, keep_freed_memory

INCLUDE = ("mean", "per_residue")
GROUP = 256  # structures read before they are embedded, in batches of similar size
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


def load_encoder(path, device: str = "auto", batch_nodes: int = 8000) -> Embedder:
    """The encoder of a name or in a file of weights (see the module's first lines), ready to embed.

    Raises CheckpointError for another file, ConfigError for a GPU that is not there.
    """
    return Embedder(checkpoint.load_encoder(path), choose_device(device), batch_nodes)


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


class Table:
    """Embeddings on their way into an .npz without pickles. Vectors wait in nameless files beside it, not in memory.

    Structure i has the rows `residue_offset[i]` to `residue_offset[i + 1]` of `per_residue`.
    """

    def __init__(self, path: Path, include: Sequence[str], width: int):
        self.path, self.width, self.files = path, width, contextlib.ExitStack()  # to be closed by who made the table
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            files = [self.files.enter_context(tempfile.TemporaryFile(dir=path.parent)) for _ in include]  # noqa: SIM115
        self.vectors = dict(zip(include, files))
        self.ids, self.incomplete, self.residues = [], [], []  # one entry for each structure

    def add(self, e: Embedding) -> None:
        """Add a structure. Raises WriteError."""
        with writing(self.path):
            for name, file in self.vectors.items():
                file.write(getattr(e, name).tobytes())
        self.ids.append(e.id)
        self.incomplete.append(e.incomplete)
        if "per_residue" in self.vectors:
            self.residues.append([np.array(x) for x in (e.chain, e.residue_number, e.insertion_code, list(e.sequence))])

    def write(self, failures: Sequence[StructureError]) -> None:
        """Write the .npz; it needs a structure. Raises WriteError; an older file is then unchanged."""
        arrays = {"id": np.array(self.ids), "incomplete": np.array(self.incomplete)}
        if self.residues:
            columns = [np.concatenate(x) for x in zip(*self.residues)]
            arrays["residue_offset"] = np.cumsum([0, *(len(chain) for chain, *_ in self.residues)])
            arrays |= zip(("residue_chain", "residue_number", "residue_insertion_code", "residue_type"), columns)
        arrays["failed"] = np.array([error.path for error in failures], dtype=str)
        arrays["failed_reason"] = np.array([error.reason for error in failures], dtype=str)
        with replacing(self.path) as file:
            for name, vectors in self.vectors.items():
                vectors.flush()
                arrays[name] = np.memmap(vectors, np.float32, "r").reshape(-1, self.width)
            np.savez(file, **arrays)


def run(args: argparse.Namespace) -> int:
    """Embed the structures of a command line; returns 1 if one of its paths gave no embedding."""
    if args.out.suffix != ".npz" or args.out.is_dir():
        raise ConfigError(f"--out {args.out} is not the name of an .npz file")
    keep_freed_memory()
    weights = find_weights(args.checkpoint)
    embedder = load_encoder(weights, args.device, args.batch_nodes)
    listings = [find_structures(path) for path in args.structures]
    sources = list(dict.fromkeys(source for listing in listings for source in listing.sources))
    count = Counter(source.name for source in sources)
    names = {s: s.name if count[s.name] == 1 else f"{s.path}:{s.name}" for s in sources}  # no two are the same
    group, failures, table = [], [], Table(args.out, args.include, embedder.encoder.out_dim)
    bar = Ranks(embedder.device).bar(total=len(sources), unit="protein")

    def moved(count: int = 1) -> None:
        bar.update(count)
        if caught:
            raise KeyboardInterrupt

    results = table.files.enter_context(contextlib.closing(read_all(sources, max(args.num_workers, 1))))
    with contextlib.suppress(KeyboardInterrupt), catch_signals() as caught, table.files, bar:
        print(f"encoder {printable(str(weights))}", flush=True)
        for number, (source, result) in enumerate(zip(sources, results), 1):
            if isinstance(result, StructureError):
                failures.append(result)
                moved()
            else:
                group.append((names[source], result))
                moved(0)
            if len(group) == GROUP or number == len(sources):
                embedded = {}
                for i, result in embedder.embed_group(group, args.include):
                    embedded[i] = result
                    moved()
                for _, result in sorted(embedded.items()):
                    table.add(result) if isinstance(result, Embedding) else failures.append(result)
                group = []
            if failures and args.fail_fast:
                raise failures[0]
        if table.ids:
            table.write(failures)
            caught.clear()  # too late to stop
    if caught:
        stopped = f"stopped after {bar.n} of {len(sources)} structures: {args.out} is not written"
        print(printable(stopped), file=sys.stderr)
        return 128 + caught[0]

    skipped = Counter(reason for listing in listings for _, reason in listing.skipped)
    said = [f"warning: {printable(name)}: {reason}" for name, reason in zip(table.ids, table.incomplete) if reason]
    said += [f"failed: {error}" for error in failures]
    said += [f"skipped: {reason} {count}" for reason, count in sorted(skipped.items())]
    empty = [nothing_in(path, listing) for path, listing in zip(args.structures, listings) if not listing.sources]
    sys.stderr.writelines(f"{line}\n" for line in [*said, *(f"skipped: {error}" for error in empty)])
    seen = len(sources) + skipped.total()
    print(f"seen {seen} = embedded {len(table.ids)} + skipped {skipped.total()} + failed {len(failures)}")
    if not table.ids:
        raise SiamDiffError("no structure could be read")
    print(printable(f"{args.out}: {', '.join(args.include)}, {table.width} numbers each"))
    done = set(table.ids)
    return int(not all(any(names[source] in done for source in listing.sources) for listing in listings))


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns 1 if one of its paths gave no embedding, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="siamdiff-embed", description=__doc__.splitlines()[0])
    parser.add_argument("structures", nargs="+", help="files, folders and archives of PDB or mmCIF files, also .gz")
    text = "siamdiff-residue, or a file: encoder.pt, checkpoint, fine-tuned model, released (default: siamdiff-atom)"
    parser.add_argument("--checkpoint", default="siamdiff-atom", help=text)
    parser.add_argument("--out", type=Path, default="embeddings.npz", help="file to write (default: embeddings.npz)")
    parser.add_argument("--include", nargs="+", choices=INCLUDE, default=["mean"], help="vectors (default: mean)")
    parser.add_argument("--batch-nodes", type=int, default=8000, help="atoms (or residues) per batch (default: 8000)")
    parser.add_argument("--num-workers", type=int, default=1, help="processes that read structures (default: 1)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="(default: auto)")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first structure that fails")
    args = parser.parse_args(argv)
    try:
        with console():
            return run(args)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
