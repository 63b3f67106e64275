"""Figures as SVG inside a page: text and lines take the page's colours, so they are read on a dark page as on a light
one, and they need no library and no network.

Colours are the classes c0 to c7 of the page's style sheet. Every text that is handed in is escaped here.
"""

import html
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .files import printable

Points = Sequence[tuple[float, float]]
COLOURS = 8
MOST = 400  # points of a line
LIGHT = ["#0b66b8", "#c8501d", "#0c7d5c", "#8c46a8", "#94690a", "#1d86a8", "#b8326c", "#5f6670"]
DARK = ["#62b0ff", "#ff9166", "#45d1a5", "#d59bea", "#e8bd4d", "#74d3f0", "#ff8fbf", "#b4bac2"]
STYLE = """
:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1a1d21;--soft:#5b636d;--rule:#e1e4e8;LIGHT}
@media(prefers-color-scheme:dark){:root{--page:#121417;--card:#1c1f24;--ink:#eceef1;--soft:#a3abb5;--rule:#31363d;DARK}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.45 system-ui,sans-serif}
main{max-width:1760px;margin:auto;padding:1.2rem clamp(.8rem,2.5vw,2.5rem) 3rem}
h1{font-size:1.7rem;line-height:1.2;margin:.3rem 0 .5rem}
h1.part{border-top:2px solid var(--rule);padding-top:1.4rem;margin-top:2.4rem}
h2{font-size:1.2rem;margin:2rem 0 .4rem}h3,figcaption{font-size:1rem;font-weight:600;margin:0 0 .3rem}
p{margin:.2rem 0 .5rem}small,.note{color:var(--soft);font-size:.87rem}
.cards,.figures,.top{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:1rem;align-items:start}
.tables{display:flex;flex-wrap:wrap;gap:0 3rem}.tables>div{max-width:100%}
.top{grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr))}.top>.cards{grid-template-columns:100%}
.top>.two{grid-template-columns:repeat(auto-fill,minmax(min(100%,16rem),1fr))}
h1::first-letter,h3::first-letter,figcaption::first-letter{text-transform:uppercase}
.top svg{max-width:30rem}
.card,figure{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:1rem;margin:0;min-width:0}
.big{font-size:2rem;font-weight:650;line-height:1.1;margin:0 0 .3rem}
.good{color:var(--c2)}.bad{color:var(--c1)}.unsure{color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.9rem}.legend:empty{display:none}
.key{display:inline-block;width:1.5em;border-top:4px solid var(--c,var(--soft));margin-right:.45em;vertical-align:.25em}
.key.thin{border-top-width:1px}.key.dashed{border-top:2px dashed var(--soft)}
.key.circle{width:.85em;height:.85em;border:2px solid var(--soft);border-radius:50%;vertical-align:-.1em}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
td{white-space:nowrap}
.options td+td{white-space:normal;overflow-wrap:anywhere;min-width:8rem}
th{color:var(--soft);font-weight:500;white-space:nowrap}
svg{display:block;width:100%;height:auto;font:12px system-ui,sans-serif;fill:var(--soft)}svg svg{overflow:hidden}
.grid{stroke:var(--rule);fill:none}.line{fill:none;stroke:var(--c,var(--soft));stroke-width:2;stroke-linejoin:round}
.thick{stroke-width:2.4}.thin{stroke-width:1;opacity:.55}
.dashed{stroke:var(--soft);stroke-dasharray:6 4;stroke-width:1.5}
.dotted{stroke:var(--soft);stroke-dasharray:1 4;stroke-width:1.5}.faint{stroke:var(--rule)}
.dots{stroke:var(--c);stroke-width:6;stroke-linecap:round;opacity:.65;fill:none}
.ring{fill:none;stroke:var(--c);stroke-width:2}.bar{stroke:var(--c,var(--soft));stroke-width:8;opacity:.35;stroke-linecap:round}
.value{stroke:var(--c,var(--ink));stroke-width:3}.seed,.cell{fill:var(--c,var(--soft))}.cell{--c:var(--c0)}.inside{fill:var(--card)}.count{fill:var(--ink)}.strong{fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:4px}
"""
for _name, _colours in (("LIGHT", LIGHT), ("DARK", DARK)):
    STYLE = STYLE.replace(_name, ";".join(f"--c{k}:{colour}" for k, colour in enumerate(_colours)))
STYLE += "".join(f".c{k}{{--c:var(--c{k})}}" for k in range(COLOURS))


def text(value) -> str:
    """What may stand in a page: escaped, on one line."""
    return html.escape(printable(str(value)))


def number(value: float | None, digits: int = 3) -> str:
    """A number for a reader, with so many digits that count."""
    if value is None or not math.isfinite(value):
        return "-"
    whole = abs(value) >= 10 ** (digits - 1)
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}" if abs(value) < 1e-3 else f"{value:#.{digits}g}"


def ticks(low: float, high: float, most: int = 7) -> dict[float, str]:
    """Places for marks on an axis: 1, 2 or 5 times a power of ten apart, and their names."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return {i * step: f"{i * step:.{decimals}f}" for i in places}


def svg(width: float, height: float, parts: Iterable[str], about: str) -> str:
    """A drawing that scales with its column; `about` is read aloud."""
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{text(about)}">'
    return head + "".join(parts) + "</svg>"


def label(x: float, y: float, words, anchor: str = "middle", kind: str = "") -> str:
    """A text that ends, begins or is centred there (anchor: end, start, middle)."""
    own = f'class="{kind}" ' if kind else ""
    return f'<text {own}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(words)}</text>'


class Plane:
    """Two axes with round ticks, and what is drawn between them. What lies outside of their limits is cut off."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], names: tuple[str, str], square: bool = False):
        self.width, self.height = (300, 300) if square else (340, 200)
        self.names = names
        self.x, self.y = (ends if ends[1] > ends[0] else (ends[0] - 0.5, ends[0] + 0.5) for ends in (x, y))
        self.parts: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point lies in the drawing."""
        (x0, x1), (y0, y1) = self.x, self.y
        return (x - x0) / (x1 - x0) * self.width, (y1 - y) / (y1 - y0) * self.height

    def line(self, points: Points, kind: str) -> None:
        """A line through the points, in an order; `kind` are classes of the style sheet."""
        places = [self.at(*point) for point in points if all(map(math.isfinite, point))]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if path:
            self.parts.append(f'<path class="line {kind}" d="M{path}"/>')

    def dots(self, points: Points, kind: str) -> None:
        """A dot at each of the points."""
        places = [self.at(*point) for point in points if all(map(math.isfinite, point))]
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
        if path:
            self.parts.append(f'<path class="dots {kind}" d="{path}"/>')

    def ring(self, point: tuple[float, float], kind: str) -> None:
        x, y = self.at(*point)
        self.parts.append(f'<circle class="ring {kind}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>')

    def across(self, y: float) -> None:
        """The dashed line of a constant answer."""
        self.line([(self.x[0], y), (self.x[1], y)], "dashed")

    def upright(self, x: float, words: str) -> None:
        """A dotted line at x with a name."""
        self.line([(x, self.y[0]), (x, self.y[1])], "dotted")
        self.parts.append(label(self.at(x, 0)[0] + 4, 12, words, "start"))

    def svg(self, about: str) -> str:
        left = 14 + 7 * max(map(len, ticks(*self.y).values()))
        top, grid, names = 24 if self.names[1] else 8, [], [label(4, 12, self.names[1], "start")]
        for place, name in ticks(*self.x).items():
            x = left + self.at(place, 0)[0]
            grid.append(f"M{x:.1f} {top}v{self.height}")
            names.append(label(x, top + self.height + 17, name))
        for place, name in ticks(*self.y).items():
            y = top + self.at(0, place)[1]
            grid.append(f"M{left} {y:.1f}h{self.width}")
            names.append(label(left - 6, y + 4, name, "end"))
        names.append(label(left + self.width / 2, top + self.height + 36, self.names[0]))
        inside = f'<svg x="{left}" y="{top}" width="{self.width}" height="{self.height}">{"".join(self.parts)}</svg>'
        parts = [f'<path class="grid" d="{"".join(grid)}"/>', *names, inside]
        return svg(left + self.width + 14, top + self.height + 44, parts, about)


def thinned(points: Points) -> Points:
    """At most MOST points, each the mean of as many as one after the other."""
    size = -(-len(points) // MOST)
    parts = np.array_split(np.array(points, dtype=float), range(size, len(points), size)) if size > 1 else points
    return [tuple(part.mean(0)) for part in parts] if size > 1 else points


def limits(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """The smallest and the largest number and some room."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = margin * (high - low) or abs(high) * margin or 0.5
    return low - room, high + room


class Row(NamedTuple):
    """One run in a forest of runs."""

    name: str
    value: float
    kind: str  # classes of its colour
    interval: Sequence[float] | None = None
    seeds: Sequence[tuple[float, str]] = ()  # values and their colours


def forest(rows: Sequence[Row], constants: Sequence[float], span: tuple[float, float], about: str) -> str:
    """A row for each run: a bar of its interval, a mark of its value, dots of its seeds; dashed: constant answers."""
    left, right, high = 14, 326, 40 if rows[0].name else 26

    def at(x: float) -> float:
        return left + (min(max(x, span[0]), span[1]) - span[0]) / (span[1] - span[0]) * (right - left)

    bottom = high * len(rows) + 4
    parts = [f'<path class="grid" d="{"".join(f"M{at(place):.1f} 2V{bottom}" for place in ticks(*span))}"/>']
    parts += [label(at(place), bottom + 16, name) for place, name in ticks(*span).items()]
    parts += [f'<path class="line dashed" d="M{at(x):.1f} 0V{bottom}"/>' for x in dict.fromkeys(constants)]
    for place, (name, value, kind, interval, seeds) in enumerate(rows):
        y = high * (place + 1) - 11
        if name:
            parts.append(
                label(left, y - 12, name, "start", "strong") + label(right, y - 12, number(value), "end", "strong")
            )
        if interval:
            parts.append(f'<path class="bar {kind}" d="M{at(interval[0]):.1f} {y:.1f}H{at(interval[1]):.1f}"/>')
        parts.append(f'<path class="value {kind}" d="M{at(value):.1f} {y - 8:.1f}v16"/>')
        parts += [f'<circle class="seed {own}" cx="{at(x):.1f}" cy="{y:.1f}" r="3"/>' for x, own in seeds]
    return svg(340, bottom + 22, parts, about)


def confusion(counts: np.ndarray, names: Sequence[str], about: str) -> str:
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
                kind = "inside" if share[i, j] > 0.5 else "count"
                parts.append(label(x + size / 2, y + size / 2 + 4, f"{counts[i, j]:.0f}", kind=kind))
    side = size * len(names)
    parts.append(label(left + side / 2, 14, "rows: true, columns: predicted"))
    return svg(max(left + side + 8, 240), top + side + left, parts, about)


def captioned(drawing: str, title: str, note: str = "") -> str:
    """A drawing with its title, and a note below it."""
    below = f"<p class=note>{text(note)}</p>" if note else ""
    return f"<figure><figcaption>{text(title)}</figcaption>{drawing}{below}</figure>"
