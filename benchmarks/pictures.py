"""The pictures of the pages: `python -m benchmarks.pictures [NAME...] [--out docs]`. Needs matplotlib."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.probe_report import FLOORS, PACKAGE, SCRATCH, Result, difference, read_all
from benchmarks.walkthrough import FIRST, INK, PAPER, SECOND, bonds, draw_walkthrough, lines
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import build_siamdiff
from siamdiff_min.reading.sources import bundle_path, find_structures

ROOT = Path(__file__).parents[1]

# ---- algorithm.svg ---------------------------------------------------------------------------------------------------

T, MASK_EVERY = 36, 4  # step of the noise (0.4 angstrom), and which residues are masked
NAME, START, LENGTH = "5PTI_A", 31, 11  # the protein of docs/walkthrough.md, a stretch that lies flat
MASK = "#4a4a4a"
PLACES = (0.0, 0.205, 0.41, 0.80)  # left ends of the drawings


def draw_algorithm(out: Path) -> None:
    """A structure, its two conformers, their noise and mask, the shared encoder, the crossed denoising."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    source = next(source for source in find_structures(bundle_path()).sources if source.name == NAME)
    protein = source.read().protein.crop(START, LENGTH)
    generator = torch.Generator().manual_seed(1)
    objective = build_siamdiff(ENCODERS["gearnet"]("atom", "tiny"), "atom")
    views = [protein, objective.draw_conformer(protein, generator)[0]]
    chosen = torch.arange(1, protein.num_residues, MASK_EVERY)
    noisy = [objective.add_noise(view, torch.tensor([T]), chosen, generator).protein for view in views]
    clean = [view.select_atoms((view.atom_name < 4) | ~noisy[0].masked[view.atom_residue]) for view in views]
    turned = (views[1].pos != views[0].pos).any(1)
    plane = torch.linalg.svd(protein.pos - protein.pos.mean(0), full_matrices=False).Vh.T[:, :2]

    figure = Figure(figsize=(11, 4.4), facecolor=PAPER)
    whole = figure.add_axes((0, 0, 1, 1))
    whole.set(xlim=(0, 1), ylim=(0, 1))
    whole.axis("off")

    def draw(left: float, bottom: float, shown, bonded, colour: str, bold=None) -> None:
        """Bonds of `shown`, as they are in `bonded`; thick if an end is in `bold`, dark if the residue is masked."""
        axes = figure.add_axes((left, bottom, 0.19, 0.36))
        axes.axis("off")
        xy = ((shown.pos - protein.pos.mean(0)) @ plane).numpy()
        pairs = bonds(bonded)
        hidden = shown.masked[shown.atom_residue].numpy()[pairs].all(1)
        thick = np.zeros(len(pairs), bool) if bold is None else bold.numpy()[pairs].any(1)
        for chosen, ink, width in (
            (~hidden & ~thick, colour, 1.3),
            (~hidden & thick, colour, 3.2),
            (hidden, MASK, 2.6),
        ):
            lines(axes, xy, pairs[chosen], color=ink, linewidth=width, solid_capstyle="round")
        axes.set_aspect("equal")

    def arrow(start, end, colour=INK, bend=0.0) -> None:
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "connectionstyle": f"arc3,rad={bend}"}
        whole.annotate("", end, start, arrowprops=style)

    def write(x: float, y: float, text: str, colour=INK, size=11, **options) -> None:
        whole.text(x, y, text, color=colour, fontsize=size, ha="center", va="center", **options)

    draw(PLACES[0], 0.30, protein, protein, INK)
    for row, (bottom, colour) in enumerate(zip((0.50, 0.09), (FIRST, SECOND))):
        middle = bottom + 0.18
        draw(PLACES[1], bottom, views[row], views[row], colour, turned)
        draw(PLACES[2], bottom, noisy[row], clean[row], colour)
        draw(PLACES[3], bottom, views[row], views[row], colour)
        arrow((0.185, 0.48 + 0.06 * (1 - 2 * row)), (0.225, middle))
        arrow((0.395, middle), (0.43, middle))
        arrow((0.595, middle), (0.635, middle), colour)
        other = 0.09 + 0.18 if row == 0 else 0.50 + 0.18
        arrow((0.735, middle), (0.82, other), colour)
        write(0.752, middle + (0.06 if row == 0 else -0.06), f"$h_{row + 1}$", colour, 13)
        write(0.30, bottom - 0.01, f"$P_{row + 1}$", colour, 13)
        write(0.51, bottom - 0.01, f"$P_{row + 1}^t$", colour, 13)
        write(0.90, bottom - 0.01, f"noise, masked types: from $h_{2 - row}$", colour, 10)
    box = {"boxstyle": "round,pad=0.008", "facecolor": "#eeeeee", "edgecolor": INK}
    whole.add_patch(FancyBboxPatch((0.645, 0.2), 0.08, 0.56, **box))
    write(0.685, 0.48, "encoder\nshared by both", rotation=90)
    for x, title, place in (
        (0.10, "a protein", "line 1"),
        (0.305, "two conformers:\nside chains turned (thick)", "lines 2-3"),
        (0.51, "noise at one step t,\none mask (dark)", "lines 4-7"),
        (0.685, "representations", "lines 8-9"),
        (0.895, "each view is denoised\nfrom the other one", "lines 10-11"),
    ):
        write(x, 0.945, title)
        write(x, 0.025, f"Alg. 1, {place}", "#666666", 9)
    with rc_context({"svg.hashsalt": "siamdiff", "svg.fonttype": "path"}):
        figure.savefig(out, metadata={"Date": None})


