"""The figure of Algorithm 1, from a bundled protein: `python -m benchmarks.algorithm` writes docs/algorithm.svg."""

import argparse
from pathlib import Path

import numpy as np
import torch

from siamdiff_min.data.sources import bundle_path, find_structures
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import build_siamdiff

T, MASK_EVERY = 36, 4  # step of the noise (0.4 angstrom), and which residues are masked
NAME, FIRST, LENGTH = "5PTI_A", 31, 11  # the protein of docs/walkthrough.md, a stretch that lies flat
COLOURS = "#1b6ca8", "#c8541b"  # of the two conformers
INK, MASK, PAPER = "#222222", "#4a4a4a", "#ffffff"  # the page behind may be dark
PLACES = (0.0, 0.205, 0.41, 0.80)  # left ends of the drawings


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "algorithm.svg")
    draw_algorithm(parser.parse_args(argv).out)


def draw_algorithm(out: Path) -> None:
    """A structure, its two conformers, their noise and mask, the shared encoder, the crossed denoising."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    source = next(source for source in find_structures(bundle_path()).sources if source.name == NAME)
    protein = source.read().protein.crop(FIRST, LENGTH)
    generator = torch.Generator().manual_seed(1)
    objective = build_siamdiff(ENCODERS["gearnet"]("atom", "tiny"), "atom")
    views = [protein, objective.conformer(protein, generator)[0]]
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
        pairs = (torch.cdist(bonded.pos, bonded.pos) < 2).triu(1).nonzero().numpy()
        hidden = shown.masked[shown.atom_residue].numpy()[pairs].all(1)
        thick = np.zeros(len(pairs), bool) if bold is None else bold.numpy()[pairs].any(1)
        for chosen, ink, width in (
            (~hidden & ~thick, colour, 1.3),
            (~hidden & thick, colour, 3.2),
            (hidden, MASK, 2.6),
        ):
            x, y = np.insert(xy[pairs[chosen]], 2, np.nan, axis=1).reshape(-1, 2).T
            axes.plot(x, y, color=ink, linewidth=width, solid_capstyle="round")
        axes.set_aspect("equal")

    def arrow(start, end, colour=INK, bend=0.0) -> None:
        style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "connectionstyle": f"arc3,rad={bend}"}
        whole.annotate("", end, start, arrowprops=style)

    def write(x: float, y: float, text: str, colour=INK, size=11, **options) -> None:
        whole.text(x, y, text, color=colour, fontsize=size, ha="center", va="center", **options)

    draw(PLACES[0], 0.30, protein, protein, INK)
    for row, (bottom, colour) in enumerate(zip((0.50, 0.09), COLOURS)):
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
    for x, title, lines in (
        (0.10, "a protein", "line 1"),
        (0.305, "two conformers:\nside chains turned (thick)", "lines 2-3"),
        (0.51, "noise at one step t,\none mask (dark)", "lines 4-7"),
        (0.685, "representations", "lines 8-9"),
        (0.895, "each view is denoised\nfrom the other one", "lines 10-11"),
    ):
        write(x, 0.945, title)
        write(x, 0.025, f"Alg. 1, {lines}", "#666666", 9)
    with rc_context({"svg.hashsalt": "siamdiff", "svg.fonttype": "path"}):
        figure.savefig(out, metadata={"Date": None})
    print(out)


if __name__ == "__main__":
    main()
