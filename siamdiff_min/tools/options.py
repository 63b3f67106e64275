"""The options of the commands here but those of `finetune --task table`: read before torch is loaded.

Each function reads a command line and returns what `run` of the command's module takes. Paths whose names
`siamdiff_min.names.PATHS` lists are looked for by `siamdiff_min.cli`.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..files import ConfigError, Parser
from ..names import INCLUDE, find_weights

VALUE_COLUMNS = ("value", "prediction", "predicted", "ranking")  # of color: in this order, unless --column names one
FLAG = {"action": "store_true"}
LIST = {"nargs": "+", "default": [], "action": "extend"}


def parser(description: str, options: Mapping[str, dict]) -> Parser:
    """A parser of options, each with what `add_argument` takes."""
    made = Parser(description=description)
    for name, settings in options.items():
        made.add_argument(name, **settings)
    return made


def build(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff build`."""
    options = {
        "path": {"nargs": "+", "help": "structures (their store is built), or a store"},
        "--store": {"type": Path, "help": "folder of the stores (default: PATH.store)"},
        "--min-plddt": {"type": float, "help": "skip predicted structures of a lower mean pLDDT: a store of its own"},
        "--each-chain": {**FLAG, "help": "an entry for every chain, NAME_A; a store of its own, as printed"},
        "--num-workers": {"type": int, "help": "processes that read (default: one for 500 structures)"},
    }
    return parser("Build and check stores.", options).parse_args(argv)


