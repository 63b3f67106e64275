"""The tables of this study's pages from its kept answers; `python -m studies 2026-11` prints them.

`results/fine-tuned` has METHOD/TASK.json with the metrics of every seed and the 95 % interval of the difference to
scratch, over draws of test families and of seeds, and for the second witness METHOD/TASK.npz with the metrics of all
draws. `results/pretrain` has the losses of pre-training, `results/mobility` Spearman's rho of every test chain.
"""

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.kept import files, kept
from benchmarks.probe_report import SCRATCH, cell, difference, holm, part, read_all, weights

RESULTS = Path(__file__).parent / "results"
FIRST = "res-atom accuracy, pip-atom auroc, psr-residue global_spearman, ec-residue fmax, msp-residue auroc"
SECOND = "psr-residue-decoys global_spearman, psr-residue-decoys mean_spearman, ec-residue-mean fmax, "
SECOND += "res-atom-environments accuracy"
FURTHER = "res-atom-long accuracy, msp-residue-frozen auroc, msp-residue-slow auroc"
RANDOM = "random-gearnet"


def fine_tuned(columns: str) -> list[str]:
    """Mean ± standard deviation over the seeds of every method, with the interval of its difference to scratch."""
    found, asked = defaultdict(dict), columns.split(", ")
    for name, content in files(RESULTS / "fine-tuned").items():
        method, task = name.split(".")[0].split("/")
        for column in asked:
            if name.endswith(".json") and column.split()[0] == task:
                result, metric = json.loads(content), column.split()[1]
                spread = f" ± {result['std'][metric]:.3f}" if len(result["test"]) > 1 else ""
                bounds = result.get("minus_scratch", {}).get(metric)
                gap = " ({:+.3f} .. {:+.3f})".format(*bounds) if bounds else ""
                found[method][column] = f"{result['mean'][metric]:.3f}{spread}{gap}"
    lines = [f"| | {' | '.join(asked)} |", "|---" * (len(asked) + 1) + "|"]
    order = sorted(found, key=lambda method: (method != "scratch", method))
    return lines + [f"| {m} | {' | '.join(found[m].get(column, '') for column in asked)} |" for m in order]


def corrected() -> list[str]:
    """PSR of the second witness with Holm's correction, which its plan did not ask for.

    The 2,000 draws of families, the same for all methods, each with 20 draws of two of the three seeds.
    """
    random, repeats = np.random.default_rng(0), 20
    rows = dict(kept(RESULTS / "fine-tuned"))

    def mean_of_seeds(method: str) -> np.ndarray:
        """Draws (repeats * 2000, 2) of both measures, the mean over two drawn seeds."""
        draws = np.tile(rows[f"{method}/psr-residue-decoys"]["draws"], (repeats, 1, 1))  # (draws, seeds, measures)
        seeds = random.integers(draws.shape[1], size=(len(draws), draws.shape[1] - 1))
        return np.take_along_axis(draws, seeds[:, :, None], axis=1).mean(1)

    p, intervals = {}, {}
    for method in ("diffpret", "siamdiff", "residue-type"):
        gain = mean_of_seeds(method) - mean_of_seeds("scratch")
        for measure, values in zip(("global rho", "mean rho"), gain.T):
            low, high = np.quantile(values, [0.025, 0.975])
            p[method, measure] = 2 * min((values <= 0).mean(), (values >= 0).mean())
            intervals[method, measure] = f"{low:+.3f} .. {high:+.3f}"
    lines = ["| method | measure | minus scratch, 95 % | p | p (Holm) |", "|---|---|---|---|---|"]
    adjusted = holm(p)
    return lines + [f"| {' | '.join(key)} | {intervals[key]} | {p[key]:.3f} | {adjusted[key]:.3f} |" for key in p]


def losses(folder: Path) -> list[str]:
    """The last losses on held-out chains of every pre-training run; in brackets those of the best constant."""
    lines = ["| run | steps | held-out losses |", "|---|---|---|"]
    for name, content in files(folder).items():
        read = [json.loads(line) for line in content.decode().splitlines()]
        last = [line for line in read if line["split"] == "valid"][-1:]
        for line in last:
            shown = {key: f"{line[key]:.3f}" for key in line if re.search("_(loss|accuracy|squared_error)$", key)}
            shown |= {
                key: f"{x} ({line[f'{key}_constant']:.3f})" for key, x in shown.items() if f"{key}_constant" in line
            }
            cells = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shown.items())
            lines.append(f"| {name.split('/')[0]} | {line['step']} | {cells} |")
    return lines


def conformers() -> list[str]:
    """The probes of real conformers beside those of random weights."""
    methods = read_all([RESULTS / "conformers"])["residue", "tiny"]
    methods |= {SCRATCH: read_all([RESULTS / "probe"])["residue", "tiny"][SCRATCH]}
    return part(methods, "residue", "tiny")


def mobility(folder: Path = RESULTS / "mobility") -> list[str]:
    """Which residues move? Mean correlations, and what real conformers change. Runs are called conf-KIND-SEED."""
    methods = defaultdict(dict)
    for name, row in kept(folder):
        known, own = np.unique(row["family"], return_inverse=True)
        total = np.stack([np.bincount(own, row["rho"]), np.bincount(own)], axis=1)
        drawn = weights(tuple(known.tolist())) @ total
        match = re.fullmatch(rf"(conf-\w+|{RANDOM})-(?:residue-tiny-)?(\d+)", name)
        method, seed = match.groups() if match else (name, 0)
        methods[method][int(seed)] = drawn[:, 0] / drawn[:, 1]
    lines = ["| features | runs | mean rho |", "|---|---|---|"]
    lines += [f"| {name} | {len(runs)} | {cell(runs, np.asarray)} |" for name, runs in methods.items()]
    lines += ["", "| | difference | 95 % interval | p |", "|---|---|---|---|"]
    tried = [name for name in ("conf-simulated", "conf-models", "conf-both") if name in methods]
    pairs = [(name, "conf-simulated") for name in tried[1:]] + [(name, RANDOM) for name in tried if RANDOM in methods]
    compared = {name: runs for name, runs in methods.items() if name.startswith("conf-") or name == RANDOM}
    for one, other in pairs:
        value, low, high, p = difference(compared, one, other, np.asarray)
        lines.append(f"| {one} minus {other} | {value:+.3f} | {low:+.3f} .. {high:+.3f} | {p:.2g} |")
    return lines
