"""The tables of this study's pages from its kept answers; `python -m studies 2026-11-scale` prints them.

`results/probe` has METHOD-CHAINS-atom-small-SEED.npz of `benchmarks.probe --valid`, `results/heldout.tsv` the losses
of every checkpoint on held-out chains. CHAINS ends in -4e if the run belongs to equal epochs alone. Intervals draw
families (2,000 draws). If both rows have two runs or more, they hold the spread of runs too, as in
`benchmarks.probe_report`.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from benchmarks.kept import kept, rows_of
from benchmarks.probe_report import PACKAGE, PROBES, SCRATCH, Result, difference, mean_of, read_all, result_of, weights

RESULTS = Path(__file__).parent / "results"
CHAINS = {"650": 650, "1300": 1_300, "2600": 2_600, "all": 5_170}
NAMES = {"diffpret": "DiffPreT", "siamdiff": "SiamDiff", "clean": "SiamDiff, clean partner"}
EPOCHS = "-4e"  # 4 epochs of any corpus, in place of equal steps
RUN = rf"({'|'.join(NAMES)})-({'|'.join(CHAINS)})({EPOCHS})?"
OLD = "../../2026-11-benchmarks/results/probe"
COMPARED = {  # title -> folders
    "new validation families": ["probe"],
    "old validation families": ["probe-old-valid"],
    "new test families": ["probe-test"],
    "old test families": ["probe-test-old", OLD],
}
NEW = tuple(f"{run}-{level}-{size}-0" for level, (size, run) in PACKAGE.items())
COUNTS = "counts"


def interval(draws: np.ndarray) -> str:
    """The middle 95 % of draws of a difference, with signs."""
    return "{:+.3f} to {:+.3f}".format(*np.quantile(draws, (0.025, 0.975)))


def read_losses(path: Path) -> dict[str, dict[int, np.ndarray]]:
    """METHOD-CHAINS -> seed -> structure loss, sequence loss, types: last checkpoint, new validation chains."""
    last = defaultdict(dict)
    for row in rows_of(path):  # the steps of a run rise
        if (match := re.fullmatch(rf"(?P<name>{RUN})-(?P<seed>\d+)", row["run"])) and row["data"] == "v4":
            last[match["name"]][int(match["seed"])] = np.array([float(row[name]) for name in row if "_" in name])
    return last


def gap_of(rows: dict[str, dict[int, Result]], one: str, other: str) -> str:
    """One row minus another in mean skill, with its interval and what is drawn for it."""
    if min(len(rows[one]), len(rows[other])) > 1:
        value, low, high, _ = difference(rows, one, other, Result.skill)
        return f"{value:+.3f} ({low:+.3f} to {high:+.3f}, families and runs)"
    gap = mean_of(rows[one], Result.skill) - mean_of(rows[other], Result.skill)
    return f"{gap[0]:+.3f} ({interval(gap[1:])}, families drawn)"


def curve(rows: dict[str, dict[int, Result]], losses: dict[str, dict[int, np.ndarray]]) -> list[str]:
    """The table of all runs at `small`, and the differences of the plan."""
    titles = ("", "chains", "runs", "mean skill", "minus random weights", "with the counts")
    titles += ("structure loss", "sequence loss", "types")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    alone = {name: runs for name, runs in rows.items() if name == SCRATCH or re.fullmatch(RUN, name)}
    beside = {name: runs for name, runs in rows.items() if re.fullmatch(RUN + r"\+counts", name)}
    for name in ordered(alone):
        method, corpus, epochs = re.fullmatch(RUN, name).groups()
        counted = beside.get(f"{name}+counts")
        cells = [NAMES[method] + ", 4 epochs" * bool(epochs), f"{CHAINS[corpus]:,}", str(len(alone[name]))]
        cells += [f"{mean_of(alone[name], Result.skill)[0]:.3f}", gap_of(alone, name, SCRATCH)]
        cells += [f"{mean_of(counted, Result.skill)[0]:.3f}" if counted else ""]
        cells += [f"{value:.3f}" for value in np.mean([*losses[name].values()], axis=0)] if name in losses else []
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    pairs = [(f"{method}-all", f"{method}-650") for method in ("diffpret", "siamdiff")] + [
        ("clean-2600", "siamdiff-2600")
    ]
    trained = {name: runs for name, runs in alone.items() if name != SCRATCH}  # the spread of random weights is another
    for kind, end in ((trained, ""), (beside, "+counts")):
        for one, other in ((one + end, other + end) for one, other in pairs):
            if one in kind and other in kind:
                lines.append(f"* {one} minus {other}: mean skill {gap_of(kind, one, other)}")
    for one, other in pairs[:-1]:
        if seeds := sorted(losses.get(one, {}).keys() & losses.get(other, {}).keys()):
            gaps = ", ".join(f"{losses[one][seed][1] - losses[other][seed][1]:+.3f}" for seed in seeds)
            lines.append(f"* {one} minus {other}: sequence loss {gaps} (seeds {', '.join(map(str, seeds))})")
    return lines


def ordered(names) -> list[str]:
    """The runs among some names: by method, equal steps before equal epochs, then by the number of chains."""
    found = [match for name in names if (match := re.fullmatch(RUN, name))]
    key = [(list(NAMES).index(m[1]), bool(m[3]), CHAINS[m[2]], m[0]) for m in found]
    return [name for *_, name in sorted(key)]


def compared(folders: list[Path]) -> list[str]:
    """Scores of all rows of some folders; then those of NEW minus every row, and every row minus the counts."""
    rows = {name: result_of(row) for name, row in kept(*folders)}
    lines = [f"| | mean skill | {' | '.join(PROBES)} |", "|---" * (len(PROBES) + 2) + "|"]
    for name, row in rows.items():
        scores = " | ".join(f"{row.scores[probe, 100][0]:.3f}" for probe in PROBES)
        lines.append(f"| {name} | {row.skill()[0]:.3f} | {scores} |")
    lines.append("")
    for name in (name for name in rows if name != COUNTS):
        new = [f"{one}{'+counts' * ('+' in name)}" for one in NEW]
        new = new[: new.index(name)] if name in new else new  # each pair once
        for one, other in (*((one, name) for one in new), (name, COUNTS)):
            if one in rows and other in rows:
                gap = rows[one].skill() - rows[other].skill()
                lines.append(f"* {one} minus {other}: {gap[0]:+.3f} ({interval(gap[1:])})")
    return lines


def report(folder: Path) -> list[str]:
    """The curve, then the tables of COMPARED."""
    lines = curve(read_all([folder / "probe"])["atom", "small"], read_losses(folder / "heldout.tsv"))
    for title, folders in COMPARED.items():
        lines += ["", f"## {title}", "", *compared([folder / name for name in folders])]
    return lines


def residue_types(folder: Path) -> list[str]:
    """A line for every row of RES: accuracy, and minus the row from scratch; intervals draw families (one chain each).

    NAME-SEED is one of several seeds; the residues asked are the same in all rows.
    """
    rows = defaultdict(list)
    for name, row in kept(folder):
        right, total = (weights(tuple(row["names"].tolist())) @ row["sums"].astype(float)).T
        rows[re.sub(r"-\d$", "", name)].append(right / total)
    mean = {name: np.mean(runs, axis=0) for name, runs in rows.items()}
    lines = ["| | runs | accuracy | minus scratch |", "|---|---|---|---|"]
    base = mean["scratch-atom"]
    for name, drawn in sorted(mean.items(), key=lambda row: row[1][0]):
        gap = f"{drawn[0] - base[0]:+.3f} ({interval(drawn[1:] - base[1:])})" if drawn is not base else ""
        low, high = np.quantile(drawn[1:], (0.025, 0.975))
        lines.append(f"| {name} | {len(rows[name])} | {drawn[0]:.3f} ({low:.3f} to {high:.3f}) | {gap} |")
    return lines


def neighbours(path: Path) -> list[str]:
    """A line for every row: the share of chains whose nearest other chain is a relative; intervals draw clusters."""
    rows = rows_of(path)
    cluster = {row["chain"]: row["cluster"] for row in rows}
    size = Counter(cluster.values())
    lines = ["| | chains | a relative is nearest | share |", "|---|---|---|---|"]
    for name in [column for column in rows[0] if column not in ("chain", "cluster")]:
        hits = defaultdict(list)
        for row in rows:
            if size[row["cluster"]] > 1:
                hits[row["cluster"]].append(row["cluster"] == cluster[row[name]])
        right, asked = np.array([[sum(x), len(x)] for x in hits.values()]).T
        drawn = weights(tuple(hits))[1:]
        low, high = np.quantile(drawn @ right / (drawn @ asked), (0.025, 0.975))
        share = f"{right.sum() / asked.sum():.3f} ({low:.3f} to {high:.3f})"
        lines.append(f"| {name} | {asked.sum()} | {right.sum()} | {share} |")
    return lines
