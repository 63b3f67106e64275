"""The values of a table of labels: numbers or classes, what they look like, and what is odd about them."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ...files import first_three
from .faults import Faults

NOT_MEASURED = {"", "na", "n/a", "#n/a", "nan"}  # among numbers, in any case. Among classes, NA may be sodium
UNIT = re.compile(r"[-+]?\d*[.,]?\d+(?:e[-+]?\d+)?\s*([^\d.,\s-].*)", re.IGNORECASE)  # of 12.5 °C, 30% or 4 ± 1
BOUND = re.compile(r"^\s*[<>≤≥]=?\s*(?=[-+.,\d])")  # of >100, <= 0.5
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # as Excel may write 1830, or a number with three decimals
# Standard deviations from the median, by the median absolute deviation, from which a value is named. In 27 assays the
# most is 7.9; of an exponential law one value in 2,500 is farther away.
FAR = 10
MANY = 8  # values below which the median says little of the spread
LARGEST = 3.4e38  # in float32, in which targets are kept
FEW = 10  # so many different whole numbers may be names of classes
SHOWN = 12  # classes to list: about two lines
# What a spreadsheet makes of a name or number: 2026-03-01, 1.3.26, 2-Mar, Mar-02, 1. Mrz; of 1E10 the number 1.00E+10.
# Months begin so in English, German, French, Spanish, Portuguese, Italian, Dutch, Swedish, Polish, Turkish, Russian.
MONTHS = """
    jan feb fe[bv] fév mar mär mrz mrt apr avr abr ma[ijyg] mei jun jui jul ju[nil] giu lug aug ago aoû sep set okt
    oct ott nov dec dez déc des dic gen ene sty lut kwi cze lip sie wrz paź lis gru oca şub nis haz tem ağu eyl eki
    kas ara янв фев мар апр мая май июн июл авг сен окт ноя дек
