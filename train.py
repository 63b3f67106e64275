"""Pre-train a protein structure encoder with DiffPreT or SiamDiff. See `siamdiff_min/pretrain.py`.

python train.py --size tiny                          # a laptop, the bundled structures
torchrun --nproc_per_node 4 train.py --data FOLDER   # the paper's setting
"""

import sys

from siamdiff_min.cli import run
from siamdiff_min.files import console

if __name__ == "__main__":
    with console():
        sys.exit(run("train", sys.argv[1:]))
