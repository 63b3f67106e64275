"""Pre-train a protein structure encoder with DiffPreT or SiamDiff. See `siamdiff_min/pretrain.py`.

python train.py --size tiny                          # a laptop, the bundled structures
torchrun --nproc_per_node 4 train.py --data FOLDER   # the paper's setting
"""

import os
import sys

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that wait soon sleep
from siamdiff_min.files import console
from siamdiff_min.pretrain import main

if __name__ == "__main__":
    with console():
        sys.exit(main())
