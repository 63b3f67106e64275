"""The options of the commands here but those of `finetune --task table`: read before torch is loaded.

Each function reads a command line and returns what `run` of the command's module takes. Paths whose names
`siamdiff_min.names.PATHS` lists are looked for by `siamdiff_min.cli`.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from ..files import ConfigError, Parser
from ..names import INCLUDE, find_weights

VALUE_COLUMNS = ("value", "prediction", "predicted", "ranking")  # of color: in this order, unless --column names one


def build(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff build`."""
    parser = Parser(description="Build and check stores.")
    parser.add_argument("path", nargs="+", help="structures (their store is built), or a store")
    parser.add_argument("--store", type=Path, help="folder of the stores (default: PATH.store)")
    text = "skip predicted structures whose mean pLDDT is below; the store's folder, which is printed, is --data then"
    parser.add_argument("--min-plddt", type=float, help=text)
    text = "an entry for every chain, NAME_A; a store of its own, as with --min-plddt"
    parser.add_argument("--each-chain", action="store_true", help=text)
    text = "processes that read; the store does not depend on it (default: one for 500 structures, up to one per core)"
    parser.add_argument("--num-workers", type=int, help=text)
    return parser.parse_args(argv)


def color(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff color`."""
    parser = Parser(description="A number for every residue, as colours in a viewer.")
    parser.add_argument("structure", type=Path, help="a PDB or mmCIF file, also .gz")
    parser.add_argument("table", type=Path, help="a row for every residue: chain and number, an id, or a mutation")
    parser.add_argument("--column", help=f"title of the numbers (default: the first of {', '.join(VALUE_COLUMNS)})")
    parser.add_argument("--chain", help="chain of rows that name none (default: the first of the file)")
    parser.add_argument("--out", type=Path, help="the copy (default: NAME-COLUMN.pdb or .cif in this folder)")
    return parser.parse_args(argv)


def report(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff report`."""
    parser = Parser(description="One page to show: runs of train.py or finetune.py, drawn and compared.")
    parser.add_argument("run", type=Path, nargs="+", help="folders of runs (--out of train.py or finetune.py)")
    parser.add_argument("--out", type=Path, help="the page (default: RUN/report.html; of several runs comparison.html)")
    parser.add_argument("--csv", type=Path, help="write every measure of every run to this table too")
    text = "write mean ± sd, intervals and ranks to this file, as Tables 1 and 2"
    parser.add_argument("--latex", type=Path, help=text)
    parser.add_argument("--figures", type=Path, help="write every picture to this folder, as PDF, SVG and PNG")
    return parser.parse_args(argv)


def mutants(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff mutants`."""
    parser = Parser(description="From one structure and a few measured mutants to the next batch.")
    parser.add_argument("structure", type=Path, help="a PDB or mmCIF file, also .gz")
    parser.add_argument("--measured", type=Path, help="table of mutations (A52G, A52G/L60V, WT) and values")
    parser.add_argument("--name-column", help="title of the mutations (default: name, or the first column)")
    parser.add_argument("--value-column", nargs="+", help="titles of the values; each is ranked alone (default: value)")
    parser.add_argument("--missing", nargs="+", help="words for a value that was not measured")
    parser.add_argument("--lower-is-better", action="store_true", help="the smallest values are the best")
    parser.add_argument("--shift", type=int, default=0, help="add this to the numbers of the mutations (default: 0)")
    parser.add_argument("--wild-type", type=float, help="its value: 0 if values are differences to it")
    parser.add_argument("--chain", nargs="+", help="chains that are mutated, with their copies (default: the first)")
    parser.add_argument("--next", dest="batch", type=int, default=96, help="size of the next batch (default: 96)")
    parser.add_argument("--positions", help="positions of the next batch: 5-60,80 (default: all but a first Met)")
    parser.add_argument("--not", dest="not_positions", help="positions that stay: 1,41")
    parser.add_argument("--types", help="new types of the next batch: AVIL (default: all)")
    parser.add_argument("--not-types", help="new types that the next batch is without: CP")
    parser.add_argument("--per-position", type=int, default=2, help="at most, in the next batch (default: 2)")
    explore = "weight of the width of the interval: 1 takes the highest upper ends (default: 0)"
    parser.add_argument("--explore", type=float, default=0.0, help=explore)
    text = "an encoder of your own with a head for residue types, in place of both bundled ones"
    parser.add_argument("--checkpoint", help=text)
    parser.add_argument("--out", type=Path, default="mutants", help="folder of the results (default: mutants)")
    args = parser.parse_args(argv)
    if args.checkpoint:
        find_weights(args.checkpoint)
    return args


def embed(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff embed`. Raises CheckpointError without its encoder, ConfigError for an --out that cannot hold it."""
    parser = Parser(description="Representations of a user's own structures.")
    parser.add_argument("structures", nargs="+", help="files, folders and archives of PDB or mmCIF files, also .gz")
    text = "siamdiff-atom, or a file: encoder.pt, checkpoint, fine-tuned model, released (default: siamdiff-residue)"
    parser.add_argument("--checkpoint", default="siamdiff-residue", help=text)
    text = "file to write, .npz or .csv (default: embeddings.npz). A file that holds no vectors of ours is not replaced"
    parser.add_argument("--out", type=Path, default="embeddings.npz", help=text)
    text = "Python files that add the encoder of --checkpoint"
    parser.add_argument("--plugin", nargs="+", default=[], action="extend", help=text)
    parser.add_argument("--include", nargs="+", choices=INCLUDE, default=["mean"], help="vectors (default: mean)")
    parser.add_argument("--each-chain", action="store_true", help="vectors of every chain alone, called NAME_A")
    parser.add_argument("--min-plddt", type=float, help="leave out predicted structures with a lower mean pLDDT")
    text = "atoms (or residues) per batch (default: 8000 on a GPU; a CPU takes one structure at a time)"
    parser.add_argument("--batch-nodes", type=int, help=text)
    text = "processes, of one thread each; on a GPU they read (default: cores of this machine that are ours; 0: none)"
    parser.add_argument("--num-workers", type=int, help=text)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="(default: auto)")
    parser.add_argument("--amp", default="off", choices=("off", "bf16"), help="autocast to bfloat16 (default: off)")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first structure that fails")
    text = "K/N: only one of N parts of the structures, for arrays of jobs; OUT becomes OUT-K-of-N"
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help=text)
    text = "count structures and residues, and estimate the time from three of them; write nothing"
    parser.add_argument("--dry-run", action="store_true", help=text)
    args = parser.parse_args(argv)
    number, parts = args.part
    if parts > 1:
        args.out = args.out.with_stem(f"{args.out.stem}-{number}-of-{parts}")
    if args.out.suffix not in (".npz", ".csv") or args.out.is_dir():
        raise ConfigError(f"--out {args.out} is not the name of an .npz or .csv file")
    if args.out.suffix == ".csv" and args.include not in (["mean"], ["per_residue"]):
        raise ConfigError(f"--out {args.out}: a .csv holds the mean of every structure, or per_residue; both an .npz")
    find_weights(args.checkpoint)
    return args


def nearest(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff nearest`."""
    parser = Parser(description="The structures most like another one, with an E-value.")
    parser.add_argument("query", nargs="*", help="structures, or an .npz of siamdiff embed")
    parser.add_argument("--among", nargs="+", required=True, help="the set: an .npz of siamdiff embed, or structures")
    parser.add_argument("--top", type=int, default=10, help="hits of each query (default: 10)")
    parser.add_argument("--out", type=Path, help="table of the hits (default: nearest.tsv); of --fit: scale.npz")
    text = "encoder of the structures (default: that of the set's .npz, else siamdiff-residue)"
    parser.add_argument("--checkpoint", help=text)
    parser.add_argument("--scale", type=Path, help="what --fit wrote (default: that of the package for this encoder)")
    text = "make a scale of --among: a table with columns name, family and, where known, folds (with commas)"
    parser.add_argument("--fit", type=Path, metavar="FAMILIES.tsv", help=text)
    args = parser.parse_args(argv)
    if bool(args.query) == bool(args.fit) or args.top < 1:
        parser.error("it needs a QUERY or --fit FAMILIES.tsv, not both, and a --top of 1 or more")
    return args


def part_of(text: str) -> tuple[int, int]:
    """The two numbers of --part K/N."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N, such as 3/16")
    return int(number), int(parts)
