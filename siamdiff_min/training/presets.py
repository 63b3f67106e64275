"""The paper's presets: Tables 5 and 6, and the numbers of epochs; and what smaller sizes change."""

import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import NamedTuple

from ..conventions import OFFICIAL, PAPER, Conventions
from ..files import ConfigError
from ..names import STAGED


class Settings(NamedTuple):
    """One method at one level in Table 5."""

    max_length: int | None  # residues kept of each protein, None: all
    batch_size: int  # per process; the paper used four
    lr: float


class TaskSettings(NamedTuple):
    """One task at one level in Table 6, and its number of epochs (Sec. 5.1)."""

    batch_size: int  # per process
    processes: int  # the paper's
    epochs: int


TABLE_5 = {  # method -> level -> settings; the optimizer is Adam throughout
    "residue-type": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "distance": {"residue": Settings(100, 128, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "angle": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "dihedral": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "multiview": {"residue": Settings(None, 96, 1e-3), "atom": Settings(None, 64, 1e-3)},
    "score-matching": {"residue": Settings(200, 12, 1e-4), "atom": Settings(200, 12, 1e-4)},
    "residue-type+distance": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},  # App. F: as above
    "residue-type+angle": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "residue-type+dihedral": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "torsional": {"atom": Settings(100, 64, 1e-4)},  # App. G: as DiffPreT
    "diffpret": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 64, 1e-4)},
    "siamdiff": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 32, 1e-4)},
}
OURS = frozenset(TABLE_5)
TABLE_6 = {  # task -> level -> settings; Adam with lr 1e-4 throughout
    "ec": {"residue": TaskSettings(2, 4, 50)},
    "pip": {"atom": TaskSettings(8, 1, 10)},
    "msp": {"residue": TaskSettings(1, 4, 50), "atom": TaskSettings(8, 1, 50)},
    "res": {"atom": TaskSettings(64, 4, 10)},
    "psr": {"residue": TaskSettings(8, 4, 50), "atom": TaskSettings(8, 1, 50)},
}
USUAL = {"task": "psr", "seeds": [0], "encoder": "gearnet", "preset": "paper"}
EPOCHS = {"paper": [25, 25], "official": [25, 50]}  # of stages 1 and 2 (differences.md, row 2); without stages 50
OFFICIAL_EPOCHS = {"res": {"epochs": [5]}}  # as the released code (differences.md, row 22)
OFFICIAL_PLATEAU = {"ec": ("fmax", "min"), "psr": ("loss", "max")}  # the wrong way round (differences.md, row 21)
MAX_RESIDUES = {("msp", "atom"): 400}  # nearest to the mutation
LEFT_OUT = {  # ablation -> the fields of Conventions that nothing asks for then
    "no-clash-check": {"clash_check"},
    "no-sequence": {"mask_with_replacement", "mask_is_glycine", "backbone", "hide_all_types"},
}
SMALLER = {  # size, level -> what changes, for laptops: many small steps. "tiny" takes 5 to 7 minutes on 2 cores
    ("tiny", "atom"): {"batch_size": 2, "epochs": [5, 6], "lr": 2e-3, "valid_every": 8},
    ("tiny", "residue"): {"batch_size": 4, "epochs": [12, 12], "lr": 2e-3, "valid_every": 6},
    ("medium", "atom"): {"batch_size": 4, "epochs": [25, 25], "lr": 1e-3, "valid_every": 5},
    ("medium", "residue"): {"batch_size": 8, "epochs": [25, 25], "lr": 1e-3, "valid_every": 5},
    ("small", "atom"): {"batch_size": 4, "epochs": [25, 25], "lr": 1e-3, "valid_every": 5},
    ("small", "residue"): {"batch_size": 8, "epochs": [25, 25], "lr": 1e-3, "valid_every": 5},
    ("tiny", "atom", "multiview"): {"batch_size": 8, "epochs": [6, 6]},  # it needs others to contrast with
    ("tiny", "residue", "multiview"): {"batch_size": 8, "epochs": [20, 20]},
}
SMALL_TASK = {"lr": 1e-3, "epochs": [8], "batch_size": 8}  # for the small sizes; the paper's batch where smaller


def cosine(step: int, steps: int) -> float:
    """From 1 to 0 along half a cosine."""
    return 0.5 + 0.5 * math.cos(math.pi * step / steps)


