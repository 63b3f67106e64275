"""What the options choose from, by name, and the files they name: known before torch is loaded.

Torch takes two seconds to load, and a wrong command line is answered in a tenth of that. The tables themselves
(`OBJECTIVES`, `ENCODERS`, `TASKS`) have functions that need torch.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from .files import CheckpointError, ConfigError

IDENTITY = ("encoder", "level", "size", "preset")  # an encoder is built again from these
SIZES, LEVELS = ("paper", "medium", "small", "tiny"), ("atom", "residue")
ESM_NAMES = ("8M", "35M", "150M", "650M", "3B", "15B")  # the published models of ESM-2
ONE_LEVEL = {  # encoders that exist at one level alone
    "gvp": "atom",
    "esm-gearnet": "residue",
    **{f"esm-gearnet-{name}": "residue" for name in ESM_NAMES},
    "esm-gearnet-edge": "residue",
}
STAGED = ["diffpret", "siamdiff"]  # trained in two stages (Sec. 3.4), the others in one; a plugin may add its own
ABLATIONS = {  # Table 3 (Sec. 5.3) and App. G, as arguments of Schedule.ablated
    "none": {},
    "no-clash-check": {},  # ours: the schedule stays, build_siamdiff leaves out the check of Sec. 4.1
    "no-sequence": {"sequence": False},
    "no-structure": {"structure": False},
    "small-noise": {"t": 1},
    "large-noise": {"t": -1},  # T. All types and side chains are hidden there: at atom level both views are the same
}
# Options of all commands whose files and folders must be there.
PATHS = ["data", "esm", "predict", "structures", "structure", "measured", "table", "path", "run", "query"]
PATHS += ["among", "scale", "fit"]
INCLUDE = ("mean", "per_residue", "per_atom")  # what an embedding may have
BUNDLED = Path(__file__).parent / "weights"  # the encoders that come with the package, NAME.pt


class Choices:
    """The names of a table: those `known` here, and those that a plugin, which has loaded its module, put into it."""

    def __init__(self, known: Iterable[str], module: str, table: str):
        self.known = known
        self.module = f"{__package__}.{module}"
        self.table = table

    def __iter__(self) -> Iterator[str]:
        added = getattr(sys.modules.get(self.module), self.table, ())
        return iter(dict.fromkeys([*self.known, *added]))


def find_weights(name: str | Path) -> Path:
    """The file at a path; without one, the encoder of that name in the package. Raises CheckpointError."""
    bundled = {path.stem: path for path in BUNDLED.glob("*.pt")}
    if os.path.isfile(name) or (str(name) not in bundled and os.path.exists(name)):
        return Path(name)
    if str(name) not in bundled:
        raise CheckpointError(f"could not read {name}: No such file; encoders of the package are {', '.join(bundled)}")
    return bundled[str(name)]


def check_there(options: Namespace) -> None:
    """Raise ConfigError for the first file that options name and that is not there, unless a plugin may make it."""
    if getattr(options, "plugin", None):
        return
    for name in PATHS:
        given = getattr(options, name, None)
        for path in given if isinstance(given, list) else [given]:
            if path is not None and not (os.path.isfile(path) or os.path.isdir(path)):
                raise ConfigError(f"{path}: cannot be opened (no such file or folder)")