# ---- gains.png -------------------------------------------------------------------------------------------------------

NAMES = {  # as a reader of the paper knows them
    "siamdiff": "SiamDiff",
    "diffpret": "DiffPreT",
    "residue-type": "residue type prediction",
    "distance": "distance prediction",
    "angle": "angle prediction",
    "dihedral": "dihedral prediction",
    "multiview": "multiview contrast",
    "score-matching": "score matching",
    "torsional": "torsional diffusion",
    "geometry": "no network: distances and counts",
    "counts": "no network: neighbour counts",
}


PROBED = ("2026-11/results/probe", "2026-11-benchmarks/results/probe", "2026-11-scale/results/probe-test-old")


def rows_of(found: dict, level: str) -> list[tuple[str, tuple[float, float, float], str]]:
    """Rows of the figure from below: kind, (difference to random weights, ends of its interval), label.

    Features without a network, tiny encoders, then the encoder in the package. Other runs are left out.
    """
    rows = []
    size_of_package, package = PACKAGE[level]
    for size, names in (("tiny", NAMES), (size_of_package, {package: f"siamdiff-{level}, in the package"})):
        methods = {name: runs for name, runs in found.get((level, size), {}).items() if "+" not in name}
        if SCRATCH not in methods:
            continue
        for name in names:
            if name not in methods:
                continue
            kind = "package" if name == package else "floor" if name in FLOORS else "method"
            label = names[name]
            if kind != "floor":
                runs = len(methods[name])
                label += f" ({runs} runs)" if runs > 1 else f" ({runs} run)"
            value, low, high, _ = difference(methods, name, SCRATCH, Result.skill)
            rows.append((kind, (value, low, high), label))
    order = ("floor", "method", "package")
    return sorted(rows, key=lambda row: (order.index(row[0]), row[1][0]))


def draw_gains(path: Path) -> None:
    """What every method adds to random weights of its level and size, with the interval: a panel for each level."""
    from matplotlib.figure import Figure

    found = read_all([ROOT / "studies" / folder for folder in PROBED])
    canvas = Figure(figsize=(8.2, 6.6), layout="constrained", facecolor="white")
    panels = canvas.subplots(2, 1, sharex=True)
    for axes, level in zip(panels, ("residue", "atom")):
        rows = rows_of(found, level)
        for place, (kind, (value, low, high), _) in enumerate(rows):
            colour = {"package": SECOND, "method": FIRST, "floor": "#777777"}[kind]
            axes.plot([low, high], [place, place], color=colour, linewidth=2)
            axes.plot(value, place, "o", color=colour, markersize=6)
        axes.axvline(0, color="#222222", linewidth=1)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_yticks(range(len(rows)), [label for *_, label in rows])
        axes.set_title(f"{level} level", loc="left", fontsize=11, fontweight="bold")
        axes.grid(axis="x", color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("mean skill of six probes, minus that of random weights")
    canvas.savefig(path, dpi=110, metadata={"Software": None})


# ---- all of them -----------------------------------------------------------------------------------------------------


PICTURES: dict[str, Callable[[Path], None]] = {
    "algorithm.svg": draw_algorithm,
    "gains.png": draw_gains,
    "walkthrough": lambda path: draw_walkthrough(path.parent),  # four of them
}


def main(argv: list[str] | None = None) -> None:
    """Draw the pictures of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PICTURES), help=f"of {', '.join(PICTURES)}; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    args = parser.parse_args(argv)
    for name in args.names:
        PICTURES[name](args.out / name)
        print(args.out / name)


if __name__ == "__main__":
    main()
