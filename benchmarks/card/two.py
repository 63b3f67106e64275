"""Two processes on one card: gloo joins them, since NCCL refuses two on one.

    torchrun --nproc_per_node 2 benchmarks/card/two.py train --size tiny --level residue --max-steps 40 --out runs/two

It shows DDP, SyncBatchNorm, exact evaluation and a resumed run on tensors of a GPU; nothing of NCCL or of two cards.
"""

import os
import sys
from unittest import mock

import torch.distributed as dist

from siamdiff_min import cli

if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = "0"  # the card of both
    begin = dist.init_process_group
    with mock.patch.object(dist, "init_process_group", lambda _, **options: begin("gloo", **options)):
        sys.exit(cli.main())
