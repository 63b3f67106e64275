"""A picture: how it is drawn, on a page as a card, and as files for a paper. It needs matplotlib.

Pictures say in their own words what they are of: how many samples, the unit, what intervals are over.
"""

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...files import SiamDiffError, printable, replacing
from .captions import text

# Of runs, or seeds: those of Okabe and Ito (2008) that can be seen on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#7f7f7f", "#882255")
INK = "#010203"  # of a figure's lines and words: the page replaces it by its own, which depends on the reader
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ("Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"),  # the last is always there
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    **dict.fromkeys([f"axes.spines.{side}" for side in ("top", "right", "bottom", "left")], False),
    "xtick.color": INK,
    "xtick.bottom": False,
    "ytick.color": INK,
    "ytick.left": False,
    "legend.frameon": False,
    "lines.solid_capstyle": "butt",  # bars end where intervals do
    "legend.fontsize": "small",
}
PAGE = {"svg.fonttype": "none"}  # words stay words
PAPER = {
    "font.size": 8,
    "pdf.fonttype": 42,  # letters that a journal can edit
    "svg.fonttype": "path",  # letters as on this machine
    "lines.linewidth": 1.2,
}
COLUMNS = {"one-column": 3.35, "two-columns": 7.0}  # width in inches: 85 and 178 mm
FORMATS = ("pdf", "svg", "png")
DPI = 300
WIDTH = 4.6  # inches, as is the height of a card
SQUARE = 4.4  # height of a picture with two axes alike


class Picture(NamedTuple):
    """A picture: what it shows, and how it is drawn."""

    name: str  # of its files
    title: str
    draw: Callable  # on axes
    note: str = ""  # below the axes
    height: float = 2.8  # inches, if it is WIDTH wide
    words: str = ""  # on the page above it, in HTML


def card(picture: Picture) -> str:
    """A card with the words of a picture, and the picture in the colours of the page."""
    head = f"<div class=card><h3>{text(picture.title)}</h3>{picture.words}"
    file = io.StringIO()
    save(picture._replace(title=""), file, WIDTH, PAGE, format="svg", transparent=True, dpi=150)

    # What stands before the first tag is for a file of its own.
    _, tag, rest = file.getvalue().partition("<svg")
    return f"{head}{tag}{rest.replace(INK, 'currentColor')}</div>"


def save(picture: Picture, file, width: float, style: Mapping, **options) -> None:
    """Draw a picture of this width, with its title and its note, into a file. Raises SiamDiffError."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SiamDiffError("the pictures of a report need matplotlib: pip install matplotlib") from error

    with rc_context(STYLE | style):
        letters = int(width * 72 / (0.47 * style.get("font.size", 10)))  # on a line
        note = textwrap.fill(picture.note, letters)
        title = textwrap.fill(picture.title, letters)
        lines = note.count("\n") + bool(note) + title.count("\n") + bool(title)
        figure = Figure((width, picture.height * (width / WIDTH) ** 0.7 + 0.17 * lines), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(color=INK, alpha=0.12)
        picture.draw(axes)
        if title:
            figure.suptitle(title, fontsize="medium")
        if note:
            figure.supxlabel(note, fontsize="small", x=0.02, ha="left")
        figure.savefig(file, **options)


def write_figures(folder: Path, pictures: Sequence[Picture]) -> int:
    """Write every picture in all formats and widths; returns how many files that are. Raises WriteError."""
    for name, picture in zip(file_names([picture.name for picture in pictures]), pictures):
        for columns, width in COLUMNS.items():
            for form in FORMATS:
                with replacing(folder / f"{name}-{columns}.{form}") as file:
                    save(picture, file, width, PAPER, format=form, dpi=DPI)
    return len(pictures) * len(COLUMNS) * len(FORMATS)


def file_names(texts: Sequence[str]) -> list[str]:
    """Texts as names of files. A name that comes again has a number behind it."""
    names = [re.sub(r"[^\w.+]+", "-", printable(text)).strip("-.")[:100] for text in texts]
    again = [names[:k].count(name) for k, name in enumerate(names)]
    return [f"{name}-{count + 1}" if count else name for name, count in zip(names, again)]


def colour_of(number: int) -> str:
    """The colour of one of several runs or seeds."""
    return COLOURS[number % len(COLOURS)]