def color(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff color`."""
    options = {
        "structure": {"type": Path, "help": "a PDB or mmCIF file, also .gz"},
        "table": {"type": Path, "help": "a row for every residue: chain and number, an id, or a mutation"},
        "--column": {"help": f"title of the numbers (default: the first of {', '.join(VALUE_COLUMNS)})"},
        "--chain": {"help": "chain of rows that name none (default: the first of the file)"},
        "--out": {"type": Path, "help": "the copy (default: NAME-COLUMN.pdb or .cif in this folder)"},
    }
    return parser("A number for every residue, as colours in a viewer.", options).parse_args(argv)


def report(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff report`."""
    options = {
        "run": {"type": Path, "nargs": "+", "help": "folders of runs (--out of train.py or finetune.py)"},
        "--out": {"type": Path, "help": "the page (default: RUN/report.html; of several runs comparison.html)"},
        "--csv": {"type": Path, "help": "write every measure of every run to this table too"},
        "--latex": {"type": Path, "help": "write mean ± sd, intervals and ranks to this file, as Tables 1 and 2"},
        "--figures": {"type": Path, "help": "write every picture to this folder, as PDF, SVG and PNG"},
    }
    return parser("One page to show: runs of train.py or finetune.py, drawn and compared.", options).parse_args(argv)


def mutants(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff mutants`."""
    options = {
        "structure": {"type": Path, "help": "a PDB or mmCIF file, also .gz"},
        "--measured": {"type": Path, "help": "table of mutations (A52G, A52G/L60V, WT) and values"},
        "--name-column": {"help": "title of the mutations (default: name, or the first column)"},
        "--value-column": {"nargs": "+", "help": "titles of the values; each is ranked alone (default: value)"},
        "--missing": {"nargs": "+", "help": "words for a value that was not measured"},
        "--lower-is-better": {**FLAG, "help": "the smallest values are the best"},
        "--shift": {"type": int, "default": 0, "help": "add this to the numbers of the mutations (default: 0)"},
        "--chain": {"nargs": "+", "help": "chains that are mutated, with their copies (default: the first)"},
        "--next": {"dest": "batch", "type": int, "default": 96, "help": "size of the next batch (default: 96)"},
        "--positions": {"default": "", "help": "positions of the next batch: 5-60,80 (default: all but a first Met)"},
        "--not": {"dest": "not_positions", "default": "", "help": "positions that stay: 1,41"},
        "--types": {"default": "ACDEFGHIKLMNPQRSTVWY", "help": "new types of the next batch: AVIL (default: all)"},
        "--not-types": {"default": "", "help": "new types that the next batch is without: CP"},
        "--per-position": {"type": int, "default": 2, "help": "at most, in the next batch (default: 2)"},
        "--checkpoint": {"help": "an encoder of your own with a head for residue types, in place of both bundled ones"},
        "--out": {"type": Path, "default": "mutants", "help": "folder of the results (default: mutants)"},
    }
    args = parser("From one structure and a few measured mutants to the next batch.", options).parse_args(argv)
    if args.checkpoint:
        find_weights(args.checkpoint)
    return args


def embed(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff embed`. Raises CheckpointError without its encoder, ConfigError for an --out that cannot hold it."""
    options = {
        "structures": {"nargs": "+", "help": "structure files (PDB, mmCIF, BinaryCIF, Foldcomp), folders, archives"},
        "--checkpoint": {"default": "siamdiff-residue", "help": "siamdiff-atom, or a file (default: siamdiff-residue)"},
        "--out": {"type": Path, "default": "embeddings.npz", "help": "an .npz or .csv (default: embeddings.npz)"},
        "--plugin": {**LIST, "help": "Python files that add the encoder of --checkpoint"},
        "--include": {"nargs": "+", "choices": INCLUDE, "default": ["mean"], "help": "vectors (default: mean)"},
        "--each-chain": {**FLAG, "help": "vectors of every chain alone, called NAME_A"},
        "--batch-nodes": {"type": int, "help": "atoms (or residues) per batch of a GPU (default: 8000)"},
        "--num-workers": {"type": int, "help": "processes, of one thread each (default: cores that are ours; 0: none)"},
        "--device": {"default": "auto", "choices": ("auto", "cpu", "cuda"), "help": "(default: auto)"},
        "--amp": {"default": "off", "choices": ("off", "bf16"), "help": "autocast to bfloat16 (default: off)"},
        "--part": {
            "type": part_of,
            "default": (1, 1),
            "metavar": "K/N",
            "help": "K/N: only one of N parts of the structures, for arrays of jobs; OUT becomes OUT-K-of-N",
        },
    }
    args = parser("Representations of a user's own structures.", options).parse_args(argv)
    number, parts = args.part
    if parts > 1:
        args.out = args.out.with_stem(f"{args.out.stem}-{number}-of-{parts}")
    if args.out.suffix not in (".npz", ".csv") or args.out.is_dir():
        raise ConfigError(f"--out {args.out} is not the name of an .npz or .csv file")
    if args.out.suffix == ".csv" and args.include != ["mean"]:
        raise ConfigError(f"--out {args.out}: a .csv holds the mean of every structure, all else an .npz")
    find_weights(args.checkpoint)
    return args


def nearest(argv: Sequence[str] | None = None) -> Namespace:
    """Of `siamdiff nearest`."""
    options = {
        "query": {"nargs": "*", "help": "structures, or an .npz of siamdiff embed"},
        "--among": {"nargs": "+", "required": True, "help": "the set: an .npz of siamdiff embed, or structures"},
        "--top": {"type": int, "default": 10, "help": "hits of each query (default: 10)"},
        "--out": {"type": Path, "help": "table of the hits (default: nearest.tsv); of --fit: scale.npz"},
        "--checkpoint": {
            "help": "encoder of the structures (default: the one of the set's .npz, else siamdiff-residue)"
        },
        "--scale": {"type": Path, "help": "what --fit wrote (default: the package's scale for this encoder)"},
        "--fit": {
            "type": Path,
            "metavar": "FAMILIES.tsv",
            "help": "make a scale of --among: a table with columns name, family and, where known, folds (with commas)",
        },
    }
    made = parser("The structures most like another one, with an E-value.", options)
    args = made.parse_args(argv)
    if bool(args.query) == bool(args.fit) or args.top < 1:
        made.error("it needs a QUERY or --fit FAMILIES.tsv, not both, and a --top of 1 or more")
    return args


def part_of(text: str) -> tuple[int, int]:
    """The two numbers of --part K/N."""
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise ArgumentTypeError(f"{text!r} is not K/N with K from 1 to N, such as 3/16")
    return int(number), int(parts)
