"""The clock that the benchmarks share."""

import time

import torch


def timed(work, device: str = "cpu"):
    """What `work()` returns, and its seconds, until the GPU has done its part where there is one."""
    started = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started
