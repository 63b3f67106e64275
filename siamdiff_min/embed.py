"""Representations of a user's own structures: `siamdiff-embed STRUCTURES...`.

In Python, `siamdiff_min.load_encoder("siamdiff-atom").embed("1abc.cif.gz")`. An encoder is one of those that come with
the package, or any file with the weights of one: encoder.pt, a checkpoint, a fine-tuned model, a released file. The
representations of a structure do not depend on the other structures of the command, nor on their order.
"""

import argparse
import contextlib
import csv
import io
import json
import os
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from Bio.PDB.Entity import Entity
from Bio.PDB.mmcifio import MMCIFIO
from torch import nn
from tqdm import tqdm

from . import files
from .data.store import is_store
from .data.structures import ARCHIVES, Listing, Source, find_structures, fingerprint
from .data.worker import read_all
from .encoders.weights import find_weights
from .files import ConfigError, SiamDiffError, StructureError, escape, printable
from .protein.constants import ATOM_NAMES, ONE_LETTER
from .protein.parse import read_structure
from .protein.protein import Protein
from .protein.structure import Structure
from .training.checkpoint import build_encoder, load_encoder_file
from .training.ranks import choose_device

INCLUDE = ("mean", "per_residue", "per_atom")
GROUP = 256  # structures read before they are embedded, in batches of similar size; also those of a file in a folder


