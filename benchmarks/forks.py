"""How often a process that is forked right after collectives of gloo never runs (docs/reliability.md).

    torchrun --nproc_per_node 2 -m benchmarks.forks [FORKS] [PAUSE]

Each process forks FORKS times (4000), PAUSE seconds (0) after twenty broadcasts, and counts the children that have not
ended after three seconds.
"""

import os
import platform
import signal
import sys
import time

import torch
import torch.distributed as dist


def hangs() -> bool:
    """Fork a child that ends at once; whether it does not."""
    child = os.fork()
    if not child:
        os._exit(0)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main(forks: int = 4000, pause: float = 0.0) -> None:
    dist.init_process_group("gloo")
    tensors, hung = [torch.zeros(8) for _ in range(20)], 0
    for _ in range(forks):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
        if pause:  # even one of 0 s would let the threads of gloo run
            time.sleep(pause)
        hung += hangs()
    print(f"Python {platform.python_version()}: {hung} of {forks} hung", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:])))
