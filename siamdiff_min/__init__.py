"""DiffPreT and SiamDiff: pre-training protein structure encoders by sequence-structure diffusion, in plain PyTorch.

Start reading at `siamdiff_min/pretraining/siamdiff.py`, which is Algorithm 1 of the paper on one screen. Five folders
are the method: protein, encoders, pretraining, downstream and training. They know nothing of the others: `reading/`
makes proteins of files and keeps them, `sets/` adds the paper's labels. With the files beside this one, the ground
(files, machine, conventions, statistics) and the commands that train, they are the reference: everything of the paper
runs without `tools/`, which is for those who use encoders. No other file imports it; the commands load it by name.
"""

import sys
from typing import TYPE_CHECKING

if sys.version_info < (3, 10):  # noqa: UP036  # a clone asks nobody; only pip reads what pyproject.toml needs
    sys.exit("error: siamdiff_min needs Python 3.10 or newer, and this is %d.%d" % sys.version_info[:2])  # noqa: UP031
from .files import (
    CheckpointError,
    ConfigError,
    MachineError,
    SiamDiffError,
    StoreError,
    StructureError,
    UnwantedError,
    WriteError,
    load_module,
)

if TYPE_CHECKING:  # what `__getattr__` loads, for those who read types
    from .downstream.tasks import TASKS, Task
    from .embedding import Embedding
    from .encoders import ENCODERS, GVPGNN, Encoder, Encoding, ESMGearNet, GearNet
    from .encoders.weights import list_encoders, load_encoder
    from .pretraining import OBJECTIVES, SCHEDULES, Schedule, SiamDiff
    from .protein.protein import Protein
    from .reading.parse import read_structure
    from .reading.sources import bundled
    from .reading.structure import Structure
    from .tools.embed.embedder import Embedder
    from .tools.mutants.ranking import Ranking, rank_mutants
    from .tools.nearest.scale import whiten
    from .tools.random_encoder import random_encoder

__version__ = "0.5.0"
ON_DEMAND = {  # name -> the module that has it. Torch and scikit-learn load slowly, and a wrong command needs neither
    **dict.fromkeys(("ENCODERS", "GVPGNN", "ESMGearNet", "Encoder", "Encoding", "GearNet"), ".encoders"),
    **dict.fromkeys(("list_encoders", "load_encoder"), ".encoders.weights"),
    **dict.fromkeys(("OBJECTIVES", "SCHEDULES", "Schedule", "SiamDiff"), ".pretraining"),
    **dict.fromkeys(("TASKS", "Task"), ".downstream.tasks"),
    **dict.fromkeys(("Ranking", "rank_mutants"), ".tools.mutants.ranking"),
    "Embedder": ".tools.embed.embedder",
    "Embedding": ".embedding",
    "bundled": ".reading.sources",
    "random_encoder": ".tools.random_encoder",
    "read_structure": ".reading.parse",
    "whiten": ".tools.nearest.scale",
    "Protein": ".protein.protein",
    "Structure": ".reading.structure",
}
PARTS = {  # of tools/, by the names under which `reading` and `Protein` ask for them: see `files.part`
    "binary_cif_models": ".tools.formats.bcif",
    "biopython_models": ".tools.formats.biopython",
    **dict.fromkeys(("foldcomp_members", "foldcomp_text"), ".tools.formats.foldcomp"),
    "from_atom37": ".tools.formats.arrays",
    "from_ca": ".tools.formats.arrays",
    "chains_of": ".tools.build",
    "check_plausible": ".tools.formats.plausible",
    "is_different": ".tools.formats.content",
    **dict.fromkeys(("told_by_tables", "plddt_by_residue", "plddt_of"), ".tools.formats.plddt"),
    "repair": ".tools.formats.repair",
    "remarks": ".tools.table.table_set",
}
__all__ = ["ConfigError", "MachineError", "SiamDiffError", "StoreError", "StructureError", "UnwantedError"]
__all__ += ["ENCODERS", "GVPGNN", "CheckpointError", "ESMGearNet", "Embedder", "Embedding", "Encoder", "Encoding"]
__all__ += ["OBJECTIVES", "SCHEDULES", "TASKS", "GearNet", "Protein", "Ranking", "Schedule", "SiamDiff", "Structure"]
__all__ += ["Task", "WriteError", "bundled", "list_encoders", "load_encoder", "random_encoder", "rank_mutants"]
__all__ += ["read_structure", "whiten"]


def __getattr__(name: str):
    if name not in ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(load_module(ON_DEMAND[name]), name)
    except ConfigError as error:
        raise AttributeError(str(error)) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
