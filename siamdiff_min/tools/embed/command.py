"""Representations of a user's own structures: `siamdiff embed STRUCTURES...`.

In Python, `siamdiff_min.load_encoder("siamdiff-residue").embed("1abc.cif.gz")`. An encoder is one of those of the
package, or any file with the weights of one: encoder.pt, a checkpoint, a fine-tuned model, a released file.
`embedder.py` computes, `vector_files.py` writes; here are the command and its processes.
"""

import contextlib
import hashlib
import itertools
import os
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from ... import __version__
from ...embedding import Embedding
from ...encoders.weights import find_weights, load_encoder
from ...files import SiamDiffError, StructureError, UnwantedError, checksum, import_plugins, printable
from ...machine import choose_device, cores, keep_few_plans, keep_freed_memory, progress
from ...reading.pool import read_all, read_source
from ...reading.sources import Source
from ...reading.structure import Structure, left_out
from ..formats.plddt import confident_files
from .embedder import Embedder, count_reasons, nothing_in
from .vector_files import Kept, check_out, identity, write_table

GROUP = 128  # structures that a GPU sorts into batches
TIMED = 3  # structures from which a dry run estimates the time: a small, a middle and a large one


@dataclass(frozen=True)
class Job:
    """What is done to every structure. It is sent to other processes, so the encoder is a file."""

    weights: Path
    plugins: tuple[str, ...]
    device: str
    batch_nodes: int | None
    amp: str
    include: tuple[str, ...]
    each_chain: bool

    def embed(self, sources: Sequence[Source], structures: Sequence) -> list[list[Embedding | StructureError]]:
        """For every source what its structure gives: an embedding, or with `each_chain` one for every chain.

        They are called by source and chain, as errors are. Instead of a structure there may be its error.
        """
        pieces = []
        owner = []  # of every piece, the number of its source
        found = [[x] if isinstance(x, StructureError) else [] for x in structures]
        for k, (source, x) in enumerate(zip(sources, structures)):
            if not isinstance(x, Structure):
                continue
            chains = x.chains() if self.each_chain else {}
            of_source = [(f"{source}_{chain}", part) for chain, part in chains.items()] or [(str(source), x)]
            pieces += of_source
            owner += [k] * len(of_source)
        embedder = ready_encoder(self)
        for k, embedding in zip(owner, embedder.embed_group(pieces, self.include)):
            found[k].append(embedding)
        return found


@lru_cache(maxsize=1)
def ready_encoder(job: Job) -> Embedder:
    """The encoder of a job, ready for use. A forked process has that of its parent."""
    import_plugins(job.plugins)
    return Embedder(load_encoder(job.weights, job.device), job.device, job.batch_nodes, job.amp)


def embed_source(job: Job, source: Source) -> list[Embedding | StructureError]:
    """Read a structure and embed it; in a process of one thread."""
    return job.embed([source], [read_source(source)])[0]


def embed_sources(job: Job, sources: Sequence[Source], processes: int) -> Iterator[list[Embedding | StructureError]]:
    """The embeddings of all sources, in order.

    On a CPU each process takes a structure at a time: a batch would leave the cache, and threads would wait for each
    other at every small operation. A GPU takes batches of similar size, and the processes read. With 0 processes all
    is done in this one.
    """
    if job.device == "cpu":
        with contextlib.closing(read_all(sources, processes, partial(embed_source, job))) as results:
            yield from (x if isinstance(x, list) else [x] for x in results)  # a source that kills its process
        return
    with contextlib.closing(read_all(sources, processes)) as structures:
        for first in range(0, len(sources), GROUP):
            group = sources[first : first + GROUP]
            yield from job.embed(group, [*itertools.islice(structures, len(group))])


# ---- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """The structures of a command line, or the part of them that --part chooses."""

    sources: dict[str, list[Source]]  # of every path
    names: dict[Source, str]  # all sources; no two have one name
    skipped: list[tuple[str, str]]  # (file, reason)
    empty: list[StructureError]  # paths without any structure


