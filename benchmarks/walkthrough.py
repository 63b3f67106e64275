"""Run docs/walkthrough.md: `python -m benchmarks.walkthrough [--notebook walkthrough.ipynb]`. Its four pictures."""

import argparse
import contextlib
import io
import json
import re
import runpy
import tempfile
from pathlib import Path

import numpy as np
import torch

from siamdiff_min.encoders.graph import RESIDUE_GRAPH

DOCS = Path(__file__).parents[1] / "docs"
FIRST, SECOND, INK, HIDDEN, PAPER = "#1b6ca8", "#c8541b", "#222222", "#a8a8a8", "#ffffff"  # pages may be dark
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", flags=re.M | re.S)


def run_page(page: Path = DOCS / "walkthrough.md") -> tuple[dict, str, str]:
    """Run all Python blocks of the page as one program: its variables, what it printed, and what the page says."""
    blocks = BLOCK.findall(page.read_text())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        program = Path(folder) / "walkthrough.py"
        program.write_text("\n".join(text for kind, text in blocks if kind == "python"))
        found = runpy.run_path(str(program))
    return found, printed.getvalue(), "".join(text for kind, text in blocks if kind == "text")


def notebook(page: str) -> str:
    """The notebook of a page: its Python blocks are cells, a block of text after one is what the cell prints."""
    cells = []
    for kind, block, text in re.findall(r"^```(python|text)\n(.*?)^```$|(.+?)(?=^```|\Z)", page, flags=re.M | re.S):
        source = (block or text).strip("\n").splitlines(keepends=True)
        if kind == "python":
            cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
            cells.append(cell)
        elif kind == "text":
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": source}]
        elif text.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walkthrough", description=__doc__)
    parser.add_argument("--notebook", type=Path, help="write the page as a notebook instead")
    args = parser.parse_args(argv)
    if args.notebook:
        args.notebook.write_text(notebook((DOCS / "walkthrough.md").read_text()))
        return
    _, printed, said = run_page()
    print(printed, end="")
    if printed != said:
        print("This is not what the page says.")


def draw_walkthrough(folder: Path) -> None:
    """The four pictures, from the variables of the page."""
    found, *_ = run_page()
    protein = found["protein"]
    middle = protein.pos.mean(0)
    plane = torch.linalg.svd(protein.pos - middle, full_matrices=False).Vh.T[:, :2]  # its two longest directions

    def flat(pos: torch.Tensor) -> np.ndarray:
        return ((pos - middle) @ plane).numpy()

    draw_conformers(*found["views"], flat, folder / "walkthrough-conformers.png")
    draw_noise(protein, flat, folder / "walkthrough-noise.png")
    draw_graphs(found["encoder"].builder(protein), protein, flat, folder / "walkthrough-graph.png")
    names = "graph", "pos", "edge_in", "edge_out", "angle_bin"
    draw_angles(*(found[name] for name in names), folder / "walkthrough-angles.png")


