"""Representations of a user's own structures: `siamdiff embed STRUCTURES...`.

In Python, `siamdiff_min.load_encoder("siamdiff-residue").embed("1abc.cif.gz")`. An encoder is one of those of the
package, or any file with the weights of one: encoder.pt, a checkpoint, a fine-tuned model, a released file.
`encoders/embedding.py` computes; here are the command, its processes and its files.
"""

import contextlib
import csv
import hashlib
import io
import math
import os
import sys
import tempfile
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np

from . import __version__
from .data.readers import read_all, read_source
from .data.sources import Source, structure_files
from .encoders.embedding import INCLUDE, Embedder, Embedding, nothing_in
from .encoders.weights import find_weights, load_encoder
from .files import (
    ConfigError,
    Parser,
    SiamDiffError,
    StructureError,
    UnwantedError,
    checksum,
    console,
    lock,
    printable,
    replacing,
    write_file,
    writing,
)
from .machine import choose_device, cores, keep_few_plans, keep_freed_memory
from .protein.structure import Structure
from .training.ranks import Ranks

GROUP = 128  # structures whose vectors are kept together: an interrupted command loses fewer than that


@dataclass(frozen=True)
class Job:
    """What is done to every structure. It is sent to other processes, so the encoder is a file."""

    weights: Path
    device: str
    batch_nodes: int | None
    amp: str
    include: tuple[str, ...]
    each_chain: bool

    def embed(self, sources: Sequence[Source], structures: Sequence) -> list[list[Embedding | StructureError]]:
        """For every source what its structure gives: an embedding, or with `each_chain` one for every chain.

        They are called by source and chain, as errors are. Instead of a structure there may be its error.
        """
        pieces, owner = [], []
        found = [[x] if isinstance(x, StructureError) else [] for x in structures]
        for k, (source, x) in enumerate(zip(sources, structures)):
            if isinstance(x, Structure):
                chains = x.chains().items() if self.each_chain else ()
                pieces += [(f"{source}_{chain}", part) for chain, part in chains] or [(str(source), x)]
                owner += [k] * (len(pieces) - len(owner))
        embedder = ready_encoder(self.weights, self.device, self.batch_nodes, self.amp)
        for i, embedding in sorted(embedder.embed_group(pieces, self.include), key=itemgetter(0)):
            found[owner[i]].append(embedding)
        return found


@lru_cache(maxsize=1)
def ready_encoder(weights: Path, device: str, batch_nodes: int | None, amp: str) -> Embedder:
    """The encoder of a job, ready for use. A forked process has that of its parent."""
    return Embedder(load_encoder(weights, device), device, batch_nodes, amp)


def embed_source(job: Job, source: Source) -> list[Embedding | StructureError]:
    """Read a structure and embed it; in a process of one thread."""
    return job.embed([source], [read_source(source)])[0]


def embed_sources(job: Job, sources: Sequence[Source], processes: int) -> Iterator[list[Embedding | StructureError]]:
    """The embeddings of all sources, in order.

    On a CPU each process takes a structure at a time: a batch would leave the cache, and threads would wait for each
    other at every small operation. A GPU takes batches of similar size, and the processes read.
    """
    if job.device == "cpu":
        with contextlib.closing(read_all(sources, processes, partial(embed_source, job))) as results:
            yield from (x if isinstance(x, list) else [x] for x in results)  # a source that kills its process
        return
    with contextlib.closing(read_all(sources, processes)) as structures:
        for first in range(0, len(sources), GROUP):
            group = sources[first : first + GROUP]
            yield from job.embed(group, [*islice(structures, len(group))])


# ---- files -----------------------------------------------------------------------------------------------------------