@dataclass(frozen=True)
class Embedding:
    """Representations of one structure, and whose they are. What was not asked for has no rows."""

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
    """An encoder of `ENCODERS` ready for use: in evaluation mode, on `device`.

    A batch has at most `batch_nodes` nodes (atoms, or residues at residue level), and memory grows with it; a larger
    structure goes alone. `layers`, counted from 1, are those whose representations are wanted; by default all that the
    encoder hands out. Raises ConfigError for a layer that is not there.
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
        items, results = list(zip(ids(sources), sources)), []
        for i in range(0, len(items), GROUP):
            results += self.embed_group([(name, source.read()) for name, source in items[i : i + GROUP]])
        return results[0] if len(structures) == 1 and not _is_many(structures[0]) else results

    @torch.inference_mode()
    def embed_group(self, structures: list[tuple[str, Structure]], include: Sequence[str] = INCLUDE) -> list[Embedding]:
        """Embeddings of (id, structure), in order. Batches are made of structures of similar size."""
        views = [self.encoder.builder.view(structure.protein) for _, structure in structures]
        batches, room = [], 0
        for i in sorted(range(len(views)), key=lambda i: -views[i].num_atoms):
            if views[i].num_atoms > room:
                batches.append([])
                room = self.batch_nodes
            batches[-1].append(i)
            room -= views[i].num_atoms
        results, nothing = {}, np.zeros((0, len(self.columns)), np.float32)
        for batch in batches:
            encoding = self.encoder(Protein.pack([views[i] for i in batch]).to(self.device))
            atoms = encoding.node.float().cpu()[:, self.columns].split([views[i].num_atoms for i in batch])
            residues = encoding.residue.float().cpu()[:, self.columns].split([views[i].num_residues for i in batch])
            for i, of_atoms, of_residues in zip(batch, atoms, residues):
                (name, structure), view = structures[i], views[i]
                results[i] = Embedding(
                    id=name,
                    mean=of_residues.mean(0).numpy(),
                    per_residue=of_residues.numpy() if "per_residue" in include else nothing,
                    per_atom=of_atoms.numpy() if "per_atom" in include else nothing,
                    chain=[structure.chain_names[c] for c in view.chain.tolist()],
                    number=view.residue_number.numpy(),
                    insertion_code=[chr(c).strip() for c in view.insertion_code.tolist()],
                    sequence="".join(ONE_LETTER[t] for t in view.residue_type.tolist()),
                    atom_name=[ATOM_NAMES[a] for a in view.atom_name.tolist()],
                    atom_residue=view.atom_residue.numpy(),
                )
        return [results[i] for i in range(len(views))]


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
        listing = find_structures(given)
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
    kinds = "paths, (name, bytes), structures, Proteins and lists of these"
    raise TypeError(f"embed takes {kinds}, not {type(given).__name__}")


def nothing_in(path, listing: Listing) -> StructureError:
    """Why there is no structure at a path: itself no structure file, or a folder or tar without any."""
    if is_store(path):
        return StructureError(path, "a store", "embeddings are made from structure files")
    alone = len(listing.skipped) == 1 and not os.path.isdir(path)
    return StructureError(path, listing.skipped[0][1] if alone else "no structure in it")


def _is_many(given) -> bool:
    if isinstance(given, str | os.PathLike):
        return os.path.isdir(given) or os.fspath(given).endswith(ARCHIVES)
    return isinstance(given, list)


def ids(sources: Sequence[Source | Given]) -> list[str]:
    """The names of the sources, with the path where a name alone is not unique; a number where there is no name."""
    count = Counter(source.name for source in sources)
    names = [s.name if count[s.name] == 1 else f"{s.path}:{s.name}" for s in sources]
    return [name if source.name else str(i) for i, (name, source) in enumerate(zip(names, sources))]


# ---- files of embeddings -------------------------------------------------------------------------------------------


def save(path: Path, embeddings: list[Embedding], width: int, include: Sequence[str], failures: Sequence) -> None:
    """Write a .csv of the means, or an .npz without pickles, in which structure i has the rows `residue_offset[i]` to
    `residue_offset[i + 1]`. Raises WriteError; an older file is then unchanged."""

    def rows(name: str) -> np.ndarray:
        return np.concatenate([np.zeros((0, width), np.float32), *(getattr(e, name) for e in embeddings)])

    def column(name: str, kind: type = str) -> np.ndarray:
        return np.array([x for e in embeddings for x in getattr(e, name)], dtype=kind)

    arrays = {"id": np.array([e.id for e in embeddings], dtype=str)}
    if "mean" in include:
        arrays["mean"] = np.array([e.mean for e in embeddings], dtype=np.float32).reshape(-1, width)
    if "per_residue" in include or "per_atom" in include:
        arrays["residue_offset"] = np.cumsum([0, *(len(e.number) for e in embeddings)])
        arrays["residue_chain"] = column("chain")
        arrays["residue_number"] = column("number", np.int64)
        arrays["residue_insertion_code"] = column("insertion_code")
        arrays["residue_type"] = column("sequence")
    if "per_residue" in include:
        arrays["per_residue"] = rows("per_residue")
    if "per_atom" in include:
        arrays["atom_offset"] = np.cumsum([0, *(len(e.atom_name) for e in embeddings)])
        arrays["atom_name"] = column("atom_name")
        arrays["atom_residue"] = column("atom_residue", np.int64)  # counted within the structure
        arrays["per_atom"] = rows("per_atom")
    arrays["failed"] = np.array([error.path for error in failures], dtype=str)
    arrays["failed_reason"] = np.array([error.reason for error in failures], dtype=str)
    with files.replacing(path) as file:
        if path.suffix == ".csv":
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            table = csv.writer(text)
            table.writerow(["id", *range(width)])
            table.writerows([escape(e.id), *(f"{x:.9g}" for x in e.mean.tolist())] for e in embeddings)
            text.detach()
        else:
            np.savez(file, **arrays)


Outcome = tuple[list[str], list[StructureError]]  # ids and failures in a file


def read_outcome(path: Path) -> Outcome | None:
    """What is in a file of a folder; None if it is not there, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            failed = zip(arrays["failed"].tolist(), arrays["failed_reason"].tolist())
            return arrays["id"].tolist(), [StructureError(*pair) for pair in failed]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


@contextlib.contextmanager
def continued(folder: Path, plan: dict) -> Iterator[None]:
    """Hold the lock of a folder of embeddings, whose plan.json says what they are made of. Raises SiamDiffError if
    it holds anything else, or embeddings of another plan."""
    file = folder / "plan.json"
    begun = {"lock", "plan.json.tmp"}  # what a kill leaves behind before there is a plan
    with files.writing(folder):
        if folder.exists() and {path.name for path in folder.iterdir()} - begun and not file.is_file():
            raise ConfigError(f"{folder} is not empty and not a folder of embeddings; choose another --out")
    with files.lock(folder / "lock", busy=f"another process writes to {folder}"):
        with files.structure_errors(file, "not one of siamdiff-embed; choose another --out"):
            before = json.loads(file.read_bytes()) if file.exists() else plan
            other = [name for name in plan if before[name] != plan[name]]
        if other:
            raise ConfigError(f"{folder} holds embeddings of another run ({', '.join(other)}); choose another --out")
        files.write_file(file, json.dumps(plan, indent=1).encode())
        yield


