"""`python -m siamdiff_min` lists all commands and choices."""

import argparse

from . import ENCODERS, OBJECTIVES, __doc__, __version__
from .downstream.tasks import TASKS
from .encoders.weights import BUNDLED

TEXT = f"""{__doc__}
train.py           pre-train an encoder (in the repository)
finetune.py        fine-tune one on a task, score it, apply it (in the repository)
siamdiff-embed     embed structures                    python -m siamdiff_min.embed
siamdiff-report    draw a run as one page              python -m siamdiff_min.report
siamdiff-data      build and check stores, download    python -m siamdiff_min.data

--method           {", ".join(OBJECTIVES)}
--encoder          {", ".join(ENCODERS)}
--task             {", ".join(TASKS)}
--init-from        {", ".join(sorted(path.stem for path in BUNDLED.glob("*.pt")))}, or a file
"""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m siamdiff_min", description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.parse_args()
    parser.print_help()