class Parts:
    """The vectors of a command so far: a file for each GROUP of its structures, in a folder beside OUT.

    An interrupted command goes on after its last part. Parts of another command are removed. `command` tells them
    apart: a hash of all that decides on the vectors.
    """

    def __init__(self, out: Path, command: str):
        self.folder = out.with_name(f"{out.name}.siamdiff-parts")
        self.command = command

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Keep other commands away, which get a SiamDiffError. A folder without parts goes again."""
        mine = self.folder / "command"
        with lock(self.folder / "lock", f"another siamdiff embed writes to {self.folder}: wait for its end"):
            try:
                if not mine.exists() or mine.read_text() != self.command:
                    self.clear()
                    write_file(mine, self.command.encode())
                yield
            finally:
                if not self.files():
                    with writing(self.folder):
                        mine.unlink(missing_ok=True)
                        (self.folder / "lock").unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # it holds a file that is not ours
                        self.folder.rmdir()

    def files(self) -> list[Path]:
        """The parts that are whole."""
        return sorted(self.folder.glob("[0-9]" * 8 + ".npz"))

    def add(self, embedded: Sequence[Embedding | StructureError], include: Sequence[str]) -> None:
        """Write the next part. Raises WriteError."""
        columns, errors = defaultdict(list), [x for x in embedded if isinstance(x, StructureError)]
        for e in [x for x in embedded if isinstance(x, Embedding)]:
            rows = {"id": [e.id], "incomplete": [e.incomplete], "untold": [e.plddt is not None and math.isnan(e.plddt)]}
            rows |= {name: e.mean[None] if name == "mean" else getattr(e, name) for name in include}
            if {"per_residue", "per_atom"} & {*include}:
                rows |= {"residue_chain": e.chain, "residue_number": e.residue_number, "residue_type": list(e.sequence)}
                rows |= {"residue_insertion_code": e.insertion_code, "residue_offset": [len(e.sequence)]}
            if "per_atom" in include:
                rows |= {"atom_name": e.atom_name, "atom_residue": e.atom_residue, "atom_offset": [len(e.atom_name)]}
            for name, values in rows.items():
                columns[name].append(np.array(values))
        arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
        arrays["failed"] = np.array([error.path for error in errors], dtype=str)
        arrays["failed_reason"] = np.array([error.reason for error in errors], dtype=str)
        arrays["failed_detail"] = np.array([error.detail for error in errors], dtype=str)
        arrays["unwanted"] = np.array([isinstance(error, UnwantedError) for error in errors], dtype=bool)
        with replacing(self.folder / f"{len(self.files()):08d}.npz") as file:
            np.savez(file, **arrays)

    def clear(self) -> None:
        """Remove all parts. Raises WriteError."""
        with writing(self.folder):
            for file in self.files():
                file.unlink()


def merged(parts: Sequence[Path], files: contextlib.ExitStack) -> dict[str, np.ndarray]:
    """The columns of all parts. Vectors lie in nameless files, which `files` closes, and not in memory.

    Structure i has the rows `residue_offset[i]` to `residue_offset[i + 1]` of `per_residue`, and so on for `per_atom`.
    """
    texts = ("id", "incomplete", "failed", "failed_reason", "failed_detail")
    columns = {name: [np.zeros(0, str)] for name in texts} | {
        name: [np.zeros(0, bool)] for name in ("unwanted", "untold")
    }
    vectors, width = {}, 0
    for part in parts:
        with np.load(part, allow_pickle=False) as kept:
            for name in kept.files:
                if name not in INCLUDE:
                    columns.setdefault(name, []).append(kept[name])
                    continue
                if name not in vectors:
                    vectors[name] = files.enter_context(tempfile.TemporaryFile(dir=part.parent))  # noqa: SIM115
                width = kept[name].shape[1]
                vectors[name].write(kept[name].tobytes())
    arrays = {name: np.concatenate(values) for name, values in columns.items()}
    arrays |= {name: np.append(0, x.cumsum()) for name, x in arrays.items() if name.endswith("_offset")}
    for name, file in vectors.items():
        file.flush()
        arrays[name] = np.memmap(file, np.float32, "r").reshape(-1, width)
    return arrays


def write_table(out: Path, arrays: Mapping[str, np.ndarray], include: Sequence[str]) -> None:
    """Write an .npz without pickles, or the means as a .csv. Raises WriteError; an older file is then unchanged."""
    with replacing(out) as file:
        if out.suffix == ".npz":
            np.savez(file, **{name: x for name, x in arrays.items() if name in include or name not in INCLUDE})
        else:
            text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")
            table = csv.writer(text)
            table.writerow(["name", *(f"v{k + 1}" for k in range(arrays["mean"].shape[1]))])
            table.writerows([name, *vector] for name, vector in zip(arrays["id"], arrays["mean"]))
            text.detach()


def check_out(out: Path, include: Sequence[str]) -> None:
    """Raises ConfigError for another ending, and for a file that this command did not write: it is never replaced."""
    if out.suffix not in (".npz", ".csv") or out.is_dir():
        raise ConfigError(f"--out {out} is not the name of an .npz or .csv file")
    if out.suffix == ".csv" and [*include] != ["mean"]:
        raise ConfigError(f"--out {out}: a .csv holds the mean of every structure. For other vectors take an .npz")
    ours = not out.exists()
    with contextlib.suppress(Exception):  # what another program wrote may be anything
        if out.suffix == ".csv":
            with open(out, "rb") as file:
                ours = file.read(8) == b"name,v1,"
        else:
            with np.load(out, allow_pickle=False) as arrays:
                ours = {"id", "failed", "failed_reason"} <= {*arrays.files}
    if not ours:
        raise ConfigError(f"--out {out} exists and holds no vectors of siamdiff embed, so it is not replaced")


# ---- the command -----------------------------------------------------------------------------------------------------


def embed_structures(args: Namespace) -> int:
    """Embed the structures of a command line; returns 1 if one of its paths gave no embedding."""
    check_out(args.out, args.include)
    keep_freed_memory()
    if args.amp == "bf16":
        keep_few_plans()
    weights = find_weights(args.checkpoint)
    job = Job(weights, choose_device(args.device), args.batch_nodes, args.amp, tuple(args.include), args.each_chain)
    embedder = ready_encoder(weights, job.device, job.batch_nodes, job.amp)
    listings = [structure_files(path, args.min_plddt).listing() for path in args.structures]
    sources = list(dict.fromkeys(source for listing in listings for source in listing.sources))
    count = Counter(source.name for source in sources)
    names = {s: s.name if count[s.name] == 1 else f"{s.path}:{s.name}" for s in sources}  # no two are the same
    print(f"encoder {printable(str(weights))}", flush=True)
    parts = Parts(args.out, fingerprint(job, sources))
    with parts.open(), contextlib.ExitStack() as files:
        done, group = min(GROUP * len(parts.files()), len(sources)), []
        if done:
            print(f"going on after {done} of {len(sources)} structures", flush=True)
        with (
            contextlib.closing(embed_sources(job, sources[done:], args.num_workers or 1)) as results,
            Ranks(embedder.device).bar(total=len(sources), initial=done, unit="protein") as bar,
        ):
            for number, (source, found) in enumerate(zip(sources[done:], results), done + 1):
                failed = [x for x in found if isinstance(x, StructureError)]
                if failed and args.fail_fast:
                    raise failed[0]
                whole = [replace(x, id=names[source] + x.id[len(str(source)) :]) for x in found if x not in failed]
                group += whole + failed
                bar.update()
                if number % GROUP == 0 or number == len(sources):
                    parts.add(group, args.include)
                    group = []
        with writing(args.out):
            arrays = merged(parts.files(), files)
        errors = [arrays.pop(name).tolist() for name in ("unwanted", "failed", "failed_reason", "failed_detail")]
        untold = arrays.pop("untold").sum()
        embedded = dict(zip(arrays["id"].tolist(), arrays["incomplete"].tolist()))
        failures = [StructureError(*rest) for unwanted, *rest in zip(*errors) if not unwanted]
        arrays["failed"] = np.array([error.path for error in failures], dtype=str)
        arrays["failed_reason"] = np.array([error.reason for error in failures], dtype=str)
        if embedded:
            write_table(args.out, arrays, args.include)
        parts.clear()

    skipped = Counter(reason for listing in listings for _, reason in listing.skipped)
    skipped.update(reason for unwanted, _, reason, _ in zip(*errors) if unwanted)
    said = [f"warning: {printable(name)}: {reason}" for name, reason in embedded.items() if reason]
    said += [f"failed: {error}" for error in failures]
    said += [f"skipped: {reason} {count}" for reason, count in sorted(skipped.items())]
    if untold and args.min_plddt is not None:
        said.append(f"kept: files that name neither pLDDT nor an experiment {untold}")
    empty = [nothing_in(path, listing) for path, listing in zip(args.structures, listings) if not listing.sources]
    sys.stderr.writelines(f"{line}\n" for line in [*said, *(f"skipped: {error}" for error in empty)])
    counts = {"embedded": len(embedded), "skipped": skipped.total(), "failed": len(failures)}
    print(f"seen {sum(counts.values())} = " + " + ".join(f"{word} {count}" for word, count in counts.items()))
    if not embedded:
        raise SiamDiffError("no structure could be read")
    print(printable(f"{args.out}: {', '.join(args.include)}, {embedder.encoder.out_dim} numbers each"))
    done = {*embedded, *(name.rpartition("_")[0] for name in embedded if args.each_chain)}
    return int(not all(any(names[source] in done for source in listing.sources) for listing in listings))


def fingerprint(job: Job, sources: Sequence[Source]) -> str:
    """A hash of all that decides on the vectors: version, encoder, options, the files with their sizes and times."""
    status = {path: os.stat(path) for path in dict.fromkeys(source.path for source in sources)}
    files = [
        (*asdict(source).values(), status[source.path].st_size, status[source.path].st_mtime_ns) for source in sources
    ]
    what = (__version__, checksum(job.weights), job.device, job.amp, job.include, job.each_chain, GROUP)
    return hashlib.sha256(repr((what, files)).encode("utf-8", "surrogateescape")).hexdigest()


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns 1 if one of its paths gave no embedding, 130 after Ctrl-C."""
    parser = Parser(prog="siamdiff embed", description=__doc__.splitlines()[0])
    parser.add_argument("structures", nargs="+", help="files, folders and archives of PDB or mmCIF files, also .gz")
    text = "siamdiff-atom, or a file: encoder.pt, checkpoint, fine-tuned model, released (default: siamdiff-residue)"
    parser.add_argument("--checkpoint", default="siamdiff-residue", help=text)
    text = "file to write, .npz or .csv (default: embeddings.npz). A file that holds no vectors of ours is not replaced"
    parser.add_argument("--out", type=Path, default="embeddings.npz", help=text)
    parser.add_argument("--include", nargs="+", choices=INCLUDE, default=["mean"], help="vectors (default: mean)")
    parser.add_argument("--each-chain", action="store_true", help="vectors of every chain alone, called NAME_A")
    parser.add_argument("--min-plddt", type=float, help="leave out predicted structures with a lower mean pLDDT")
    text = "atoms (or residues) per batch (default: 8000 on a GPU; a CPU takes one structure at a time)"
    parser.add_argument("--batch-nodes", type=int, help=text)
    text = "processes, of one thread each; on a GPU they read (default: cores of this machine that are ours)"
    parser.add_argument("--num-workers", type=int, default=cores(), help=text)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="(default: auto)")
    parser.add_argument("--amp", default="off", choices=("off", "bf16"), help="autocast to bfloat16 (default: off)")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first structure that fails")
    args = parser.parse_args(argv)
    try:
        with console():
            return embed_structures(args)
    except KeyboardInterrupt:
        kept = GROUP * len(Parts(args.out, "").files())
        more = f"; {kept} structures are kept, and the same command goes on" if kept else ""
        print(f"stopped: {args.out} is not written{more}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