def write_index(folder: Path, outcomes: dict[Path, Outcome]) -> None:
    """Write `index.tsv` (id, file, row in it) and `failures.tsv` (structure file, reason) of a finished folder."""
    index, failures = ["id\tfile\trow\n"], ["file\treason\n"]
    for path, (names, failed) in outcomes.items():
        index += [f"{escape(name)}\t{path.name}\t{row}\n" for row, name in enumerate(names)]
        failures += [f"{escape(error.path)}\t{escape(error.reason)}\n" for error in failed]
    files.write_file(folder / "index.tsv", "".join(index).encode())
    files.write_file(folder / "failures.tsv", "".join(failures).encode())


# ---- the command line ------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> int:
    """Embed the structures of a command line; returns 1 if one of its paths gave no embedding."""
    out = Path(args.out)
    folder = out.suffix not in (".npz", ".csv")
    if out.suffix == ".csv" and args.include != ["mean"]:
        raise ConfigError("a .csv holds --include mean only")
    if out.is_dir() and not folder:
        raise ConfigError(f"--out {out} is a folder")
    weights = find_weights(args.checkpoint)
    embedder = load_encoder(weights, args.device, args.batch_nodes, args.layers)
    print(f"encoder {printable(str(weights))}", flush=True)
    listings = [find_structures(path) for path in args.structures]
    sources = [source for listing in listings for source in listing.sources]
    names, width = ids(sources), len(embedder.columns)

    with contextlib.ExitStack() as stack:
        if folder:
            plan = {"checkpoint": files.sha256(weights), "layers": args.layers, "include": args.include}
            plan["structures"] = [fingerprint(path) for path in args.structures]
            stack.enter_context(continued(out, plan))
        else:
            with files.writing(out):  # to be told now, not after hours
                out.parent.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=out.parent).close()
        groups = {out / f"embeddings-{i // GROUP:06d}.npz": slice(i, i + GROUP) for i in range(0, len(names), GROUP)}
        outcomes = {path: read_outcome(path) if folder else None for path in groups}
        todo = [source for path in groups if not outcomes[path] for source in sources[groups[path]]]
        results = stack.enter_context(contextlib.closing(read_all(todo, max(args.num_workers, 1))))
        bar = stack.enter_context(tqdm(total=len(todo), unit="protein", disable=None))

        embeddings = []
        for path in [path for path in groups if not outcomes[path]]:
            good, failed = [], []
            for name, result in zip(names[groups[path]], results):
                if isinstance(result, Structure):
                    good.append((name, result))
                elif args.fail_fast:
                    raise result
                else:
                    failed.append(result)
                bar.update()
            embeddings += embedder.embed_group(good, args.include)
            outcomes[path] = [name for name, _ in good], failed
            if folder:
                save(path, embeddings, width, args.include, failed)
                embeddings = []
        embedded = [name for made, _ in outcomes.values() for name in made]
        failures = [error for _, failed in outcomes.values() for error in failed]
        if folder:
            write_index(out, outcomes)
        elif embeddings:
            save(out, embeddings, width, args.include, failures)

    for error in failures:
        print(f"failed: {error}", file=sys.stderr)
    skipped = sum((listing.reasons for listing in listings), Counter())
    for reason, count in sorted(skipped.items()):
        print(f"skipped: {reason} {count}", file=sys.stderr)
    for path, listing in zip(args.structures, listings):
        if not listing.sources:
            print(f"skipped: {nothing_in(path, listing)}", file=sys.stderr)
    seen = len(sources) + skipped.total()
    print(f"seen {seen} = embedded {len(embedded)} + skipped {skipped.total()} + failed {len(failures)}")
    if not embedded:
        raise SiamDiffError("no structure could be read")
    print(f"{printable(args.out)}: {', '.join(args.include)}, {width} numbers each")
    done = set(embedded)
    origin = [path for path, listing in zip(args.structures, listings) for _ in listing.sources]
    fruitful = {path for path, name in zip(origin, names) if name in done}
    return int(not fruitful.issuperset(args.structures))


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
    try:
        with files.console():
            return run(args)
    except KeyboardInterrupt:
        made = len(list(Path(args.out).glob("embeddings-*.npz")))
        kept = f"{made} files in {args.out} are kept, the same command goes on" if made else "nothing is kept"
        print(printable(f"stopped: {kept}"), file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
