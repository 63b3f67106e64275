"""`siamdiff train | finetune | embed | nearest | mutants | color | report | build`: all commands by one name.

`train.py` and `finetune.py` of a clone are the first two, for torchrun. Torch takes two seconds to load. So a command
has two modules: the first reads its options without torch, the second is loaded when options and files are right.
"""

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from . import __version__
from .files import Parser, console, load_module
from .names import check_there, find_weights


class Command(NamedTuple):
    """The function that reads its options, the module whose `run` takes them, and what it does."""

    options: str
    module: str
    purpose: str


COMMANDS = {
    "train": Command(".training.config:pretrain_options", ".pretrain", "pre-train an encoder, by SiamDiff and others"),
    "finetune": Command(".training.config:finetune_options", ".finetune", "fine-tune an encoder, score or apply it"),
    "embed": Command(".tools.options:embed", ".tools.embed.command", "representations of your own structures"),
    "nearest": Command(".tools.options:nearest", ".tools.nearest.command", "the structures most like another one"),
    "mutants": Command(".tools.options:mutants", ".tools.mutants.command", "which mutants to make next"),
    "color": Command(".tools.options:color", ".tools.color", "a number for every residue, as colours of a structure"),
    "report": Command(".tools.options:report", ".tools.report.command", "a page that shows a run, or compares several"),
    "build": Command(".tools.options:build", ".tools.build", "convert structures to a store, and check it"),
}
# `finetune` with labels of the user's own.
TABLE = Command(".tools.table.options:table_options", ".tools.table.command", "")


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status of the command."""
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="siamdiff", description="Pre-training protein structure encoders by diffusion.")
    commands = "\n".join(f"  {name:9} {command.purpose}" for name, command in COMMANDS.items())
    parser.usage = (
        f"siamdiff COMMAND [options]\n\n{commands}\n\nsiamdiff COMMAND --help lists the options of a command."
    )
    parser.add_argument("--version", action="version", version=f"siamdiff_min {__version__}")
    parser.add_argument("command", choices=COMMANDS)
    command = parser.parse_args(argv[:1]).command
    sys.argv = [f"siamdiff {command}", *argv[1:]]  # what its --help and options.json say
    with console():
        return run(command, argv[1:])


def run(command: str, argv: Sequence[str]) -> int:
    """Run a command; returns its exit status. Raises SiamDiffError, and SystemExit for a wrong command line."""
    chosen = TABLE if command == "finetune" and is_of_table(argv) else COMMANDS[command]
    where, _, function = chosen.options.partition(":")
    options = getattr(load_module(where), function)(argv)
    check_there(options)
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that wait soon sleep
    return load_module(chosen.module).run(options)


def is_of_table(argv: Sequence[str]) -> bool:
    """Whether a command line of finetune is of labels of the user's own, or names a model that has learned some."""
    parser = Parser(add_help=False, usage="%(prog)s [options]")
    for name in ("--task", "--labels", "--eval-only"):
        parser.add_argument(name)
    given, _ = parser.parse_known_args(argv)
    if given.task is None and given.eval_only:
        find_weights(given.eval_only)
        weights = load_module(".encoders.weights")
        return weights.read_weights(given.eval_only, weights.MODEL)["task"] == "table"
    return given.task == "table" or given.labels is not None