def find_sources(paths: Sequence[str], min_plddt: float | None, part: tuple[int, int]) -> Given:
    """List the structures of a command line. Raises StructureError if nothing is at a path."""
    sources = {}
    skipped = []
    empty = []
    for path in paths:
        listing = confident_files(path, min_plddt).listing()
        sources[path] = listing.sources
        skipped += [row for row in listing.skipped if is_in_part(os.path.basename(row[0]), part)]
        if not listing.sources:
            empty.append(nothing_in(path, listing))

    # a structure has the same name in whatever part it is
    everything = dict.fromkeys(itertools.chain.from_iterable(sources.values()))
    count = Counter(source.name for source in everything)
    names = {}
    for source in everything:
        if is_in_part(source.name, part):
            names[source] = source.name if count[source.name] == 1 else f"{source.path}:{source.name}"
    ours = {path: [source for source in of_path if source in names] for path, of_path in sources.items()}
    return Given(ours, names, skipped, empty)


def is_in_part(name: str, part: tuple[int, int]) -> bool:
    """Whether a structure belongs to part k of n. Its name alone decides, so others may come and go."""
    number, parts = part
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % parts == number - 1


def embed_structures(args: Namespace, kept: Kept) -> int:
    """Embed the structures of a command line; returns 1 if one of its paths gave no embedding."""
    # the encoder
    check_out(args.out)
    keep_freed_memory()
    if args.amp == "bf16":
        keep_few_plans()
    weights = find_weights(args.checkpoint)
    device = choose_device(args.device)
    job = Job(weights, tuple(args.plugin), device, args.batch_nodes, args.amp, tuple(args.include), args.each_chain)
    embedder = ready_encoder(job)
    print(f"encoder {printable(str(weights))}", flush=True)

    # the structures
    given = find_sources(args.structures, args.min_plddt, args.part)
    if not given.names and args.part[1] > 1:
        print("this part has no structures, so nothing is written")
        return 0
    if args.dry_run:
        return dry_run(args, job, given)

    # embed those that are not kept yet, then write one file of all
    with kept.open(fingerprint(job, [*given.names])), contextlib.ExitStack() as files:
        embed_rest(args, kept, job, given.names)
        arrays, errors = kept.read(embedder.encoder.out_dim, files)
        failures, skipped = sorted_out(errors, given)
        untold = arrays.pop("untold", np.zeros(0)).sum()
        embedded = dict(zip(arrays.get("id", ()), arrays.get("incomplete", ())))
        if embedded:
            failed = [(error.path, error.reason) for error in failures]
            for name, rows in {"failed": failed, "skipped": skipped}.items():
                columns = np.array(rows, dtype=str).reshape(-1, 2)
                arrays |= {name: columns[:, 0], f"{name}_reason": columns[:, 1]}
            arrays["encoder"] = np.array(identity(args.checkpoint, weights))
            write_table(args.out, arrays)
        kept.done = 0  # nothing to go on with

    # say what became of every file
    said = [f"warning: {printable(name)}: {reason}" for name, reason in embedded.items() if reason]
    if untold and args.min_plddt is not None:
        said.append(f"kept: files that name neither pLDDT nor an experiment {untold}")
    say(said, failures, skipped, given)
    seen = len(embedded) + len(skipped) + len(failures)
    print(f"seen {seen} = embedded {len(embedded)} + skipped {len(skipped)} + failed {len(failures)}")
    print(printable(left_out(kept.dropped)))
    if not embedded:
        raise SiamDiffError("no structure could be read")
    print(printable(f"{args.out}: {', '.join(args.include)}, {embedder.encoder.out_dim} numbers each"))

    done = {*embedded}
    if args.each_chain:
        done.update(name.rpartition("_")[0] for name in embedded)
    return exit_status(args, given, done)


def sorted_out(errors: Sequence[StructureError], given: Given) -> tuple[list[StructureError], list[tuple[str, str]]]:
    """The structures that failed; and (file, reason) of those that were not wanted, after what `given` skipped."""
    failures = [error for error in errors if not isinstance(error, UnwantedError)]
    unwanted = [(error.path, error.reason) for error in errors if isinstance(error, UnwantedError)]
    return failures, given.skipped + unwanted


def say(lines: list[str], failures: Sequence[StructureError], skipped: Sequence[tuple[str, str]], given: Given) -> None:
    """Write to stderr what failed and what was skipped, after some lines."""
    lines = [*lines, *(f"failed: {error}" for error in failures)]
    lines += [f"skipped: {line}" for line in count_reasons(skipped)]
    lines += [f"skipped: {error}" for error in given.empty]
    sys.stderr.writelines(f"{line}\n" for line in lines)


def exit_status(args: Namespace, given: Given, done: set[str]) -> int:
    """The command's exit status: 1 if a path gave no embedding. `done` has the names of those that did."""
    without = [path for path, sources in given.sources.items() if not done & {given.names[x] for x in sources}]
    if args.part[1] > 1:
        without = [path for path in without if given.sources[path]]  # the others are for other parts
    return 1 if without else 0


