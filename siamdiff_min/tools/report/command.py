"""One page to show: `siamdiff report RUN...` draws runs of train.py or finetune.py, and compares several.

The result comes first, with its interval, the baseline, and the predictions; of several runs the differences to the
first one (`comparison.py`, also as CSV and LaTeX); then the curves, and the options. A page is one file without
scripts, for wide screens and phones, dark and light. Its words are HTML (`captions.py`). Pictures (`figures.py`) need
matplotlib.
"""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ...files import write_file
from ...training.metrics_file import in_order
from ...training.summary import cell
from ..evidence import wording
from ..evidence.wording import title_of
from . import figures, picture, tables
from .captions import about, predicted, tested_on, text
from .comparison import units
from .picture import Picture
from .runs import RunFolder, read_runs

HEAD = '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
CSS = """:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1a1d21;--soft:#5b636d;--rule:#e1e4e8;
--good:#0c7d5c;--bad:#c8501d}@media(prefers-color-scheme:dark){:root{--page:#121417;--card:#1c1f24;--ink:#eceef1;
--soft:#a3abb5;--rule:#31363d;--good:#45d1a5;--bad:#ff9166}}
body{max-width:1760px;margin:auto;padding:1.2rem clamp(.8rem,2.5vw,2.5rem);background:var(--page);color:var(--ink);
font:16px/1.45 system-ui,sans-serif}h1{font-size:1.7rem;line-height:1.2;margin:.3rem 0 .5rem}
h2{font-size:1.2rem;margin:2rem 0 .4rem}h3{font-size:1rem;margin:0 0 .3rem}p{margin:.2rem 0 .5rem}
h1::first-letter,h3::first-letter,.note::first-letter{text-transform:uppercase}
small,.note{color:var(--soft);font-size:.87rem}.big{font-size:2rem;font-weight:650;line-height:1.1}
.big small{font-weight:400}.better{color:var(--good)}.worse{color:var(--bad)}.untold{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:1rem;align-items:start}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:1rem;min-width:0}
svg{display:block;width:100%;height:auto;color:var(--soft)}svg text{font-family:system-ui,sans-serif!important}
i{display:inline-block;width:1.5em;border-top:4px solid;margin:0 .4em .25em 0}
.tables{display:flex;flex-wrap:wrap;gap:0 3rem}
.tables>div{overflow-x:auto;max-width:100%}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--rule);font-size:.9rem}
th{color:var(--soft);font-weight:500}tr>*{white-space:nowrap}"""


def run(args: Namespace) -> int:
    """Write the tables, the page and the pictures that `options.report` asks for. Raises SiamDiffError."""
    sections = read_sections(args.run)
    for path, write in ((args.csv, tables.write_csv), (args.latex, tables.write_latex)):
        if path:
            write(path, sections)
            print(path)
    print(write_page(args.run, args.out, sections))
    if args.figures:
        write_pictures(args.figures, sections)
    return 0


def read_sections(paths: Sequence[Path]) -> dict[str, list[RunFolder]]:
    """What was predicted -> the runs that did: they are compared. Raises SiamDiffError."""
    sections = defaultdict(list)
    for run in read_runs(paths):
        runs = sections[predicted(run)]
        runs.append(replace(run, number=len(runs)))
    return sections


def write_page(paths: Sequence[Path], out: Path | None = None, sections: Mapping | None = None) -> Path:
    """Draw runs of train.py and finetune.py; returns the page. Raises SiamDiffError."""
    sections = sections or read_sections(paths)
    body = ""
    for title, runs in sections.items():
        body += heading(runs, title) + results_of(runs) + tables_of(runs)
    out = out or (paths[0] / "report.html" if len(paths) == 1 else Path("comparison.html"))
    write_file(out, as_page(", ".join(sections), body))
    return out


