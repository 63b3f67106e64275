"""Fine-tuning on PSR: differences to scratch with Holm's correction, from the draws that are kept.

    python -m studies.2026-11.holm

Added after the study, which stated intervals without a correction. The draws are those of study_results.py: 2,000 of
the test families, the same for all methods. Here each is taken with 20 draws of two of the three seeds.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.probe_report import holm

RESULTS = Path(__file__).parent / "results"
METHODS, MEASURES, REPEATS = ("diffpret", "siamdiff", "residue-type"), ("global rho", "mean rho"), 20


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.2026-11.holm", description=__doc__.splitlines()[0])
    parser.parse_args(argv)
    random = np.random.default_rng(0)

    def mean_of_seeds(method: str) -> np.ndarray:
        """Draws (REPEATS * 2000, 2) of both measures, the mean over two drawn seeds."""
        with np.load(RESULTS / method / "psr-residue-decoys.npz", allow_pickle=False) as kept:
            draws = np.tile(kept["draws"], (REPEATS, 1, 1))  # (draws, seeds, measures)
        seeds = random.integers(draws.shape[1], size=(len(draws), draws.shape[1] - 1))
        return np.take_along_axis(draws, seeds[:, :, None], axis=1).mean(1)

    p, lines = {}, {}
    for method in METHODS:
        gain = mean_of_seeds(method) - mean_of_seeds("scratch")
        for measure, values in zip(MEASURES, gain.T):
            low, high = np.quantile(values, [0.025, 0.975])
            p[method, measure] = 2 * min((values <= 0).mean(), (values >= 0).mean())
            lines[method, measure] = f"{low:+.3f} .. {high:+.3f}"
    adjusted = holm(p)
    print("| method | measure | minus scratch, 95 % | p | p (Holm) |\n|---|---|---|---|---|")
    for key, interval in lines.items():
        print(f"| {' | '.join(key)} | {interval} | {p[key]:.3f} | {adjusted[key]:.3f} |")


if __name__ == "__main__":
    main()