"""
MONTH = f"({'|'.join(MONTHS.split())})[^\\W\\d_]{{0,7}}\\.?"
DATE = re.compile(
    rf"\d{{1,4}}[-./](\d\d?|{MONTH})[-./]\d{{1,4}}([ T].*)?|\d{{1,2}}[-./ ]{{1,2}}{MONTH}([-./ ]+\d{{2,4}})?"
    rf"|{MONTH}[-./ ]\d{{1,4}}|\d\d?[月월] ?\d\d?[日일]",
    re.IGNORECASE,
)
POWER = re.compile(r"\d([.,]\d+)?E\+\d+")
Column = Mapping[int, str]  # the cells of a column by row
CLASSES = ("classes", "labels")  # the kinds that are not numbers: one name, or any number of them


def squeezed(text: str) -> str:
    """A word as it is compared: `N. D.` is `n.d.`."""
    return re.sub(r"\s", "", text).lower()


def _number(text: str) -> float | None:
    """The number that a text stands for, else None: also with a decimal comma, or behind a `>` or `<`.

    Python alone would also read 1_000.
    """
    text = BOUND.sub("", text.replace("\N{MINUS SIGN}", "-"))
    if re.fullmatch(r"[+-]?\d*,\d+(e[+-]?\d+)?", text, re.IGNORECASE):
        text = text.replace(",", ".")
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def kind_of(cells: Mapping[str, Column], words: Collection[str]) -> str:
    """The kind that the values of some columns look like. Some `words` say that a value was not measured."""
    texts = []
    for column in cells.values():
        texts += [text for text in column.values() if squeezed(text) not in NOT_MEASURED | words]
    others = [text for text in texts if _number(text) is None]
    if not others:
        return "binary" if {*map(_number, texts)} == {0, 1} else "regression"

    # Mistakes, see `_value`: a text among numbers, something else between the digits of all, one unit of all.
    units = [UNIT.fullmatch(text) for text in others]
    one_unit = all(units) and len({re.sub(r"[\d.,]+", "", match[1]) for match in units}) == 1
    if len(others) < len(texts) or one_unit or all(re.fullmatch(r"-?\d+ ?[,_][\d,_. ]*", text) for text in others):
        return "regression"
    return "labels" if any("," in text for text in others) else "classes"


def read_values(
    cells: Mapping[str, Column], kind: str, words: Collection[str], faults: Faults, odd: bool
) -> tuple[dict, str]:
    """Values by row, of several columns lists with nan in the gaps; the values in words. Notes also on `odd` ones."""
    gaps = {"classes": {"", *words}, "labels": words}.get(kind, NOT_MEASURED | words)
    values: dict[int, list] = {}
    about = []
    for i, (title, column) in enumerate(cells.items()):
        of = f"{title}: " if len(cells) > 1 else ""
        texts = {number: text for number, text in column.items() if squeezed(text) not in gaps}
        known = {}
        for number, text in texts.items():
            with faults.of("value"):
                known[number] = _value(number, text, kind)
        for number in texts:  # a faulty row has a name all the same
            values.setdefault(number, [math.nan] * len(cells))[i] = known.get(number, math.nan)
        if not known:
            faults.add("column", f"column {title} has no value")
            continue

        # In words, with what may not be meant.
        in_words, notes = _classes_in_words(known) if kind in CLASSES else _numbers_in_words(texts, known, kind, faults)
        absent = Counter(text or "empty" for number, text in column.items() if number not in texts)
        if absent:
            kinds = ", ".join(f"{text} {count}" for text, count in absent.most_common())
            notes.append(f"{absent.total()} of {len(column)} rows were not measured ({kinds})")
        if odd and kind == "regression":
            notes += odd_values([f"row {number}" for number in known], np.array([*known.values()]))
        about.append(of + in_words)
        faults.notes += [of + note for note in notes]
    in_order = {number: row if len(cells) > 1 else row[0] for number, row in sorted(values.items())}
    return in_order, ", ".join(about)


def _value(number: int, text: str, kind: str) -> float | str | list[str]:
    """The value of a cell in row `number`: a number, a class, or some. Raises ValueError if it is none of this kind."""
    if kind == "classes":
        return text
    if kind == "labels":
        return [part.strip() for part in text.split(",") if part.strip()]
    value = _number(text)
    if value is not None and abs(value) <= LARGEST and (kind != "binary" or value in (0, 1)):
        return value
    advice = f'if it was not measured: --missing "{text}". Names need --kind classes or labels'
    if DATE.fullmatch(text):
        advice = "a spreadsheet may have made a date of a number: format the column as text"
    raise ValueError(f"row {number}: {text!r} is no value for {kind}; write numbers alone; {advice}")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _numbers_in_words(texts: Column, known: Mapping[int, float], kind: str, faults: Faults) -> tuple[str, list[str]]:
    """The range of the numbers that are `known` of a column; what may not be meant."""
    in_words = f"{min(known.values()):g} to {max(known.values()):g}"
    if kind == "binary":
        in_words = f"{[*known.values()].count(1)} of {len(known)} are 1"

    # A comma may be that of decimals or of thousands.
    notes = []
    commas = [texts[number] for number in known if "," in texts[number]]
    points = {number: texts[number] for number in known if "." in texts[number]}
    if commas:
        notes.append(f"decimal commas, {commas[0]} is read as {_number(commas[0]):g}")
        for number, text in points.items():
            mixed = f"{text!r} has a decimal point, but {commas[0]!r} a decimal comma"
            faults.add("points and commas", f"row {number}: {mixed}")
        if len(commas) < len(known) and all(map(THOUSANDS.fullmatch, commas)):
            faults.add("column", f"is {commas[0]!r} a decimal comma? Some numbers are whole: write all without commas")
    bounds = [text for text in texts.values() if BOUND.match(text)]
    if bounds:
        notes.append(f"{len(bounds)} bounds ({first_three(bounds)}) are read as the number behind the sign")
    if kind != "regression":
        return in_words, notes

    # Are they names? 1.1 and 1.10 of a classification, or few whole numbers.
    written = defaultdict(set)
    for number, text in points.items():
        written[known[number]].add(text)
    alike = [sorted(several) for several in written.values() if len(several) > 1]
    if alike:
        notes.append(f"{' and '.join(alike[0][:2])} are one number: --kind classes if they are names")
    different = {*known.values()}
    if 1 < len(different) <= FEW < len(known) and all(map(float.is_integer, different)):
        notes.append(f"only {len(different)} different whole numbers: --kind classes if they are names")
    return in_words, notes


def odd_values(names: Sequence[str], y: np.ndarray) -> list[str]:
    """What looks like a mistake in values (K,) of these names: no logarithms, or a value far from all others.

    The first three are named. If values are positive and skewed, that is looked for among their logarithms.
    """
    if len(y) < MANY or y.std() == 0:
        return []
    notes = []
    seen = y
    low, middle, high = np.quantile(y, [0.1, 0.5, 0.9])  # one slip does not move them
    if y.min() > 0 and high > 20 * low and high - middle > 3 * (middle - low):
        notes.append(f"all values are positive and skewed, {y.min():g} to {y.max():g}: take logs?")
        seen = np.log(y)
    distance = np.abs(seen - np.median(seen))
    spread = 1.4826 * np.median(distance)  # the standard deviation of a normal law with this MAD
    if spread > 0:
        others = f"far from the others (median {middle:.3g})"
        far = np.flatnonzero(distance > FAR * spread)[:3]
        notes += [f"{names[i]} is {y[i]:g}, {others}: a typing error?" for i in far]
    return notes


# ---- classes ---------------------------------------------------------------------------------------------------------


def count_classes(values: Iterable[str | list[str]]) -> Counter:
    """How often each class is named."""
    return Counter(name for value in values for name in ([value] if isinstance(value, str) else value))


def _classes_in_words(known: Mapping[int, str | list[str]]) -> tuple[str, list[str]]:
    """How many there are of each class; a note if some differ in their case alone."""
    count = count_classes(known.values())
    sizes = ", ".join(f"{name} {size}" for name, size in count.most_common(SHOWN))
    in_words = f"{len(count)} classes: {sizes}" + (", ..." if len(count) > SHOWN else "")
    written = Counter(map(squeezed, count))
    alike = [name for name in count if written[squeezed(name)] > 1]
    notes = [f"{first_three(alike)} are different classes: are they meant to be?"] if alike else []
    several = [name for name in count if re.search("[;|]", name)]
    if several:
        notes.append(f"{first_three(several)}: one class each, as commas alone part several (--kind labels)")
    return in_words, notes
