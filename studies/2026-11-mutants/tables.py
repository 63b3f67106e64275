"""The tables of this study's page from its kept answers; `python -m studies 2026-11-mutants` prints them.

In results.zip `draws/NAME.npz` has a row of scores for every draw, `draws/s461.npz` the scores of every mutant of S461.
Intervals are over 10,000 draws of proteins.
"""

from pathlib import Path

import numpy as np

from benchmarks.kept import kept
from benchmarks.mutant_power import COLUMNS as AGAIN_COLUMNS
from siamdiff_min.downstream.metrics import spearman

RESULTS = Path(__file__).parent / "results" / "draws"
SIZES = (8, 24, 48, 96, 192)  # mutants that are measured
COLUMNS = ["random", "size", "draw", "tested", "model", "floor", "ranking", "odds", "blosum", "error", "error_mean"]
COLUMNS += ["covered", "width", "said_rho", "said_low", "said_floor", "said_ranking", "said_covered"]
CHOSEN = ("1PGA", "1STN", "1BNI", "2LZM")
ROWS = {"model": "the model", "floor": "types and burial", "ranking": "no measurements", "odds": "log-odds alone"}
ROWS |= {"blosum": "BLOSUM62"}
AGAIN = RESULTS.with_name("verdict")  # the draws again, with the verdict of 28 November


def read() -> dict[str, np.ndarray]:
    """Assay -> scores of its draws (D, COLUMNS)."""
    return {name: arrays["rows"] for name, arrays in kept(RESULTS) if "rows" in arrays}


def of(rows: np.ndarray, column: str, size: int, random: bool = False) -> np.ndarray:
    """A column of the draws with `size` measured mutants."""
    return rows[(rows[:, 0] == random) & (rows[:, 1] == size), COLUMNS.index(column)].astype(float)


def mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def interval(values: np.ndarray) -> str:
    """Mean over proteins and its 95 % interval."""
    values = np.asarray(values)[~np.isnan(values)]
    drawn = values[np.random.default_rng(0).integers(len(values), size=(10000, len(values)))].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{values.mean():+.2f} ({low:+.2f} to {high:+.2f}), {len(values)} proteins"


def groups(data: dict) -> dict[str, list[str]]:
    return {
        "the four that choices were made on": [x for x in CHOSEN if x in data],
        "proteins looked at once": sorted(x for x in data if x not in CHOSEN and x != "GB1-double"),
    }


def curves() -> list[str]:
    """Mean rho at new positions over proteins."""
    data, lines = read(), []
    for title, names in groups(data).items():
        for random in (False, True):
            lines += [f"### {title}, {'random mutants' if random else 'new positions'}", ""]
            count = [sum(len(of(data[x], "model", size, random)) > 0 for x in names) for size in SIZES]
            sizes = [size for size, any_ in zip(SIZES, count) if any_]
            lines += [f"| | {' | '.join(map(str, sizes))} |", "|---" * (len(sizes) + 1) + "|"]
            for column, name in ROWS.items():
                found = [[mean(of(data[x], column, size, random)) for x in names] for size in sizes]
                lines.append(f"| {name} | {' | '.join(f'{np.nanmean(x):.2f}' for x in found)} |")
            lines += [f"| proteins | {' | '.join(str(x) for x in count if x)} |", ""]
    return lines


def gains() -> list[str]:
    """The model minus others at new positions, over proteins."""
    data, lines = read(), []
    for title, names in groups(data).items():
        lines += [f"### {title}", "", "| measured | minus | rho |", "|---|---|---|"]
        for size in SIZES:
            for other in ("floor", "ranking", "odds", "blosum"):
                gap = [mean(of(data[x], "model", size) - of(data[x], other, size)) for x in names]
                if np.isfinite(gap).sum() > 1:
                    lines.append(f"| {size} | {ROWS[other]} | {interval(np.array(gap))} |")
        lines.append("")
    return lines


def proteins() -> list[str]:
    """Every assay: rho at new positions without measurements, and with 24 and 48."""
    pairs = " | ".join(f"{size}: model, floor" for size in (24, 48, 192))
    lines = [f"| assay | no measurements | log-odds | BLOSUM62 | {pairs} |"]
    lines.append("|---" * 7 + "|")
    for name, rows in [x for x in read().items() if len(of(x[1], "model", 8))]:
        cells = [f"{mean(of(rows, x, 8)):.2f}" for x in ("ranking", "odds", "blosum")]
        for size in (24, 48, 192):
            pair = [mean(of(rows, x, size)) for x in ("model", "floor")]
            cells.append("" if np.isnan(pair[0]) else "{:.2f}, {:.2f}".format(*pair))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def verdicts() -> list[str]:
    """How often the command was right about itself, and how many values its intervals hold."""
    data, lines = read(), []
    for title, names in groups(data).items():
        rows = np.concatenate([data[x] for x in names])
        rows = rows[(rows[:, 0] == 0) & (rows[:, 1] >= 24)]
        get = {name: rows[:, k] for k, name in enumerate(COLUMNS)}
        yes, better, gain = get["said_low"] > 0, get["said_floor"] > 0, get["model"] - get["floor"]
        off = get["said_rho"] - get["model"]
        each = [mean(of(data[x], "covered", size)) for x in names for size in SIZES[1:]]
        found = {
            "better than chance": (yes, f"rho .1 or more in {np.mean(get['model'][yes] >= 0.1):.0%}"),
            "not told apart from chance": (~yes, f"rho below .3 in {np.mean(get['model'][~yes] < 0.3):.0%}"),
            "better than types and burial": (better, f"better in {np.mean(gain[better] > 0):.0%}"),
            "not better than types and burial": (~better, f"not better in {np.mean(gain[~better] <= 0):.0%}"),
            "rho at positions left out": (
                yes | True,
                f"too high by {off.mean():+.2f}, typically off by {np.std(off):.2f}",
            ),
        }
        held = f"{get['covered'].mean():.1%} of new values; {np.nanmean(each):.1%} if assays and sizes weigh the same"
        found[f"90 % intervals hold {get['said_covered'].mean():.1%}"] = (yes | True, held)
        lines += [f"### {title}, 24 measured or more", "", "| said | draws | and was |", "|---|---|---|"]
        lines += [f"| {said} | {count.sum()} | {was} |" for said, (count, was) in found.items()]
        lines.append("")
    return lines


