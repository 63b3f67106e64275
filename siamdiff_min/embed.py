"""Representations of a user's own structures: `siamdiff embed STRUCTURES...`.

In Python, `siamdiff_min.load_encoder("siamdiff-atom").embed("1abc.cif.gz")`. An encoder is one of those that come with
the package, or any file with the weights of one: encoder.pt, a checkpoint, a fine-tuned model, a released file.
`encoders/embedding.py` computes; here are the command, its batches and its file.
"""

import contextlib
import sys
import tempfile
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .data.sources import find_structures, read_all
from .encoders.embedding import INCLUDE, Embedder, Embedding, nothing_in
from .encoders.weights import find_weights, load_encoder
from .files import ConfigError, Parser, SiamDiffError, StructureError, console, printable, replacing, writing
from .machine import keep_freed_memory
from .training.ranks import Ranks

GROUP = 256  # structures read before they are embedded, in batches of similar size


class Table:
    """Embeddings on their way into an .npz without pickles. Vectors wait in nameless files beside it, not in memory.

    Structure i has the rows `residue_offset[i]` to `residue_offset[i + 1]` of `per_residue`, and so on for `per_atom`.
    """

    def __init__(self, path: Path, include: Sequence[str], width: int):
        self.path, self.width, self.columns = path, width, defaultdict(list)  # of the .npz -> a part per structure
        self.files = contextlib.ExitStack()  # the maker of the table closes them
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            files = [self.files.enter_context(tempfile.TemporaryFile(dir=path.parent)) for _ in include]  # noqa: SIM115
        self.vectors = dict(zip(include, files))

    def add(self, e: Embedding) -> None:
        """Add a structure. Raises WriteError."""
        with writing(self.path):
            for name, file in self.vectors.items():
                file.write(getattr(e, name).tobytes())
        columns = {"id": [e.id], "incomplete": [e.incomplete]}
        if self.vectors.keys() & {"per_residue", "per_atom"}:
            columns |= {"residue_chain": e.chain, "residue_number": e.residue_number, "residue_type": list(e.sequence)}
            columns |= {"residue_insertion_code": e.insertion_code, "residue_offset": [len(e.sequence)]}
        if "per_atom" in self.vectors:
            columns |= {"atom_name": e.atom_name, "atom_residue": e.atom_residue, "atom_offset": [len(e.atom_name)]}
        for name, values in columns.items():
            self.columns[name].append(np.array(values))

    def write(self, failures: Sequence[StructureError]) -> None:
        """Write the .npz; it needs a structure. Raises WriteError; an older file is then unchanged."""
        arrays = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        arrays |= {name: np.append(0, x.cumsum()) for name, x in arrays.items() if name.endswith("_offset")}
        arrays["failed"] = np.array([error.path for error in failures], dtype=str)
        arrays["failed_reason"] = np.array([error.reason for error in failures], dtype=str)
        with replacing(self.path) as file:
            for name, vectors in self.vectors.items():
                vectors.flush()
                arrays[name] = np.memmap(vectors, np.float32, "r").reshape(-1, self.width)
            np.savez(file, **arrays)


def embed_structures(args: Namespace) -> int:
    """Embed the structures of a command line; returns 1 if one of its paths gave no embedding."""
    if args.out.suffix != ".npz" or args.out.is_dir():
        raise ConfigError(f"--out {args.out} is not the name of an .npz file")
    keep_freed_memory()
    weights = find_weights(args.checkpoint)
    encoder = load_encoder(weights, args.device)
    embedder = Embedder(encoder, encoder.device, args.batch_nodes)
    listings = [find_structures(path) for path in args.structures]
    sources = list(dict.fromkeys(source for listing in listings for source in listing.sources))
    count = Counter(source.name for source in sources)
    names = {s: s.name if count[s.name] == 1 else f"{s.path}:{s.name}" for s in sources}  # no two are the same
    group, failures, embedded, table = [], [], [], Table(args.out, args.include, encoder.out_dim)
    print(f"encoder {printable(str(weights))}", flush=True)
    with (
        table.files,
        contextlib.closing(read_all(sources, max(args.num_workers, 1))) as results,
        Ranks(embedder.device).bar(total=len(sources), unit="protein") as bar,
    ):
        for number, (source, result) in enumerate(zip(sources, results), 1):
            if isinstance(result, StructureError):
                failures.append(result)
                bar.update()
            else:
                group.append((names[source], result))
            if len(group) == GROUP or number == len(sources):
                found = {}
                for i, embedding in embedder.embed_group(group, args.include):
                    found[i] = embedding
                    bar.update()
                for _, embedding in sorted(found.items()):
                    if isinstance(embedding, StructureError):
                        failures.append(embedding)
                    else:
                        table.add(embedding)
                        embedded.append((embedding.id, embedding.incomplete))
                group = []
            if failures and args.fail_fast:
                raise failures[0]
        if embedded:
            table.write(failures)

    skipped = Counter(reason for listing in listings for _, reason in listing.skipped)
    said = [f"warning: {printable(name)}: {reason}" for name, reason in embedded if reason]
    said += [f"failed: {error}" for error in failures]
    said += [f"skipped: {reason} {count}" for reason, count in sorted(skipped.items())]
    empty = [nothing_in(path, listing) for path, listing in zip(args.structures, listings) if not listing.sources]
    sys.stderr.writelines(f"{line}\n" for line in [*said, *(f"skipped: {error}" for error in empty)])
    seen = len(sources) + skipped.total()
    print(f"seen {seen} = embedded {len(embedded)} + skipped {skipped.total()} + failed {len(failures)}")
    if not embedded:
        raise SiamDiffError("no structure could be read")
    print(printable(f"{args.out}: {', '.join(args.include)}, {table.width} numbers each"))
    done = {name for name, _ in embedded}
    return int(not all(any(names[source] in done for source in listing.sources) for listing in listings))


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns 1 if one of its paths gave no embedding, 130 after Ctrl-C."""
    parser = Parser(prog="siamdiff embed", description=__doc__.splitlines()[0])
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
            return embed_structures(args)
    except KeyboardInterrupt:
        print(f"stopped: {args.out} is not written", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