def write_pictures(folder: Path, sections: Mapping[str, Sequence[RunFolder]]) -> None:
    """Every picture of the page as files; of several sections each is named after its own. Raises SiamDiffError."""
    pictures = []
    for title, runs in sections.items():
        before = f"{title}-" if len(sections) > 1 else ""
        pictures += [one._replace(name=before + one.name) for one in chain(*pictures_of(runs))]
    count = picture.write_figures(folder, pictures)
    print(f"{folder}: {count} files, each picture as {', '.join(picture.FORMATS)} in {len(picture.COLUMNS)} widths")


# ---- the page --------------------------------------------------------------------------------------------------------


def heading(runs: Sequence[RunFolder], title: str) -> str:
    """What was predicted, and by which runs."""
    body = f"<h1>{text(title)}</h1>"
    for run in runs:
        colour = picture.colour_of(run.number)
        name = f'<i style="border-color:{colour}"></i><b>{text(run.name)}</b> ' if len(runs) > 1 else ""
        body += f"<p>{name}{about(run)}"
    return body


def results_of(runs: Sequence[RunFolder]) -> str:
    """The result of runs of one task, or of pre-training: scores, predictions, side by side, and the curves."""
    scores, predictions, curves = (cards(pictures) for pictures in pictures_of(runs))
    body = f"<h2>Result</h2>{tested_on(runs)}{scores}<p>{predictions}"
    rows = tables.comparison_rows(runs)
    if len(runs) > 1 and len(rows) > 1:
        body += f"<div class=tables>{as_html('Side by side', rows)}</div>"
    return f"{body}<h2>Curves</h2>{curves}"


def cards(pictures: Sequence[Picture]) -> str:
    """Pictures beside each other."""
    return f"<div class=cards>{''.join(map(picture.card, pictures))}</div>"


def tables_of(runs: Sequence[RunFolder]) -> str:
    """All numbers of every run, what its preset decides, and what it was told."""
    body = ""
    for run in runs:
        if run.tested:
            body += as_html(f"Numbers of {run.name}, intervals over {units(run)}", wording.rows(run.results))
    body += as_html("Options", options_of(runs))
    for run in runs:
        if run.by_preset:
            titles = ["", "paper", "released code", "row of docs/differences.md"]
            rows = [titles, *(list(row.values()) for row in run.by_preset)]
            body += as_html(f"What --preset decides for {run.name}, of preset {run.config['preset']}", rows)
    return f"<div class=tables>{body}</div>"


def pictures_of(runs: Sequence[RunFolder]) -> tuple[list[Picture], list[Picture], list[Picture]]:
    """Of every measure the picture of its result; the predictions; the curves of what has changed."""
    measured = dict.fromkeys(measure for run in runs for measure in run.mean)
    scores = [figures.picture_of_result(runs, measure, title_of(measure, measured)) for measure in measured]

    logged = defaultdict(set)  # the values of every measure in metrics.jsonl
    for line in chain.from_iterable(lines for run in runs for lines in run.lines):
        for name, value in line.items():
            logged[name].add(value)
    curves = []
    for name, values in in_order(logged):
        if len(values - {None}) > 1 and not name.endswith("_per_second"):
            curves.append(figures.picture_of_curve(runs, name, title_of(name, measured)))
    return scores, figures.pictures_of_predictions(runs), curves


def options_of(runs: Sequence[RunFolder]) -> list[list[str]]:
    """The options of a run; of several runs those in which they differ."""
    rows = [["option", *(run.name for run in runs)]]
    for name in dict.fromkeys(name for run in runs for name in run.config):
        values = [str(run.config.get(name)) for run in runs]
        if len(runs) == 1 or len(set(values)) > 1:
            rows.append([name, *values])
    return rows


def as_html(title: str, rows: Sequence[Sequence]) -> str:
    """Rows of cells as a table, the first one its head."""
    lines = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = [f"<{tag}>{text(cell(value))}" for value in row]
        lines.append(f"<tr>{''.join(cells)}")
    return f"<div><h2>{text(title)}</h2><table>{''.join(lines)}</table></div>"


def as_page(title: str, body: str) -> bytes:
    """The file of a page."""
    return f"{HEAD}<title>{text(title)}</title><style>{CSS}</style>{body}".encode()
