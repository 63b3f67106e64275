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
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from ...embedding import Embedding
from ...encoders.weights import find_weights, load_encoder
from ...files import SiamDiffError, StructureError, import_plugins, printable
from ...machine import choose_device, cores, keep_few_plans, keep_freed_memory, progress
from ...reading.pool import read_all, read_source
from ...reading.sources import Source, find_structures
from ...reading.structure import Structure, left_out
from ..build import chains_of
from .embedder import Embedder, count_reasons
from .vector_files import Vectors, check_out, identity, write_table

GROUP = 128  # structures that a GPU sorts into batches


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

    def embed(
        self, sources: Sequence[Source], structures: Sequence[Structure | StructureError]
    ) -> list[list[Embedding | StructureError]]:
        """For every source what its structure gives: an embedding, or with `each_chain` one for every chain.

        Instead of a structure there may be its error. Errors are called by the file, embeddings by the structure.
        """
        found = [[x] if isinstance(x, StructureError) else [] for x in structures]
        pieces = []
        owners = []  # of every piece, its name and the list of its source
        for source, structure, of_source in zip(sources, structures, found):
            if isinstance(structure, StructureError):
                continue
            parts = chains_of(structure) if self.each_chain else {"": structure}
            for chain, part in parts.items():
                behind = f"_{chain}" if self.each_chain else ""
                pieces.append((f"{source}{behind}", part))
                owners.append((f"{source.name}{behind}", of_source))
        for (name, of_source), x in zip(owners, ready_encoder(self).embed_group(pieces, self.include)):
            of_source.append(x if isinstance(x, StructureError) else replace(x, id=name))
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


def is_in_part(name: str, part: tuple[int, int]) -> bool:
    """Whether a structure belongs to part k of n. Its name alone decides, so others may come and go."""
    number, parts = part
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") % parts == number - 1


def run(args: Namespace) -> int:
    """Do what `options.embed` has read; returns 1 if a file that is named there fails."""
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

    # the structures; a structure has the same name in whatever part it is
    listing = find_structures(*args.structures)
    sources = [source for source in listing.sources if is_in_part(source.name, args.part)]
    skipped = [row for row in listing.skipped if is_in_part(os.path.basename(row[0]), args.part)]
    if not sources and args.part[1] > 1:
        print("this part has no structures, so nothing is written")
        return 0

    # their embeddings
    failures = []
    workers = cores() if args.num_workers is None else args.num_workers
    with (
        Vectors(args.out, args.include, width) as vectors,
        contextlib.closing(embed_sources(job, sources, workers)) as results,
        progress(total=len(sources), unit="protein") as bar,
    ):
        for found in results:
            for x in found:
                if isinstance(x, StructureError):
                    failures.append(x)
                else:
                    vectors.add(x)
            bar.update()
        if vectors.incomplete:
            arrays = vectors.arrays()
            failed = [(error.path, error.reason) for error in failures]
            for name, rows in {"failed": failed, "skipped": skipped}.items():
                columns = np.array(rows, dtype=str).reshape(-1, 2)
                arrays |= {name: columns[:, 0], f"{name}_reason": columns[:, 1]}
            arrays["encoder"] = np.array(identity(args.checkpoint, weights))
            write_table(args.out, arrays)

    # say what became of every file
    lines = [f"warning: {printable(name)}: {reason}" for name, reason in vectors.incomplete.items() if reason]
    lines += [f"failed: {error}" for error in failures]
    lines += [f"skipped: {line}" for line in count_reasons(skipped)]
    sys.stderr.writelines(f"{line}\n" for line in lines)
    embedded = len(vectors.incomplete)
    seen = embedded + len(skipped) + len(failures)
    print(f"seen {seen} = embedded {embedded} + skipped {len(skipped)} + failed {len(failures)}")
    if not embedded:
        raise SiamDiffError("no structure could be read")
    print(printable(left_out(vectors.dropped)))
    print(printable(f"{args.out}: {', '.join(args.include)}, {width} numbers each"))
    return int(any(error.path in args.structures for error in failures))
