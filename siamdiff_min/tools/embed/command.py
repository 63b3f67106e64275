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
from typing import NamedTuple

import numpy as np

from ... import __version__
from ...embedding import Embedding
from ...encoders.weights import find_weights, load_encoder
from ...files import SiamDiffError, StructureError, UnwantedError, checksum, import_plugins, printable
from ...machine import choose_device, cores, keep_few_plans, keep_freed_memory, progress
from ...reading.endings import ARCHIVES
from ...reading.pool import read_all, read_source
from ...reading.sources import Source, one_of_each
from ...reading.structure import left_out
from ..build import chains_of
from ..formats.plddt import confident_files
from .embedder import Embedder, count_reasons, incomplete, nothing_in
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
        found = [[x] if isinstance(x, StructureError) else [] for x in structures]
        pieces = []
        owners = []  # of every piece, the list of its source
        for source, structure, of_source in zip(sources, structures, found):
            if of_source:
                continue
            parts = chains_of(structure) if self.each_chain else {"": structure}
            for chain, part in parts.items():
                pieces.append((f"{source}_{chain}" if chain else str(source), part))
                owners.append(of_source)
        for of_source, embedding in zip(owners, ready_encoder(self).embed_group(pieces, self.include)):
            of_source.append(embedding)
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


Place = tuple[str, str | None]  # a file, and a member of an archive


class Given(NamedTuple):
    """The structures of a command line, or the part of them that --part chooses."""

    sources: list[Source]  # no two have one name
    paths: list[set[str]]  # the names of every path's structures
    skipped: list[tuple[str, str]]  # (file, reason)
    empty: list[StructureError]  # paths without any structure


def find_sources(paths: Sequence[str], min_plddt: float | None, part: tuple[int, int]) -> Given:
    """List the structures of a command line. Raises StructureError if nothing is at a path."""
    found = []
    skipped = []
    empty = []
    for path in paths:
        listing = confident_files(path, min_plddt).listing()
        found.append({(source.path, source.member): source for source in listing.sources})
        skipped += listing.skipped
        if not listing.sources:
            empty.append(nothing_in(path, listing))
    every = {place: source for of_path in found for place, source in of_path.items()}
    if len(paths) > 1 and every:
        every, twice = named_together(every)
        skipped += twice

    # A structure has the same name in whatever part it is.
    ours = {place: source for place, source in every.items() if is_in_part(source.name, part)}
    names = [{ours[place].name for place in of_path if place in ours} for of_path in found]
    skipped = [row for row in skipped if is_in_part(os.path.basename(row[0]), part)]
    return Given([*ours.values()], names, skipped, [] if part[1] > 1 else empty)


def named_together(sources: Mapping[Place, Source]) -> tuple[dict[Place, Source], list[tuple[str, str]]]:
    """The sources of several paths with the names that a folder of them all would give.

    And (file, reason) of those that are another file of a structure.
    """
    root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path, _ in sources])
    files = []
    for (path, member), source in sources.items():
        inside = os.path.relpath(path, root)
        if member is not None:
            archive = next((ending for ending in ARCHIVES if inside.endswith(ending)), "")
            inside = os.path.join(inside.removesuffix(archive), member)
        files.append((inside, source))
    named, twice = one_of_each(files)
    name_of = {(source.path, source.member): source for source in named}
    return {place: name_of[place] for place in sources if place in name_of}, twice


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
    width = ready_encoder(job).encoder.out_dim
    print(f"encoder {printable(str(weights))}", flush=True)

    # the structures
    given = find_sources(args.structures, args.min_plddt, args.part)
    if not given.sources and args.part[1] > 1:
        print("this part has no structures, so nothing is written")
        return 0
    if args.dry_run:
        return dry_run(args, job, given)

    # embed those that are not kept yet, then write one file of all
    with kept.open(fingerprint(job, given.sources)), contextlib.ExitStack() as files:
        embed_rest(args, kept, job, given.sources)
        arrays, errors = kept.read(width, files)
        failures, skipped = sorted_out(errors, given)
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
    done = {name.rpartition("_")[0] for name in embedded} if args.each_chain else {*embedded}
    status = say(errors, given, "embedded", embedded, done, kept.dropped)
    print(printable(f"{args.out}: {', '.join(args.include)}, {width} numbers each"))
    return status


