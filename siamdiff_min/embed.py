"""Representations of a user's own structures: `siamdiff-embed STRUCTURES...`.

In Python, `siamdiff_min.load_encoder("siamdiff-atom").embed("1abc.cif.gz")`. An encoder is one of those that come with
the package, or any file with the weights of one: encoder.pt, a checkpoint, a fine-tuned model, a released file.
Representations of a structure depend on nothing but the structure: neither on what else is in its batch, nor on the
order.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from Bio.PDB.Entity import Entity
from Bio.PDB.mmcifio import MMCIFIO
from torch import nn
from tqdm import tqdm

from .data.store import is_store
from .data.structures import Listing, Source, find_structures, fingerprint
from .data.worker import read_all
from .embeddings import GROUP, INCLUDE, Embedding, check_place, read_outcome, save, start_or_continue, write_index
from .encoders.weights import find_weights
from .files import ConfigError, SiamDiffError, StructureError, lock, printable, sha256, tolerant_output
from .protein.constants import ATOM_NAMES, ONE_LETTER
from .protein.parse import read_structure
from .protein.protein import Protein
from .protein.structure import Structure
from .training.checkpoint import build_encoder, load_encoder_file
from .training.ranks import choose_device


class Embedder:
    """An encoder ready for use.

    Args:
        encoder: from `ENCODERS`; it is put into evaluation mode.
        device: where it runs.
        batch_nodes: nodes (atoms, or residues at residue level) of a batch; memory grows with it. A larger structure
            goes alone.
        layers: whose representations are wanted, counted from 1; all that the encoder hands out by default.
    """

    def __init__(self, encoder: nn.Module, device="cpu", batch_nodes: int = 8000, layers: Sequence[int] = ()):
        self.encoder, self.device, self.batch_nodes = encoder.to(device).eval(), torch.device(device), batch_nodes
        widths = encoder.layer_dims
        if not set(layers) <= set(range(1, len(widths) + 1)):
            raise ConfigError(f"--layers {' '.join(map(str, layers))}: this encoder hands out 1 to {len(widths)}")
        parts = torch.arange(sum(widths)).split(widths)
        self.columns = torch.cat([parts[i - 1] for i in layers] or parts)  # (d,)

    def embed(self, *structures) -> Embedding | list[Embedding]:
        """Embed structures: paths of files, folders or tars; (name, bytes of a file); structures of Biopython;
        `Structure`s; single `Protein`s; lists of these. One structure gives one embedding, all else a list.

        Raises StructureError for what cannot be read, TypeError for what no structure can be made of.
        """
        sources = find(list(structures))
        results = list(self.stream((name, source.read()) for name, source in zip(ids(sources), sources)))
        return results[0] if len(structures) == 1 and not _is_many(structures[0]) else results

    def stream(self, structures: Iterable[tuple[str, Structure]], include: Sequence[str] = INCLUDE):
        """Embeddings of (id, structure), in order. Batches are made of structures of similar size."""
        structures = iter(structures)
        while window := list(islice(structures, GROUP)):
            yield from self._window(window, include)

    def _window(self, items: list[tuple[str, Structure]], include: Sequence[str]) -> list[Embedding]:
        views = [self.encoder.builder.view(structure.protein) for _, structure in items]
        by_size = sorted(range(len(items)), key=lambda i: views[i].num_atoms)
        results: dict[int, Embedding] = {}
        while by_size:
            batch = [by_size.pop()]
            nodes = views[batch[0]].num_atoms
            while by_size and nodes + views[by_size[-1]].num_atoms <= self.batch_nodes:
                batch.append(by_size.pop())
                nodes += views[batch[-1]].num_atoms
            results |= zip(batch, self._batch([items[i] for i in batch], [views[i] for i in batch], include))
        return [results[i] for i in range(len(items))]

    @torch.inference_mode()
    def _batch(self, items: list[tuple[str, Structure]], views: list[Protein], include) -> Iterator[Embedding]:
        encoding = self.encoder(Protein.pack(views).to(self.device))
        per_atom = encoding.node.float().cpu()[:, self.columns].split([view.num_atoms for view in views])
        per_residue = encoding.residue.float().cpu()[:, self.columns].split([view.num_residues for view in views])
        for (name, structure), view, atoms, residues in zip(items, views, per_atom, per_residue):
            yield Embedding(
                id=name,
                mean=residues.mean(0).numpy(),
                per_residue=residues.numpy() if "per_residue" in include else np.zeros((0, len(self.columns))),
                per_atom=atoms.numpy() if "per_atom" in include else np.zeros((0, len(self.columns))),
                chain=[structure.chain_names[c] for c in view.chain.tolist()],
                number=view.residue_number.numpy(),
                insertion_code=[chr(c).strip() for c in view.insertion_code.tolist()],
                sequence="".join(ONE_LETTER[t] for t in view.residue_type.tolist()),
                atom_name=[ATOM_NAMES[a] for a in view.atom_name.tolist()],
                atom_residue=view.atom_residue.numpy(),
            )


def load_encoder(path, device: str = "auto", batch_nodes: int = 8000, layers: Sequence[int] = ()) -> Embedder:
    """The encoder of a name or in a file of weights (see the module's first lines), ready to embed.

    Raises CheckpointError for another file, ConfigError for a GPU or layers that are not there.
    """
    encoder = build_encoder(load_encoder_file(Path(path)), str(path))
    return Embedder(encoder, choose_device(device), batch_nodes, layers)


# ---- what can be embedded ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """A structure that has been read already, in the place of a `Source`."""

    name: str
    structure: Structure
    path: str = "given"

    def read(self) -> Structure:
        return self.structure


def find(given) -> list[Source | Given]:
    """All structures in an argument of `Embedder.embed`; see there."""
    if isinstance(given, list):
        return [source for item in given for source in find(item)]
    if isinstance(given, str | os.PathLike):
        listing = find_files(given)
        if not listing.sources:
            raise nothing_in(given, listing)
        return listing.sources
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], bytes):
        return [Given(Path(given[0]).name, read_structure(*given))]
    if isinstance(given, Entity):  # of Biopython
        text, writer = io.StringIO(), MMCIFIO()
        writer.set_structure(given)
        writer.save(text)
        return [Given(str(given.id), read_structure(given.id, text.getvalue().encode()))]
    if isinstance(given, Protein):
        if given.num_graphs != 1 or not given.num_residues:
            found = f"{given.num_graphs} proteins, {given.num_residues} residues"
            raise StructureError("Protein", "not one protein with residues", found)
        chains = tuple(map(str, range(int(given.chain.max()) + 1)))
        given = Structure(given, chains, Counter())
    if isinstance(given, Structure):
        return [Given("", given)]
    raise TypeError(
        "embed takes paths, (name, bytes), structures of Biopython, Structures, Proteins and lists of these, "
        f"not {type(given).__name__}"
    )


def find_files(path) -> Listing:
    """The structures at a path of a user's. Raises StructureError if there is nothing, or a store."""
    if is_store(path):
        raise StructureError(path, "a store", "embeddings are made from structure files")
    return find_structures(path)


def nothing_in(path, listing: Listing) -> StructureError:
    """Why there is no structure at a path: itself no structure file, or a folder or tar without any."""
    alone = len(listing.skipped) == 1 and not os.path.isdir(path)
    return StructureError(path, listing.skipped[0][1] if alone else "no structure in it")


def _is_many(given) -> bool:
    if isinstance(given, str | os.PathLike):
        return os.path.isdir(given) or os.fspath(given).endswith(".tar")
    return isinstance(given, list)


def ids(sources: Sequence[Source | Given]) -> list[str]:
    """The names of the sources, with the path where a name alone is not unique; a number where there is no name."""
    count = Counter(source.name for source in sources)
    names = [s.name if count[s.name] == 1 else f"{s.path}:{s.name}" for s in sources]
    return [name if source.name else str(i) for i, (name, source) in enumerate(zip(names, sources))]


# ---- the command line ------------------------------------------------------------------------------------------------


def write(path: Path, embedder: Embedder, read: Iterable, args: argparse.Namespace, bar: tqdm) -> tuple[list, list]:
    """Embed what was read, pairs (id, `Structure` or StructureError), into one file; returns ids and failures.

    Raises the first failure with --fail-fast. A single file that would hold nothing is not written.
    """
    failed: list[StructureError] = []

    def good() -> Iterator[tuple[str, Structure]]:
        for name, result in read:
            if isinstance(result, Structure):
                yield name, result
            elif args.fail_fast:
                raise result
            else:
                failed.append(result)
            bar.update()

    embeddings = list(embedder.stream(good(), args.include))
    if embeddings or path != Path(args.out):
        save(path, embeddings, len(embedder.columns), args.include, failed)
    return [embedding.id for embedding in embeddings], failed


def run(args: argparse.Namespace) -> int:
    """Embed the structures of a command line; returns 1 if one of its paths gave no embedding."""
    out = Path(args.out)
    folder = out.suffix not in (".npz", ".csv")
    if args.num_workers < 0 or args.batch_nodes < 1:
        raise ConfigError("--num-workers must not be negative, --batch-nodes must be at least 1")
    if out.suffix == ".csv" and args.include != ["mean"]:
        raise ConfigError("a .csv holds --include mean only")
    check_place(out, folder)
    embedder = load_encoder(args.checkpoint, args.device, args.batch_nodes, args.layers)
    print(f"encoder {printable(args.checkpoint)}: {printable(str(find_weights(args.checkpoint)))}", flush=True)
    listings = [find_files(path) for path in args.structures]
    sources = [source for listing in listings for source in listing.sources]
    names = ids(sources)
    size = GROUP if folder else max(len(sources), 1)
    groups = {
        out / f"embeddings-{i // size:06d}.npz" if folder else out: range(i, min(i + size, len(sources)))
        for i in range(0, len(sources), size)
    }

    with contextlib.ExitStack() as stack:
        finished = {}
        if folder:
            stack.enter_context(lock(out / "lock", busy=f"another process writes to {out}"))
            plan = {"checkpoint": sha256(find_weights(args.checkpoint)), "layers": args.layers, "include": args.include}
            start_or_continue(out, plan | {"structures": [fingerprint(path) for path in args.structures]})
            finished = {path: outcome for path in groups if (outcome := read_outcome(path))}
        todo = [sources[i] for path, group in groups.items() if path not in finished for i in group]
        results = stack.enter_context(contextlib.closing(read_all(todo, args.num_workers or 1)))
        bar = stack.enter_context(tqdm(total=len(todo), unit="protein", disable=None))

        embedded, failures = [], []
        for path, group in groups.items():
            if path not in finished:
                read = zip((names[i] for i in group), results)
                finished[path] = write(path, embedder, read, args, bar)
            embedded += finished[path][0]
            failures += finished[path][1]
        if folder:
            write_index(out, list(groups))

    for error in failures:
        print(f"failed: {error}", file=sys.stderr)
    skipped = sum((listing.reasons for listing in listings), Counter())
    for reason, count in sorted(skipped.items()):
        print(f"skipped: {reason} {count}", file=sys.stderr)
    left, named, complete = set(names) - set(embedded), iter(names), True
    for path, listing in zip(args.structures, listings):
        if left.issuperset(islice(named, len(listing.sources))):
            complete = False
            if not listing.sources:
                print(f"skipped: {nothing_in(path, listing)}", file=sys.stderr)
    seen = len(sources) + skipped.total()
    print(f"seen {seen} = embedded {len(embedded)} + skipped {skipped.total()} + failed {len(failures)}")
    if not embedded:
        raise SiamDiffError("no structure could be read")
    print(f"{printable(args.out)}: {', '.join(args.include)}, {len(embedder.columns)} numbers each")
    return int(not complete)


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns 1 if one of its paths gave no embedding, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="siamdiff-embed", description=__doc__.splitlines()[0])
    parser.add_argument("structures", nargs="+", help="files, folders and tars of PDB or mmCIF files, also .gz")
    text = "siamdiff-residue, or a file: encoder.pt, checkpoint, fine-tuned model, released (default: siamdiff-atom)"
    parser.add_argument("--checkpoint", default="siamdiff-atom", help=text)
    parser.add_argument("--out", default="embeddings.npz", help="X.npz, X.csv (means only), or for large sets a folder")
    parser.add_argument("--include", nargs="+", choices=INCLUDE, default=["mean"], help="what of it (default: mean)")
    parser.add_argument("--layers", nargs="+", type=int, default=[], help="of which layers, from 1 (default: all)")
    parser.add_argument("--batch-nodes", type=int, default=8000, help="atoms (residues) per batch (default: 8000)")
    parser.add_argument("--num-workers", type=int, default=1, help="processes that read structures (default: 1)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first structure that cannot be read")
    args = parser.parse_args(argv)
    tolerant_output()
    try:
        return run(args)
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        made = len(list(Path(args.out).glob("embeddings-*.npz")))
        kept = (
            f"{made} files are kept in {args.out}, and the same command goes on"
            if made
            else "nothing is kept; --out FOLDER keeps what is made"
        )
        print(printable(f"stopped: {kept}"), file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
