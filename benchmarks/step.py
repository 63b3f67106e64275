"""Time and memory of one full pre-training step: both views forward, all heads, backward, Adam.

    python -m benchmarks.step [--method all] [--level atom residue] [--size paper tiny] [--amp off bf16] [--device cpu]

The batches are real: four 100-residue chains (atom level) or four 150-residue chains (residue level), in
`benchmarks/batches/`. Prints one line per configuration: median and range of the step in seconds, proteins per second,
peak memory. The settings of a method are interleaved, so that a shared machine slows all of them alike.
"""

import argparse
import itertools
import platform
import resource
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import ATOM_ELEMENT
from siamdiff_min.protein.protein import Protein


def load_batch(level: str) -> Protein:
    """The benchmark batch of a level, as float32 on the CPU."""
    with np.load(Path(__file__).parent / "batches" / f"{level}.npz", allow_pickle=False) as arrays:
        a = {name: torch.from_numpy(x) for name, x in arrays.items()}
    sizes = a["num_residues"]
    return Protein(
        pos=a["pos"],
        element=torch.tensor(ATOM_ELEMENT)[a["atom_name"].long()],
        atom_name=a["atom_name"].long(),
        atom_residue=a["atom_residue"].long(),
        residue_type=a["residue_type"].long(),
        masked=torch.zeros(len(a["residue_type"]), dtype=torch.bool),
        residue_number=a["residue_number"].long(),
        insertion_code=torch.full((len(a["residue_type"]),), ord(" ")),
        residue_index=torch.cat([torch.arange(n) for n in sizes.tolist()]),
        chain=torch.zeros(len(a["residue_type"]), dtype=torch.long),
        residue_graph=torch.arange(len(sizes)).repeat_interleave(sizes),
        num_graphs=len(sizes),
    )


class Step:
    """One configuration, ready to be stepped and timed."""

    def __init__(self, method: str, level: str, encoder: str, size: str, amp: str, device: str, copies: int):
        self.name = f"{method} {level} {encoder} {size} amp={amp}"
        torch.manual_seed(0)
        self.objective = OBJECTIVES[method](ENCODERS[encoder](level, size), level).to(device)
        self.adam = torch.optim.Adam(self.objective.parameters(), lr=1e-4, fused=True)
        self.batch = Protein.pack([load_batch(level)] * copies).to(device)
        self.amp, self.device, self.seconds = amp, device, []

    def run(self, seed: int) -> None:
        generator = torch.Generator(self.device).manual_seed(seed)
        started = time.perf_counter()
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.amp == "bf16"):
            loss, _ = self.objective(self.batch, generator)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - started)


def peak_memory(device: str) -> float:
    """GB: of the GPU's tensors, or of the whole process on a CPU (a high-water mark: it never falls)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", nargs="+", default=["siamdiff"], choices=["all", *OBJECTIVES])
    parser.add_argument("--encoder", nargs="+", default=["gearnet"], choices=list(ENCODERS))
    parser.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    parser.add_argument("--size", nargs="+", default=["paper"], choices=["paper", "tiny"])
    parser.add_argument("--amp", nargs="+", default=["off"], choices=["off", "bf16"])
    parser.add_argument("--copies", type=int, default=1, help="the batch is repeated so many times (4 proteins each)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    name = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {args.device} ({name}), {platform.machine()}")
    for method in list(OBJECTIVES) if "all" in args.method else args.method:  # one at a time: some weigh 1.4 GB
        steps = []
        for setting in itertools.product([method], args.level, args.encoder, args.size, args.amp):
            try:
                steps.append(Step(*setting, args.device, args.copies))
            except ValueError as error:  # there is no such thing at this level
                print(f"{' '.join(setting)}: {error}")
        for repeat in range(args.repeats + 1):  # the first round warms up
            for step in steps:
                step.run(repeat)
        for step in steps:
            seconds = step.seconds[1:]
            median = statistics.median(seconds)
            spread = f"{min(seconds):.3f} .. {max(seconds):.3f}"
            print(
                f"{step.name}: {median:.3f} s ({spread}), {step.batch.num_graphs / median:.1f} proteins/s", flush=True
            )
    print(f"peak memory of the run: {peak_memory(args.device):.2f} GB")


if __name__ == "__main__":
    main()