def zero_shot() -> list[str]:
    """S461 without measurements: rho within proteins of 8 mutants or more, and over all mutants."""
    arrays = dict(kept(RESULTS))["s461"]
    odds = (arrays["residue"] / arrays["residue"].std() + arrays["atom"] / arrays["atom"].std()) / 2
    near = (arrays["neighbours"] - arrays["neighbours"].mean()) / arrays["neighbours"].std()
    scores = {"log-odds and burial": odds / odds.std() - near / 2, "log-odds alone": odds, "BLOSUM62": arrays["blosum"]}
    names, count = np.unique(arrays["protein"], return_counts=True)
    large = [arrays["protein"] == name for name in names[count >= 8]]
    found = {k: np.array([spearman(x[r], arrays["y"][r]) for r in large]) for k, x in scores.items()}
    lines = ["| | rho within proteins | over all mutants |", "|---|---|---|"]
    for name, values in found.items():
        lines.append(f"| {name} | {interval(values)} | {spearman(scores[name], arrays['y']):.2f} |")
    lines.append(f"| log-odds alone minus BLOSUM62 | {interval(found['log-odds alone'] - found['BLOSUM62'])} | |")
    return lines


# ---- the verdict of 28 November --------------------------------------------------------------------------------------


def again() -> dict[str, dict[str, np.ndarray]]:
    """Assay -> a column of scores for every draw at new positions with 24 measured or more."""
    return {name: dict(zip(AGAIN_COLUMNS, arrays["rows"].T)) for name, arrays in kept(AGAIN) if len(arrays["rows"])}


def share(hits: np.ndarray) -> str:
    """How many of how many."""
    return f"{int(hits.sum())} of {len(hits)}" if len(hits) else ""


def then_by_protein() -> list[str]:
    """What the verdict of the study was worth, by protein: beside the share in all draws, whatever it said."""
    lines = ["| assay | draws | rho .1 or more | of those called better | above the floor | of those called better |"]
    lines.append("|---" * 6 + "|")
    for name, rows in read().items():
        rows = rows[(rows[:, 0] == 0) & (rows[:, 1] >= 24)]
        if not len(rows):
            continue
        get = dict(zip(COLUMNS, rows.T))
        right = get["model"] >= 0.1
        more = get["model"] > get["floor"]
        cells = [share(right), share(right[get["said_low"] > 0]), share(more), share(more[get["said_floor"] > 0])]
        lines.append(f"| {name} | {len(rows)} | {' | '.join(cells)} |")
    return lines


def now_by_protein() -> list[str]:
    """The same with the verdict of 28 November."""
    lines = ["| assay | draws | rho .1 or more | of those called better | above the floor | of those called better |"]
    lines.append("|---" * 6 + "|")
    for name, get in again().items():
        right = get["model"] >= 0.1
        more = get["model"] > get["floor"]
        cells = [share(right), share(right[get["better"] > 0]), share(more), share(more[get["better_floor"] > 0])]
        lines.append(f"| {name} | {len(right)} | {' | '.join(cells)} |")
    return lines


def called(draws: dict[str, np.ndarray], better: str, better_floor: str) -> tuple[str, str]:
    """Of draws with a true rho of .3 or more, how many were called better; of those with a true gain of .1 or more."""
    good = draws["model"] >= 0.3
    gained = draws["model"] - draws["floor"] >= 0.1
    return share(draws[better][good] > 0), share(draws[better_floor][gained] > 0)


def power() -> list[str]:
    """How many draws with something to be found were called better, then and now, by protein and size."""
    head = ["assay", "measured", "rho .3 or more: then", "now", "gain .1 or more: then", "now"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    old = read()
    found = again()
    assays = {name: [name] for name in found} | {"all": [*found]}
    for title, names in assays.items():
        for size in SIZES[1:]:
            then = {column: np.concatenate([of(old[name], column, size) for name in names]) for column in COLUMNS}
            now = {}
            for column in AGAIN_COLUMNS:
                now[column] = np.concatenate([found[name][column][found[name]["size"] == size] for name in names])
            if len(now["model"]):
                cells = [*called(then, "said_low", "said_floor"), *called(now, "better", "better_floor")]
                lines.append(f"| {title} | {size} | {cells[0]} | {cells[2]} | {cells[1]} | {cells[3]} |")
    return lines


def covered() -> list[str]:
    """The share of new values in their 90 % intervals, of double mutants from double mutants too."""
    lines = [f"| assay | {' | '.join(map(str, SIZES[1:]))} |", "|---" * len(SIZES) + "|"]
    for name, get in again().items():
        values = [get["covered"][get["size"] == size] for size in SIZES[1:]]
        cells = [f"{mean(x):.1%}" if len(x) else "" for x in values]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines
