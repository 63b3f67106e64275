"""The picture of a table (docs/performance.md): `python -m benchmarks.piecewise` writes docs/piecewise.png."""

import argparse
from pathlib import Path

import torch
from torch import nn

from siamdiff_min.encoders.fast import Piecewise

FIRST, SECOND, INK, HIDDEN, PAPER = "#1b6ca8", "#c8541b", "#222222", "#a8a8a8", "#ffffff"  # pages may be dark
WIDTHS, SEED = (5, 3, 1), 28  # units of the two hidden layers, and the output; a seed with a few knots of each kind
LONGEST = 5.0  # angstrom


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.piecewise", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "piecewise.png")
    draw(parser.parse_args(argv).out)


def network() -> list[nn.Linear]:
    """Three small layers of one number, with random weights."""
    torch.manual_seed(SEED)
    return [nn.Linear(a, b) for a, b in zip((1, *WIDTHS), WIDTHS)]


@torch.no_grad()
def draw(path: Path) -> None:
    """The units of the second layer with the knots of the first one, and the output with the knots of both."""
    from matplotlib.figure import Figure

    first, second, third = network()
    low, high = torch.tensor(0.0), torch.tensor(LONGEST)
    hidden = Piecewise.line(first).relu_linear(second.weight, second.bias, low, high)
    whole = hidden.relu_linear(third.weight, third.bias, low, high)
    crossing, _, unit, _ = hidden.crossings(low, high)
    x = torch.linspace(0, LONGEST, 1201)
    figure = Figure(figsize=(7.6, 4.6), facecolor=PAPER, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for axis in (above, below):
        for knot in hidden.knot:
            axis.axvline(knot, color=FIRST, linewidth=1, linestyle=":")
        for knot in crossing:
            axis.axvline(knot, color=SECOND, linewidth=1, linestyle=":")
        axis.spines[["top", "right"]].set_visible(False)
    above.axhline(0, color=INK, linewidth=0.8)
    above.plot(x, hidden(x), color=HIDDEN, linewidth=1.6)
    above.plot(hidden.knot, hidden(hidden.knot), "o", color=FIRST, markersize=4)
    above.plot(crossing, hidden(crossing)[torch.arange(len(unit)), unit], "o", color=SECOND, markersize=6)
    above.set_title(
        "three units of the second layer: they bend where a unit of the first layer turns on or off (blue);\n"
        "they turn on or off themselves where they cross 0 (orange)",
        fontsize=9.5,
        loc="left",
    )
    below.plot(x, third(second(first(x[:, None]).relu()).relu()), color=HIDDEN, linewidth=5, label="the three layers")
    below.plot(x, whole(x), color=INK, linewidth=1.4, label=f"the table: {len(whole.knot) + 1} pieces")
    below.legend(frameon=False, fontsize=9)
    below.set_title("the output bends at these places, and is a straight line between them", fontsize=9.5, loc="left")
    below.set_xlabel("length of an edge, Å")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    print(path)


if __name__ == "__main__":
    main()