def panels(count: int, size: tuple[float, float], **options):
    """A figure with `count` drawings side by side, without axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, **options)[0]
    for axis in axes:
        axis.set_aspect("equal")
        axis.axis("off")
    return figure, axes


def save(figure, path: Path) -> None:
    figure.savefig(path, dpi=120, metadata={"Software": None})
    print(path)


def lines(axis, xy: np.ndarray, pairs: np.ndarray, **style) -> None:
    """Straight lines between pairs (K, 2) of the points xy (N, 2)."""
    axis.plot(*np.insert(xy[pairs], 2, np.nan, axis=1).reshape(-1, 2).T, **style)


def bonds(protein) -> np.ndarray:
    """Pairs of atoms (K, 2) within 2 angstrom of each other."""
    return (torch.cdist(protein.pos, protein.pos) < 2).triu(1).nonzero().numpy()


def draw_conformers(protein, conformer, flat, path: Path) -> None:
    """Both laid on each other; thick lines are bonds of which an end has moved."""
    figure, (axis,) = panels(1, (7.6, 4.6))
    pairs = bonds(protein)
    moved = ((conformer.pos - protein.pos).norm(dim=-1) > 0).numpy()[pairs].any(1)
    lines(axis, flat(protein.pos), pairs[~moved], color=HIDDEN, linewidth=1.4, label="same in both")
    lines(axis, flat(protein.pos), pairs[moved], color=FIRST, linewidth=1.6, label="the structure, $P_1$")
    lines(axis, flat(conformer.pos), pairs[moved], color=SECOND, linewidth=1.6, label="the simulated conformer, $P_2$")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 3, high)  # room for the legend
    axis.legend(loc="lower left", frameon=False, fontsize=11, borderaxespad=0)
    save(figure, path)


def draw_noise(protein, flat, path: Path) -> None:
    """The backbone and the side chains that are left at four steps; the bar is 10 angstrom long."""
    from siamdiff_min import SCHEDULES
    from siamdiff_min.pretraining.diffusion import add_gaussian_noise, hide_residues, random_mask

    figure, axes = panels(4, (9.4, 2.9))
    schedule = SCHEDULES["paper"][1]
    for axis, t in zip(axes, (1, 9, 30, 100)):
        generator = torch.Generator().manual_seed(0)  # the same draws, only larger
        alpha_bar = schedule.alpha_bar[t - 1].float()
        chosen = random_mask(protein, schedule.mask_rate(torch.tensor([t])), generator)
        shown = hide_residues(protein, chosen, 4)
        pairs = bonds(shown)
        xy = flat(add_gaussian_noise(shown.pos, alpha_bar.expand(shown.num_atoms), generator))
        hidden = shown.masked[shown.atom_residue].numpy()[pairs].any(1)
        lines(axis, xy, pairs[~hidden], color=FIRST, linewidth=1.1)
        lines(axis, xy, pairs[hidden], color="#8a8a8a", linewidth=1.1 if t < 100 else 0.6)
        sigma = ((1 - alpha_bar) / alpha_bar).sqrt()
        axis.set_title(
            f"t = {t}\n$\\sigma$ = {sigma:.2g} Å, {len(chosen)} of {protein.num_residues} masked", fontsize=10
        )
        half, low = (17, -15) if t < 100 else (40, -36)  # angstrom
        axis.plot([-half, 10 - half], [low, low], color=INK, linewidth=2)
        axis.text(5 - half, low, "10 Å", ha="center", va="bottom", fontsize=9)
        axis.set(xlim=(-half, half), ylim=(low - 1, low - 1 + 1.7 * half))
    figure.supxlabel("blue: type visible, side chain kept      grey: masked, backbone only", fontsize=10)
    save(figure, path)


def draw_graphs(graph, protein, flat, path: Path) -> None:
    """The edges of the atom level, and the three kinds of the residue level."""
    figure, axes = panels(4, (9.4, 2.3), sharex=True, sharey=True)
    lines(axes[0], flat(protein.pos), torch.stack([graph.src, graph.dst], 1).numpy(), color=FIRST, linewidth=0.2)
    axes[0].set_title(f"atoms: within 4.5 Å\n{graph.num_edges:,} edges", fontsize=10)
    carbons = protein.alpha_carbons()
    graph = RESIDUE_GRAPH(carbons)
    kinds = {"along the chain": range(5), "within 10 Å": [5], "ten nearest": [6]}
    for axis, (name, relations) in zip(axes[1:], kinds.items()):
        edges = torch.stack([graph.src, graph.dst], 1)[torch.isin(graph.relation, torch.tensor(list(relations)))]
        xy = flat(carbons.pos)
        lines(axis, xy, edges.numpy(), color=SECOND, linewidth=0.5)
        axis.plot(*xy.T, ".", color=INK, markersize=4)
        axis.set_title(f"residues: {name}\n{len(edges):,} edges", fontsize=10)
    save(figure, path)


def draw_angles(graph, pos, edge_in, edge_out, angle_bin, path: Path) -> None:
    """All edges k -> j that send messages to one edge j -> i, at their angle to it, coloured by bin."""
    from matplotlib import colormaps
    from matplotlib.patches import Wedge

    counts = torch.stack([torch.bincount(edge_out[angle_bin == b], minlength=graph.num_edges) for b in range(8)])
    chosen = int(((counts > 0).sum(0) * 1000 - (counts.sum(0) - 16).abs()).argmax())  # all bins, about 16 edges
    here = edge_out == chosen
    j, i = graph.src[chosen], graph.dst[chosen]
    to_i = torch.nn.functional.normalize(pos[i] - pos[j], dim=0)
    to_k = pos[graph.src[edge_in[here]]] - pos[j]
    length = to_k.norm(dim=1)
    angle = ((to_k @ to_i) / length).clamp(-1, 1).arccos()
    figure, (axis,) = panels(1, (7.6, 4.4))
    for b in range(8):
        colour = colormaps["viridis"](0.83 * b / 7)
        axis.add_patch(Wedge((0, 0), 5.2, 22.5 * b, 22.5 * (b + 1), facecolor=colour, alpha=0.16, edgecolor=PAPER))
        middle = np.pi / 8 * (b + 0.5)
        axis.text(5.6 * np.cos(middle), 5.6 * np.sin(middle), f"bin {b}", ha="center", va="center", fontsize=9)
        for r, phi in zip(length[angle_bin[here] == b], angle[angle_bin[here] == b]):
            end = float(r * phi.cos()), float(r * phi.sin())
            style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 5}
            axis.annotate("", (0, 0), end, arrowprops=style)
            axis.plot(*end, "o", color=colour, markersize=5)
    reach = float((pos[i] - pos[j]).norm())
    style = {"arrowstyle": "-|>", "color": SECOND, "linewidth": 2.6, "shrinkA": 3, "shrinkB": 0}
    axis.annotate("", (reach, 0), (0, 0), arrowprops=style)
    axis.plot(0, 0, "o", color=INK, markersize=8)
    axis.text(0, -0.45, "j", ha="center", fontsize=11)
    axis.text(reach, -0.5, "i", ha="center", fontsize=11, color=SECOND)
    axis.text(reach / 2, -0.5, "the edge j → i", ha="center", fontsize=10, color=SECOND)
    legend = "arrows: the edges k → j,\nat their lengths and\ntheir angles to j → i"
    axis.text(-6.6, 6.0, legend, va="top", fontsize=10)
    axis.set(xlim=(-6.7, 6.2), ylim=(-0.9, 6.1))
    save(figure, path)


if __name__ == "__main__":
    main()