# --lr-decay -> (step, steps of the run) -> the share of --lr that this step takes. A plugin may add a row.
LR_DECAYS: dict[str, Callable[[int, int], float] | None] = {"none": None, "cosine": cosine}


def by_preset(config: Namespace, subject: str) -> tuple[Mapping, ...]:
    """What size and preset give a "method" or "task", the first first. ConfigError without a row in Table 5 or 6."""
    chosen = getattr(config, subject)  # a task of a plugin needs no row
    rows = TABLE_6.get(chosen, TABLE_6["psr"]) if subject == "task" else TABLE_5.get(chosen, {})
    if config.level not in rows:
        levels = f"exists at {' and '.join(rows)} level, not at {config.level} level"
        raise ConfigError(f"--{subject} {chosen} {levels if rows else 'needs a row in TABLE_5 of presets.py'}")
    paper = rows[config.level]._asdict()
    if subject == "task":
        paper |= {"epochs": [paper["epochs"]], "lr": 1e-4, "max_residues": MAX_RESIDUES.get((chosen, config.level))}
        official = OFFICIAL_EPOCHS.get(chosen, {}) if config.preset == "official" else {}
        small = SMALL_TASK | {"batch_size": min(paper["batch_size"], SMALL_TASK["batch_size"])}
        return small if config.size != "paper" else {}, official, paper

    parent = parent_of(chosen)
    small = SMALLER.get((config.size, config.level), {}) | SMALLER.get((config.size, config.level, parent), {})
    usual = {"epochs": EPOCHS.get(config.preset, EPOCHS["paper"]), "valid_every": 1}
    if chosen not in STAGED:
        usual["epochs"] = [50]
        small = {name: [sum(value)] if name == "epochs" else value for name, value in small.items()}
    # A plugin's own row means what it says, at every size.
    return (paper, small, usual) if parent is None else (small, usual, paper)


def parent_of(method: str) -> str | None:
    """The method of the package whose row of TABLE_5 this one has: itself, or the one that a plugin varies."""
    return next((name for name in OURS if TABLE_5[name] is TABLE_5.get(method)), None)


class Difference(NamedTuple):
    """What the preset decides for a run."""

    field: str
    paper: object
    released_code: object
    row: str  # of differences.md


def differences(config: Namespace) -> list[Difference]:
    """What --preset decides for the run with these options, in the order of Algorithm 1."""
    subject = config.task if "task" in config else config.method
    words = {*subject.split("+"), config.encoder}
    if getattr(config, "max_length", None):
        words.add("crop")
    found = []
    for field in fields(Conventions):
        of, level = field.metadata["of"], field.metadata["level"]
        if field.name in LEFT_OUT.get(getattr(config, "ablation", ""), ()):
            continue
        if (not of or words & {*of}) and level in ("", config.level):
            paper, official = getattr(PAPER, field.name), getattr(OFFICIAL, field.name)
            found.append(Difference(field.name, paper, official, str(field.metadata["row"])))

    # What is not a field of the conventions.
    if "method" in config and subject in (*STAGED, "torsional"):
        from ..pretraining import trained_noise  # loads torch

        if config.epochs in EPOCHS.values():
            found.append(Difference("epochs", EPOCHS["paper"], EPOCHS["official"], "2"))
        paper, official = (trained_noise(subject, preset, config.ablation) for preset in ("paper", "official"))
        for stage, noise in paper.items():
            found.append(Difference(f"noise of stage {stage}", str(noise), str(official[stage]), "1, 2, 11"))
    if "task" in config and subject in OFFICIAL_EPOCHS:
        paper = [TABLE_6[subject][config.level].epochs]
        official = OFFICIAL_EPOCHS[subject]["epochs"]
        if config.epochs in (paper, official):
            found.append(Difference("epochs", paper, official, "22"))
    if "task" in config and subject in OFFICIAL_PLATEAU:
        found.append(Difference("rate falls by", "the best metric", " ".join(OFFICIAL_PLATEAU[subject]), "21"))
    return found


def table_of(differences: list[Difference], preset: str) -> str:
    """Differences as lines of a table; the column of the run's `preset` says so, unless it is a plugin's."""
    paper, official = (f"{name} (this run)" if name == preset else name for name in ("paper", "official"))
    rows = [Difference("by --preset", paper, official, "row of docs/differences.md"), *differences]
    return "\n".join(f"{x.field:21}  {x.paper!s:47}  {x.released_code!s:50}  {x.row}" for x in rows)
