"""Fine-tune a protein structure encoder on a downstream task, or apply a tuned model. See `siamdiff_min/finetune.py`.

python finetune.py --task psr                                            # a laptop, a demo set
torchrun --nproc_per_node 4 finetune.py --task ec --data FOLDER --init-from ENCODER.pt
"""

import sys

from siamdiff_min.cli import run
from siamdiff_min.files import console

if __name__ == "__main__":
    with console():
        sys.exit(run("finetune", sys.argv[1:]))
