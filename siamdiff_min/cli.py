"""`siamdiff train | finetune | embed | mutants | color | report | build`: every command of the package by one name.

`train.py` and `finetune.py` of a clone are the first two, for torchrun.
"""

import os
import sys

from . import __version__
from .files import Parser, console, load_module

COMMANDS = {  # name -> module, and what it does
    "train": (".pretrain", "pre-train an encoder: DiffPreT, SiamDiff, and what they are compared with"),
    "finetune": (".finetune", "fine-tune an encoder on a task, score or apply the model"),
    "embed": (".tools.embed.command", "representations of your own structures, as embeddings.npz"),
    "mutants": (".tools.mutants.command", "which mutants to make next, from a structure and a few measured ones"),
    "color": (".tools.color", "a number for every residue, as colours of a copy of the structure"),
    "report": (".tools.report.command", "a page that shows a run, or compares several"),
    "build": (".tools.build", "convert structures to a store, and check it"),
}


def check_table(argv: list[str]) -> None:
    """Read the table of labels of a command line of finetune, if it has one, before torch is loaded."""
    if any(word.partition("=")[0] == "--labels" for word in argv):
        load_module(".tools.table.labels").check_table(argv)


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status of the command."""
    argv = sys.argv[1:] if argv is None else argv
    parser = Parser(prog="siamdiff", description="Pre-training protein structure encoders by diffusion.")
    commands = "\n".join(f"  {name:9} {purpose}" for name, (_, purpose) in COMMANDS.items())
    parser.usage = (
        f"siamdiff COMMAND [options]\n\n{commands}\n\nsiamdiff COMMAND --help lists the options of a command."
    )
    parser.add_argument("--version", action="version", version=f"siamdiff_min {__version__}")
    parser.add_argument("command", choices=COMMANDS)
    command = parser.parse_args(argv[:1]).command
    sys.argv = [f"siamdiff {command}", *argv[1:]]  # what its --help and options.json say
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that wait soon sleep
    with console():
        if command == "finetune":
            check_table(argv[1:])
        module, _ = COMMANDS[command]
        return load_module(module).main(argv[1:])
