"""Figures as SVG inside a page: text and lines take the page's colours, so they are read on a dark page as on a light
one, and they need no library and no network.

Colours and kinds of lines are classes of the page's style sheet, report.css. Every text that is handed in is escaped.
"""

import html
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .files import printable

Points = Sequence[tuple[float, float]]
COLOURS = 8  # c0 to c7
MOST = 400  # points of a line


def text(value) -> str:
    """A value as text for a page: escaped, on one line."""
    return html.escape(printable(str(value)))


def number(value: float | None, digits: int = 3) -> str:
    """A number for a reader, with so many digits that count."""
    if value is None or not math.isfinite(value):
        return "-"
    whole = abs(value) >= 10 ** (digits - 1)
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}" if abs(value) < 1e-3 else f"{value:#.{digits}g}"


def ticks(low: float, high: float, most: int = 7) -> dict[float, str]:
    """Numbers to mark on an axis, 1, 2 or 5 times a power of ten apart, each with its text."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    multiples = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return {i * step: f"{i * step:.{decimals}f}" for i in multiples}


def svg(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """A drawing that scales with its column; its title is read aloud."""
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{text(title)}">'
    return head + "".join(parts) + "</svg>"


def label(x: float, y: float, words, anchor: str = "middle", css: str = "") -> str:
    """A text that ends, begins or is centred there (anchor: end, start, middle)."""
    attribute = f'class="{css}" ' if css else ""
    return f'<text {attribute}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(words)}</text>'


class Plane:
    """Two axes with round ticks, and a drawing between them, cut off at their limits."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], names: tuple[str, str], square: bool = False):
        self.width, self.height = (300, 300) if square else (340, 200)
        self.names = names
        self.x, self.y = (ends if ends[1] > ends[0] else (ends[0] - 0.5, ends[0] + 0.5) for ends in (x, y))
        self.parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies in the drawing."""
        (x0, x1), (y0, y1) = self.x, self.y
        return (x - x0) / (x1 - x0) * self.width, (y1 - y) / (y1 - y0) * self.height

    def finite(self, points: Points) -> list[str]:
        """The points that can be drawn, as text."""
        return [f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points if all(map(math.isfinite, point)))]

    def line(self, points: Points, css: str) -> None:
        """A line through the points, in an order; `css` are classes of the style sheet."""
        if path := "L".join(self.finite(points)):
            self.parts.append(f'<path class="line {css}" d="M{path}"/>')

    def dots(self, points: Points, css: str) -> None:
        """A dot at each of the points."""
        if path := "".join(f"M{point}h0" for point in self.finite(points)):
            self.parts.append(f'<path class="dots {css}" d="{path}"/>')

    def ring(self, point: tuple[float, float], css: str) -> None:
        x, y = self.at(*point)
        self.parts.append(f'<circle class="ring {css}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>')

    def across(self, y: float) -> None:
        """The dashed line of a constant answer."""
        self.line([(self.x[0], y), (self.x[1], y)], "dashed")

    def upright(self, x: float, words: str) -> None:
        """A dotted line at x with a name."""
        self.line([(x, self.y[0]), (x, self.y[1])], "dotted")
        self.parts.append(label(self.at(x, 0)[0] + 4, 12, words, "start"))

    def svg(self, title: str) -> str:
        left = 14 + 7 * max(map(len, ticks(*self.y).values()))
        top, grid, names = 24 if self.names[1] else 8, [], [label(4, 12, self.names[1], "start")]
        for tick, name in ticks(*self.x).items():
            x = left + self.at(tick, 0)[0]
            grid.append(f"M{x:.1f} {top}v{self.height}")
            names.append(label(x, top + self.height + 17, name))
        for tick, name in ticks(*self.y).items():
            y = top + self.at(0, tick)[1]
            grid.append(f"M{left} {y:.1f}h{self.width}")
            names.append(label(left - 6, y + 4, name, "end"))
        names.append(label(left + self.width / 2, top + self.height + 36, self.names[0]))
        inside = f'<svg x="{left}" y="{top}" width="{self.width}" height="{self.height}">{"".join(self.parts)}</svg>'
        parts = [f'<path class="grid" d="{"".join(grid)}"/>', *names, inside]
        return svg(left + self.width + 14, top + self.height + 44, parts, title)


def thinned(points: Points) -> Points:
    """At most MOST points; each is the mean of equally many neighbours."""
    size = -(-len(points) // MOST)
    parts = np.array_split(np.array(points, dtype=float), range(size, len(points), size)) if size > 1 else points
    return [tuple(part.mean(0)) for part in parts] if size > 1 else points


def limits(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """The range of the values, with some room at both ends."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = margin * (high - low) or abs(high) * margin or 0.5
    return low - room, high + room


class Row(NamedTuple):
    """One run in a forest of runs."""

    name: str
    value: float
    css: str  # class of its colour
    interval: Sequence[float] | None = None
    seeds: Sequence[tuple[float, str]] = ()  # values and their colours


def forest(rows: Sequence[Row], constants: Sequence[float], span: tuple[float, float], title: str) -> str:
    """A row for each run: a bar of its interval, a mark of its value, dots of its seeds; dashed: constant answers."""
    left, right, high = 14, 326, 40 if rows[0].name else 26

    def at(x: float) -> float:
        return left + (min(max(x, span[0]), span[1]) - span[0]) / (span[1] - span[0]) * (right - left)

    bottom = high * len(rows) + 4
    parts = [f'<path class="grid" d="{"".join(f"M{at(tick):.1f} 2V{bottom}" for tick in ticks(*span))}"/>']
    parts += [label(at(tick), bottom + 16, name) for tick, name in ticks(*span).items()]
    parts += [f'<path class="line dashed" d="M{at(x):.1f} 0V{bottom}"/>' for x in dict.fromkeys(constants)]
    for i, (name, value, css, interval, seeds) in enumerate(rows, 1):
        y = high * i - 11
        if name:
            parts.append(label(left, y - 12, name, "start", "strong"))
            parts.append(label(right, y - 12, number(value), "end", "strong"))
        if interval:
            parts.append(f'<path class="bar {css}" d="M{at(interval[0]):.1f} {y:.1f}H{at(interval[1]):.1f}"/>')
        parts.append(f'<path class="value {css}" d="M{at(value):.1f} {y - 8:.1f}v16"/>')
        parts += [f'<circle class="seed {own}" cx="{at(x):.1f}" cy="{y:.1f}" r="3"/>' for x, own in seeds]
    return svg(340, bottom + 22, parts, title)


def confusion(counts: np.ndarray, names: Sequence[str], title: str) -> str:
    """A square of true classes (rows) and predicted ones; darker is a larger share of the row."""
    names = [name if len(name) < 16 else f"{name[:14]}…" for name in names]
    size, left, top = max(16, min(46, 320 // len(names))), 12 + 8 * max(map(len, names)), 24
    share, parts = counts / np.maximum(counts.sum(1, keepdims=True), 1), []
    for i, name in enumerate(names):
        y = top + size * i
        parts.append(label(left - 6, y + size / 2 + 4, name, "end"))
        x = left + size * (i + 0.5)
        parts.append(f'<text transform="translate({x + 4:.0f} {top + size * len(names) + 8}) rotate(-90)" '
                     f'text-anchor="end">{text(name)}</text>')  # fmt: skip
        for j, other in enumerate(names):
            x, shown = left + size * j, f"{counts[i, j]:.0f} of {counts[i].sum():.0f} {name} are called {other}"
            cell = f'<rect class="cell" x="{x}" y="{y}" width="{size - 1}" height="{size - 1}" rx="2"'
            parts.append(f'{cell} fill-opacity="{0.06 + 0.94 * share[i, j]:.2f}"><title>{text(shown)}</title></rect>')
            if size >= 30 and counts[i, j]:
                css = "inside" if share[i, j] > 0.5 else "count"
                parts.append(label(x + size / 2, y + size / 2 + 4, f"{counts[i, j]:.0f}", css=css))
    side = size * len(names)
    parts.append(label(left + side / 2, 14, "rows: true, columns: predicted"))
    return svg(max(left + side + 8, 240), top + side + left, parts, title)


def captioned(drawing: str, title: str, note: str = "") -> str:
    """A drawing with its title, and a note below it."""
    below = f"<p class=note>{text(note)}</p>" if note else ""
    return f"<figure><figcaption>{text(title)}</figcaption>{drawing}{below}</figure>"
