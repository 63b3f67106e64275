"""The values of a table of labels: numbers or classes, what they look like, and what is odd about them."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

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


def kind_of(cells: Mapping[str, Mapping[int, str]], words: Collection[str]) -> str:
    """The kind that the values look like. Raises ValueError if all of them are numbers with a unit."""
    texts = []
    for column in cells.values():
        texts += [(number, text) for number, text in column.items() if squeezed(text) not in NOT_MEASURED | words]
    others = [(number, text) for number, text in texts if _number(text) is None]
    if not others:
        return "binary" if {_number(text) for _, text in texts} == {0, 1} else "regression"

    # A text among numbers, or numbers with something else between their digits, is a mistake: see _checked_number.
    if len(others) < len(texts) or all(re.fullmatch(r"-?\d+ ?[,_][\d,_. ]*", text) for _, text in others):
        return "regression"

    # So is a number with a unit, if all have the same one.
    units = [UNIT.fullmatch(text) for _, text in others]
    if all(units) and len({re.sub(r"[\d.,]+", "", match[1]) for match in units}) == 1:
        number, text = others[0]
        raise ValueError(f"row {number}: {text!r:.50} has a unit: write numbers alone. Names need --kind classes")
    return "labels" if any("," in text for _, text in others) else "classes"


def read_numbers(
    cells: Mapping[str, Mapping[int, str]], kind: str, words: Collection[str], faults: Faults
) -> tuple[dict, str, list[str]]:
    """Values by row, of several columns as lists with nan in the gaps; the values in words; notes."""
    several = len(cells) > 1
    values = {}
    about = []
    notes = []
    for i, (title, column) in enumerate(cells.items()):
        of = f"{title}: " if several else ""
        known, notes_of_column = _numbers_of(title, column, kind, words, faults)
        if not known:
            continue
        for number, value in known.items():
            values.setdefault(number, [math.nan] * len(cells))[i] = value
        size = f"{min(known.values()):g} to {max(known.values()):g}"
        if kind == "binary":
            size = f"{list(known.values()).count(1)} of {len(known)} are 1"
        about.append(of + size)
        notes += [of + note for note in notes_of_column]

    in_order = {number: row if several else row[0] for number, row in sorted(values.items())}
    return in_order, ", ".join(about), notes


def _numbers_of(
    title: str, column: Mapping[int, str], kind: str, words: Collection[str], faults: Faults
) -> tuple[dict, list[str]]:
    """The numbers of a column by row, without those that were not measured; notes."""
    commas = [text for text in column.values() if "," in text and _number(text) is not None]
    known = {}
    gaps = Counter()
    for number, text in column.items():
        if squeezed(text) in NOT_MEASURED | words:
            gaps[text or "empty"] += 1
        else:
            with faults.of("value"):
                known[number] = _checked_number(number, text, kind)
            if commas and "." in text:
                mixed = f"{text!r:.50} has a decimal point, but {commas[0]!r:.50} a decimal comma"
                faults.add("points and commas", f"row {number}: {mixed}")
    if not known:
        faults.add("column", f"column {title} has no value")
    if commas and len(commas) < len(known) and all(map(THOUSANDS.fullmatch, commas)):
        plain = commas[0].replace(",", "")
        decimal = commas[0].replace(",", ".")
        which = f"is {commas[0]!r} {plain} or {decimal}? Some numbers are whole: write all without commas"
        faults.add("column", which)

    # What may not be meant.
    notes = []
    if commas:
        notes.append(f"decimal commas, {commas[0]} is read as {_number(commas[0]):g}")
    if gaps:
        kinds = ", ".join(f"{text} {count}" for text, count in gaps.most_common())
        notes.append(f"{gaps.total()} of {len(column)} rows were not measured ({kinds})")
    bounds = [text for text in column.values() if BOUND.match(text)]
    if bounds:
        notes.append(f"{len(bounds)} bounds ({first_three(bounds)}) are read as the number behind the sign")
    different = len({*known.values()})
    twins = _alike(column, known) if kind == "regression" else ""
    if twins:
        notes.append(f"{twins} are one number: --kind classes if they are names")
    few = 1 < different <= FEW < len(known)
    if kind == "regression" and few and all(value == int(value) for value in known.values()):
        notes.append(f"only {different} different whole numbers: --kind classes if they are names")
    return known, notes


def _alike(column: Mapping[int, str], known: Mapping[int, float]) -> str:
    """Two texts that differ in zeros at their end alone, as 1.1 and 1.10 of a classification do; else nothing."""
    written = defaultdict(set)
    for number, value in known.items():
        if "." in column[number]:
            written[value].add(column[number])
    several = [sorted(texts, key=len) for texts in written.values() if len(texts) > 1]
    return " and ".join(several[0][:2]) if several else ""


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


def _checked_number(number: int, text: str, kind: str) -> float:
    """The value of a cell in row `number`. Raises ValueError if it is none of this kind."""
    value = _number(text)
    if value is not None and abs(value) <= LARGEST and (kind != "binary" or value in (0, 1)):
        return value
    advice = ""
    if value is None:
        unit = "; write numbers alone" if UNIT.fullmatch(text) else ""
        advice = f'{unit}; if it was not measured: --missing "{text:.50}". Names need --kind classes or labels'
    raise ValueError(f"row {number}: {text!r:.50} is no value for {kind}{advice}")


def read_classes(
    column: Mapping[int, str], kind: str, words: Collection[str], fewest: int = 2
) -> tuple[dict, tuple[str, ...], str, list[str]]:
    """Classes by row, a name or a list of names; all names; how many there are of each; notes."""
    not_measured = words if kind == "labels" else {*words, ""}
    there = {number: text for number, text in column.items() if squeezed(text) not in not_measured}
    several = {}
    for number, text in there.items():
        parts = [part.strip() for part in text.split(",")]
        several[number] = [part for part in parts if part]
    count = Counter(there.values())
    if kind == "labels":
        count = Counter(name for names in several.values() for name in names)
    if len(count) < fewest:
        raise ValueError(f"one class only: {[*count]!r:.100}")

    # In words, with what may not be meant.
    commonest = ", ".join(f"{name} {number}" for name, number in count.most_common(SHOWN))
    about = f"{len(count)} classes: {commonest}"
    if len(count) > SHOWN:
        about += ", ..."
    notes = []
    gaps = len(column) - len(there)
    if gaps:
        notes.append(f"{gaps} of {len(column)} rows have no class")
    written = {}  # class in small letters -> as it is written
    for name in count:
        written.setdefault(squeezed(name), []).append(name)
    for names in written.values():
        if len(names) > 1:
            notes.append(f"{first_three(names)} are different classes: are they meant to be?")
    once = [*count.values()].count(1)
    if once > len(count) / 2:
        notes.append(f"{once} of {len(count)} classes are named once: is this the right column?")
    return several if kind == "labels" else there, tuple(sorted(count)), about, notes
