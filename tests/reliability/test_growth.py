"""Memory does not grow with the number of steps."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import standin

from siamdiff_min.training import engine

SOAK = pytest.mark.soak


def resident() -> float:
    """Memory of this process in MB, what it shares with others left out."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.parametrize("steps, bound", [(200, 5), pytest.param(2300, 5, marks=SOAK)])
def test_memory_does_not_grow(steps, bound, tmp_path, monkeypatch):
    """Megabytes from step 100 to the end, with a save, a validation or a line in the log every few steps."""
    seen, seed_of = [], engine.seed_of

    def measured(*key):  # with three numbers once in every step of the loop
        if len(key) == 3:
            seen.append(key[1])
            if key[1] in (100, steps - 1):
                gc.collect()
                at[key[1]] = resident()
        return seed_of(*key)

    at: dict[int, float] = {}
    monkeypatch.setattr(engine, "seed_of", measured)
    options = "--epochs", steps // 20, "--save-every", 7
    standin.train(standin.configure(tmp_path, *options))
    assert len(seen) >= steps
    growth = at[steps - 1] - at[100]
    assert growth < bound, at


@pytest.mark.full
def test_bfloat16_keeps_nothing_of_shapes_that_are_gone():
    """150 of them took 0.6 GB where the CPU multiplies bfloat16: torch and oneDNN keep a plan of each."""
    code = """
import resource, torch
from siamdiff_min.training.ranks import launch
torch.set_num_threads(1)
layer, peak = torch.nn.Linear(64, 512), []
with launch("cpu", amp="bf16"):
    for rows in range(150):
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.randn(2000 + rows, 64)).sum().backward()
        peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peak[-1] - peak[20])
"""
    settings = {
        name: os.environ[name] for name in os.environ.keys() - {"LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    }
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300e3
