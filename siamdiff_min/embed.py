"""Representations of a user's own structures: `python -m siamdiff_min.embed STRUCTURES... --checkpoint FILE`.

In Python, `siamdiff_min.load_encoder(FILE).embed("1abc.cif.gz")`. FILE is anything with the weights of an encoder:
encoder.pt, a checkpoint, a fine-tuned model, or a released file. Representations of a structure depend on nothing but
the structure: neither on what else is in its batch, nor on the order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from .data.store import is_store
from .data.structures import Source, find_structures, read_in_time
from .files import SiamDiffError, StructureError, replacing, writing
from .protein.constants import ATOM_NAMES, ONE_LETTER
from .protein.parse import read_structure
from .protein.protein import Protein
from .protein.structure import Structure
from .training.checkpoint import build_encoder, load_encoder_file

INCLUDE = ("mean", "per_residue", "per_atom")
WINDOW = 256  # structures that are read before the next batches are made of those of similar size


@dataclass(frozen=True)
class Embedding:
    """Representations of one structure, and whose they are."""

    id: str
    mean: np.ndarray  # (d,)    mean over the residues
    per_residue: np.ndarray  # (R, d)
    per_atom: np.ndarray  # (N, d)   at residue level the atoms are the CA, so N = R
    chain: list[str]  # (R,)   author chain
    number: np.ndarray  # (R,) int   author residue number
    insertion_code: list[str]  # (R,)   "" where there is none
    sequence: str  # (R,)   one letter each
    atom_name: list[str]  # (N,)
    atom_residue: np.ndarray  # (N,) int   row in per_residue


class Embedder:
    """An encoder ready for use.

    Args:
        encoder: from `ENCODERS`; it is put into evaluation mode.
        device: where it runs.
        batch_nodes: nodes (atoms, or residues at residue level) of a batch; memory grows with it. A larger structure
            goes alone.
    """

    def __init__(self, encoder: nn.Module, device: str | torch.device = "cpu", batch_nodes: int = 8000):
        self.encoder, self.device, self.batch_nodes = encoder.to(device).eval(), torch.device(device), batch_nodes

    def embed(self, *structures) -> Embedding | list[Embedding]:
        """Embed structure files (paths), `Structure`s or single `Protein`s; one argument gives one embedding.

        Raises StructureError where a file cannot be read.
        """
        read = [(str(i), s) if isinstance(s, Protein | Structure) else (str(s), s) for i, s in enumerate(structures)]
        given = [(name, s if isinstance(s, Protein | Structure) else read_structure(s)) for name, s in read]
        results = list(self.stream([(name, _structure(s)) for name, s in given]))
        return results[0] if len(structures) == 1 else results

    def stream(self, structures: Iterable[tuple[str, Structure]]) -> Iterator[Embedding]:
        """Embeddings of (id, structure), in order. Batches are made of structures of similar size."""
        window = []
        for item in structures:
            window.append(item)
            if len(window) == WINDOW:
                yield from self._window(window)
                window = []
        yield from self._window(window)

    def _window(self, items: list[tuple[str, Structure]]) -> Iterator[Embedding]:
        views = [self.encoder.builder.view(structure.protein) for _, structure in items]
        by_size = sorted(range(len(items)), key=lambda i: views[i].num_atoms)
        results: list[Embedding | None] = [None] * len(items)
        while by_size:
            batch, nodes = [by_size.pop()], 0
            nodes = views[batch[0]].num_atoms
            while by_size and nodes + views[by_size[-1]].num_atoms <= self.batch_nodes:
                batch.append(by_size.pop())
                nodes += views[batch[-1]].num_atoms
            for i, embedding in zip(batch, self._batch([items[i] for i in batch], [views[i] for i in batch])):
                results[i] = embedding
        yield from results

    @torch.inference_mode()
    def _batch(self, items: list[tuple[str, Structure]], views: list[Protein]) -> Iterator[Embedding]:
        encoding = self.encoder(Protein.pack(views).to(self.device))
        per_atom = encoding.node.float().cpu().split([view.num_atoms for view in views])
        per_residue = encoding.residue.float().cpu().split([view.num_residues for view in views])
        for (name, structure), view, atoms, residues in zip(items, views, per_atom, per_residue):
            yield Embedding(
                id=name,
                mean=residues.mean(0).numpy(),
                per_residue=residues.numpy(),
                per_atom=atoms.numpy(),
                chain=[structure.chain_names[c] for c in view.chain.tolist()],
                number=view.residue_number.numpy(),
                insertion_code=[chr(c).strip() for c in view.insertion_code.tolist()],
                sequence="".join(ONE_LETTER[t] for t in view.residue_type.tolist()),
                atom_name=[ATOM_NAMES[a] for a in view.atom_name.tolist()],
                atom_residue=view.atom_residue.numpy(),
            )


def _structure(given: Structure | Protein) -> Structure:
    """A protein without chain names gets numbers for them."""
    if isinstance(given, Structure):
        return given
    count = int(given.chain.max()) + 1 if given.num_residues else 0
    return Structure(given, tuple(map(str, range(count))), Counter())


def load_encoder(path, device: str = "auto", batch_nodes: int = 8000) -> Embedder:
    """The encoder in a file of weights (see the module's first lines), ready to embed. Raises CheckpointError."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return Embedder(build_encoder(load_encoder_file(Path(path)), str(path)), device, batch_nodes)


# ---- the command line ------------------------------------------------------------------------------------------------


class _Reader(torch.utils.data.Dataset):
    """Parses in the loader's processes; a failure is an item like any other."""

    def __init__(self, sources: Sequence[Source]):
        self.sources = sources

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> Structure | StructureError:
        try:
            return read_in_time(self.sources[index])
        except StructureError as error:
            return error


def _ids(sources: list[Source]) -> list[str]:
    """The names of the sources, with the path where a name alone is not unique."""
    count = Counter(source.name for source in sources)
    return [source.name if count[source.name] == 1 else f"{source.path}:{source.name}" for source in sources]


def _only(embedding: Embedding, include: Sequence[str]) -> Embedding:
    """Without the large arrays that nobody asked for."""
    nothing = np.zeros((0, len(embedding.mean)), dtype=np.float32)
    return replace(embedding, **{name: nothing for name in ("per_residue", "per_atom") if name not in include})


def save(path: Path, embeddings: list[Embedding], include: Sequence[str], failures: list[StructureError]) -> None:
    """Write an .npz without pickles. Rows of structure i: `residue_offset[i]` to `residue_offset[i + 1]`.

    Raises WriteError where the disk does not take it; an older file is then unchanged.
    """
    arrays: dict[str, np.ndarray] = {"id": np.array([e.id for e in embeddings])}
    if "mean" in include:
        arrays["mean"] = np.stack([e.mean for e in embeddings])
    if "per_residue" in include or "per_atom" in include:
        arrays["residue_offset"] = np.cumsum([0, *(len(e.number) for e in embeddings)])
        arrays["residue_chain"] = np.array([c for e in embeddings for c in e.chain])
        arrays["residue_number"] = np.concatenate([e.number for e in embeddings])
        arrays["residue_insertion_code"] = np.array([c for e in embeddings for c in e.insertion_code])
        arrays["residue_type"] = np.array(list("".join(e.sequence for e in embeddings)))
    if "per_residue" in include:
        arrays["per_residue"] = np.concatenate([e.per_residue for e in embeddings])
    if "per_atom" in include:
        arrays["atom_offset"] = np.cumsum([0, *(len(e.atom_name) for e in embeddings)])
        arrays["atom_name"] = np.array([a for e in embeddings for a in e.atom_name])
        arrays["atom_residue"] = np.concatenate([e.atom_residue for e in embeddings])  # counted within the structure
        arrays["per_atom"] = np.concatenate([e.per_atom for e in embeddings])
    arrays["failed"] = np.array([error.path for error in failures], dtype=str)
    arrays["failed_reason"] = np.array([error.reason for error in failures], dtype=str)
    with replacing(path) as file:
        np.savez(file, **arrays)


def main(argv: list[str] | None = None) -> int:
    """Run one command line; 1 where a structure failed with --fail-fast, or all did."""
    parser = argparse.ArgumentParser(prog="python -m siamdiff_min.embed", description=__doc__.splitlines()[0])
    parser.add_argument("structures", nargs="+", help="files, folders and tars of PDB or mmCIF files, also .gz")
    parser.add_argument("--checkpoint", required=True, help="encoder.pt, checkpoint, fine-tuned model, released file")
    parser.add_argument("--out", default="embeddings.npz", help="the file that is written (default: embeddings.npz)")
    parser.add_argument("--include", nargs="+", choices=INCLUDE, default=["mean"], help="what of it (default: mean)")
    parser.add_argument("--batch-nodes", type=int, default=8000, help="atoms (residues) per batch (default: 8000)")
    parser.add_argument("--num-workers", type=int, default=1, help="processes that read structures (default: 1)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first structure that cannot be read")
    args = parser.parse_args(argv)
    if args.num_workers < 0 or args.batch_nodes < 1:
        parser.error("--num-workers must not be negative, --batch-nodes must be at least 1")
    out = Path(args.out)
    try:
        with writing(out):  # tried before the work, not after it
            if out.is_dir():
                raise IsADirectoryError(f"{out} is a folder")
            out.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=out.parent).close()
        embedder = load_encoder(args.checkpoint, args.device, args.batch_nodes)
        for path in filter(is_store, args.structures):
            raise StructureError(path, "a store", "embeddings are made from structure files")
        listings = [find_structures(path) for path in args.structures]
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
    sources = [source for listing in listings for source in listing.sources]
    skipped = sum((listing.reasons for listing in listings), Counter())
    loader = torch.utils.data.DataLoader(
        _Reader(sources), batch_size=None, num_workers=args.num_workers, generator=torch.Generator()
    )
    failures: list[StructureError] = []

    def good() -> Iterator[tuple[str, Structure]]:
        for name, result in zip(_ids(sources), loader):
            if isinstance(result, Structure):
                yield name, result
                continue
            if args.fail_fast:
                raise result
            failures.append(result)
            bar.update()

    embeddings = []
    with tqdm(total=len(sources), unit="protein", disable=None) as bar:
        try:
            for embedding in embedder.stream(good()):
                embeddings.append(_only(embedding, args.include))
                bar.update()
        except StructureError as error:
            sys.exit(f"error: {error}")
    for error in failures:
        print(f"failed: {error}", file=sys.stderr)
    for reason, count in sorted(skipped.items()):
        print(f"skipped: {reason} {count}", file=sys.stderr)
    seen = len(sources) + skipped.total()
    print(f"seen {seen} = embedded {len(embeddings)} + skipped {skipped.total()} + failed {len(failures)}")
    if not embeddings:
        sys.exit("error: no structure could be read")
    try:
        save(out, embeddings, args.include, failures)
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
    print(f"{args.out}: {', '.join(args.include)}, {len(embeddings[0].mean)} numbers each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