def dry_run(args: Namespace, job: Job, given: Given) -> int:
    """Print how many structures and residues there are, and how long they will take; returns the exit status.

    All files are read, so that what fails is named. The time of three goes by residues to all.
    """
    # Read everything.
    names = given.names
    residues = {}
    errors = []
    with (
        contextlib.closing(read_all([*names], args.num_workers, count_residues)) as counts,
        progress(total=len(names), unit="protein") as bar,
    ):
        for source, count in zip(names, counts):
            if isinstance(count, StructureError):
                errors.append(count)
            else:
                residues[source] = count
            bar.update()
    failures, skipped = sorted_out(errors, given)
    say([], failures, skipped, given)
    seen = len(residues) + len(skipped) + len(failures)
    print(f"seen {seen} = readable {len(residues)} + skipped {len(skipped)} + failed {len(failures)}")
    if not residues:
        raise SiamDiffError("no structure could be read")

    # Read and embed three as a process does: the middle ones of the small, the middle and the large structures.
    by_size = sorted(residues, key=residues.get)
    timed = [by_size[(2 * k + 1) * len(by_size) // (2 * TIMED)] for k in range(TIMED)]
    results = read_all([timed[0], *timed], 0, partial(embed_source, job))
    next(results)  # torch's first call takes longer
    start = time.perf_counter()
    for _ in results:
        pass
    seconds = (time.perf_counter() - start) / sum(residues[source] for source in timed)
    total = sum(residues.values())
    processes = max(1, min(args.num_workers, len(residues))) if job.device == "cpu" else 1
    about = timedelta(seconds=round(seconds * total / processes))
    print(f"{len(residues)} structures, {total:,} residues")
    shown = f"{processes} process{'es' if processes > 1 else ''}"
    print(f"about {about} (h:min:s) in {shown}, by the time of {len(timed)} of them")
    if job.device != "cpu":
        print("less on a GPU with many structures, as it takes several at once")
    return exit_status(args, given, {names[source] for source in residues})


def count_residues(source: Source) -> int | StructureError:
    """The number of residues of a structure, or why it cannot be read."""
    structure = read_source(source)
    return structure if isinstance(structure, StructureError) else structure.protein.num_residues


def embed_rest(args: Namespace, kept: Kept, job: Job, names: Mapping[Source, str]) -> None:
    """Embed the structures that are not kept yet, and keep what they give by their `names`.

    Raises the first StructureError with --fail-fast.
    """
    if kept.done:
        print(f"going on after {kept.done} of {len(names)} structures", flush=True)
    rest = [*names][kept.done :]
    with (
        contextlib.closing(embed_sources(job, rest, args.num_workers)) as results,
        progress(total=len(names), initial=kept.done, unit="protein") as bar,
    ):
        for source, found in zip(rest, results):
            named = []
            for x in found:
                if isinstance(x, Embedding):
                    chain = f"_{x.chain[0]}" if job.each_chain else ""
                    named.append(replace(x, id=names[source] + chain))
                    continue
                if args.fail_fast and not isinstance(x, UnwantedError):
                    raise x
                named.append(x)
            kept.add(named)
            bar.update()


def fingerprint(job: Job, sources: Sequence[Source]) -> str:
    """A hash of all that decides on the vectors: version, encoder, options, the files with their sizes and times."""
    status = {path: os.stat(path) for path in dict.fromkeys(source.path for source in sources)}
    files = []
    for source in sources:
        files.append((*asdict(source).values(), status[source.path].st_size, status[source.path].st_mtime_ns))
    what = (__version__, checksum(job.weights), job.device, job.amp, job.include, job.each_chain)
    return hashlib.sha256(repr((what, files)).encode("utf-8", "surrogateescape")).hexdigest()


def run(args: Namespace) -> int:
    """Do what `options.embed` has read; returns 1 if one of its paths gave no embedding, 130 after Ctrl-C."""
    if args.num_workers is None:
        args.num_workers = cores()
    kept = Kept(args.out, args.include)
    try:
        return embed_structures(args, kept)
    except KeyboardInterrupt:
        more = f"; {kept.done} structures are kept, and the same command goes on" if kept.done else ""
        print(f"stopped: {args.out} is not written{more}", file=sys.stderr)
        return 130
