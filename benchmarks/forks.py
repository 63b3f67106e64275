"""How often a process that is forked right after collectives of gloo never runs (docs/reliability.md).

    torchrun --nproc_per_node 2 -m benchmarks.forks [--forks 4000] [--pause 0]

Each process forks again and again, some seconds (--pause) after twenty broadcasts, and counts the children that have
not ended after three seconds.
"""

import argparse
import os
import platform
import signal
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forks", description=__doc__.splitlines()[0])
    parser.add_argument("--forks", type=int, default=4000)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between broadcasts and fork")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    tensors, hung = [torch.zeros(8) for _ in range(20)], 0
    for _ in range(args.forks):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
        if args.pause:  # even one of 0 s would let the threads of gloo run
            time.sleep(args.pause)
        hung += hangs()
    print(f"Python {platform.python_version()}: {hung} of {args.forks} hung", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