def sorted_out(errors: Sequence[StructureError], given: Given) -> tuple[list[StructureError], list[tuple[str, str]]]:
    """The structures that failed; and (file, reason) of those that were not wanted, after what `given` skipped."""
    failures = [error for error in errors if not isinstance(error, UnwantedError)]
    unwanted = [(error.path, error.reason) for error in errors if isinstance(error, UnwantedError)]
    return failures, given.skipped + unwanted


def say(
    errors: Sequence[StructureError],
    given: Given,
    what: str,
    found: Mapping[str, str],
    done: set[str],
    dropped: Mapping[str, int],
) -> int:
    """Print how many structures are `what`, embedded or readable, and what the reader left out of them.

    And to stderr what failed, what was skipped, and what is incomplete of those that were `found`. Returns the exit
    status: 1 if a path has no structure among the names `done`. Raises SiamDiffError if none has.
    """
    failures, skipped = sorted_out(errors, given)
    lines = [f"warning: {printable(name)}: {reason}" for name, reason in found.items() if reason]
    lines += [f"failed: {error}" for error in failures]
    lines += [f"skipped: {line}" for line in (*count_reasons(skipped), *given.empty)]
    sys.stderr.writelines(f"{line}\n" for line in lines)
    seen = len(found) + len(skipped) + len(failures)
    print(f"seen {seen} = {what} {len(found)} + skipped {len(skipped)} + failed {len(failures)}")
    if not done:
        raise SiamDiffError("no structure could be read")
    print(printable(left_out(dropped)))
    without = [names for names in given.paths if names and not names & done]
    return int(bool(without or given.empty))


def dry_run(args: Namespace, job: Job, given: Given) -> int:
    """Print how many structures and residues there are, and how long they will take; returns the exit status.

    All files are read, so that what fails is named. The time of three goes by residues to all; a GPU, which takes
    several at once, will need less.
    """
    at_atoms = ready_encoder(job).encoder.builder.level == "atom"
    with contextlib.closing(read_all(given.sources, args.num_workers, partial(contents, at_atoms))) as each:
        found = [*progress(zip(given.sources, each), total=len(given.sources), unit="protein")]
    read = {source: content for source, content in found if isinstance(content, Contents)}
    errors = [error for _, error in found if not isinstance(error, Contents)]
    missing = {source.name: content.incomplete for source, content in read.items()}
    dropped = sum((content.dropped for content in read.values()), Counter())
    status = say(errors, given, "readable", missing, {*missing}, dropped)

    # Read and embed three as a process does: the middle ones of the small, the middle and the large structures.
    residues = {source: content.residues for source, content in read.items()}
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
    print(f"about {about} (h:min:s) by the time of {TIMED} of them; processes: {processes}")
    return status


class Contents(NamedTuple):
    """What a dry run needs to know of a structure."""

    residues: int
    dropped: Counter  # what the reader left out or replaced
    incomplete: str  # what the encoder will not see


def contents(at_atoms: bool, source: Source) -> Contents | StructureError:
    """How long a structure is, and what the reader and the encoder leave out; or why it cannot be read."""
    structure = read_source(source)
    if isinstance(structure, StructureError):
        return structure
    return Contents(structure.protein.num_residues, structure.dropped, incomplete(structure, at_atoms))


def embed_rest(args: Namespace, kept: Kept, job: Job, sources: Sequence[Source]) -> None:
    """Embed the structures that are not kept yet, and keep what they give by their names.

    Raises the first StructureError with --fail-fast.
    """
    if kept.done:
        print(f"going on after {kept.done} of {len(sources)} structures", flush=True)
    rest = sources[kept.done :]
    with (
        contextlib.closing(embed_sources(job, rest, args.num_workers)) as results,
        progress(total=len(sources), initial=kept.done, unit="protein") as bar,
    ):
        for source, found in zip(rest, results):
            for k, x in enumerate(found):
                if isinstance(x, Embedding):
                    found[k] = replace(x, id=f"{source.name}_{x.chain[0]}" if job.each_chain else source.name)
                elif args.fail_fast and not isinstance(x, UnwantedError):
                    raise x
            kept.add(found)
            bar.update()


def fingerprint(job: Job, sources: Sequence[Source]) -> str:
    """A hash of all that decides on the vectors: version, encoder, options, the files with their sizes and times."""
    status = {path: os.stat(path) for path in dict.fromkeys(source.path for source in sources)}
    files = [(asdict(source), status[source.path].st_size, status[source.path].st_mtime_ns) for source in sources]
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
