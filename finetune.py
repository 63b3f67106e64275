"""Fine-tune a protein structure encoder on a downstream task, or apply a tuned model. See `siamdiff_min/finetune.py`.

python finetune.py --task psr                                            # a laptop, a demo set
torchrun --nproc_per_node 4 finetune.py --task ec --data FOLDER --init-from ENCODER.pt
"""

import os
import sys

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that wait soon sleep
from siamdiff_min.cli import check_table
from siamdiff_min.files import console

if __name__ == "__main__":
    with console():
        check_table(sys.argv[1:])
        from siamdiff_min.finetune import main  # loads torch

        sys.exit(main())
