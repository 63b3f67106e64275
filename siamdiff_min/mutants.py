"""From one structure and a few measured mutants to the next batch: `siamdiff mutants 1abc.cif --measured tested.csv`.

In Python, `siamdiff_min.rank_mutants("1abc.cif", {"A52G": 1.3, ...})`. `downstream/mutations.py` is the model; here are
mutations as people write them, the tables, and the page (docs/mutants.md).
"""

import hashlib
import re
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import report
from .data.labels import read_table
from .downstream.mutations import ENCODERS, Effects, Mutant, Sites, Trust, log_odds, positions, sites_of, trust
from .encoders.weights import find_weights, load_encoder
from .files import ConfigError, Parser, checksum, console, printable, replacing, write_file
from .protein.constants import ONE_LETTER
from .protein.parse import read_structure
from .protein.structure import Structure
from .training.ranks import Ranks

MUTATION = re.compile(r"(?:(\w+):)?([A-Z])(-?\d+)([A-Za-z]?)([A-Z])")  # chain, type, number, insertion code, new type
WILD_TYPE = {"wt", "wildtype", "wild-type", "wild type"}
MAX_SHIFT = 2000
SHOWN = 5  # misfits in an error
MAP_WIDTH = 60  # residues in a map
LOG_ODDS = "log-odds.npz"  # kept in OUT
COLUMNS = "mutation predicted low high ranking log_odds neighbours nearest_measured distance".split()  # noqa: SIM905


# ---- mutations as text -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Places:
    """The residues of a structure that may be mutated."""

    rows: list[int]  # of the structure
    chains: list[str]
    numbers: list[str]  # with insertion code
    wild: str

    @staticmethod
    def of(structure: Structure, chains: Sequence[str] | None) -> "Places":
        """The residues of these chains, by default of the first. Raises ConfigError."""
        if unknown := set(chains or ()) - {*structure.chain_names}:
            raise ConfigError(f"there is no chain {', '.join(sorted(unknown))}, but {', '.join(structure.chain_names)}")
        wanted = chains or structure.chain_names[:1]
        found = [(i, c, f"{n}{code}".strip()) for i, (c, n, code) in enumerate(structure.positions) if c in wanted]
        found.sort(key=lambda x: [*wanted].index(x[1]))
        rows, names, numbers = (list(x) for x in zip(*found))
        types = structure.protein.residue_type
        return Places(rows, names, numbers, "".join(ONE_LETTER[types[i]] for i in rows))

    def name(self, mutant: Mutant) -> str:
        """A mutant as text, such as A52G/L60V; with chains if there are several."""
        several = len({*self.chains}) > 1
        words = []
        for i, new in (divmod(mutation, len(ONE_LETTER)) for mutation in mutant):
            chain = f"{self.chains[i]}:" if several else ""
            words.append(f"{chain}{self.wild[i]}{self.numbers[i]}{ONE_LETTER[new]}")
        return "/".join(words) or "WT"

    def read(self, texts: Iterable[str], shift: int = 0) -> list[Mutant]:
        """The mutants that texts stand for. Raises ConfigError, with all that do not fit in one sentence."""
        index, mutants, wrong = {key: i for i, key in enumerate(zip(self.chains, self.numbers))}, [], {}
        listed = []  # (chain, type, number, insertion code) of every mutation
        for text in texts:
            words = [] if text.strip().lower() in WILD_TYPE else re.split(r"[/+,;\s]+", text.strip())
            mutant, seen = set(), set()
            for word in words:
                match = MUTATION.fullmatch(word)
                if not match or match[5] not in ONE_LETTER:
                    wrong[word] = "is no mutation like A52G"
                    continue
                chain, own, number, code, new = match.groups()
                key = chain or self.chains[0], f"{int(number) + shift}{code}"
                listed.append((key[0], own, int(number) + shift, code))
                if (i := index.get(key)) is None or self.wild[i] != own:
                    wrong[word] = "no such residue" if i is None else f"the structure has {self.wild[i]}"
                elif i in seen:
                    wrong[word] = f"a second mutation there in {text}"
                elif new != own:
                    mutant.add(i * len(ONE_LETTER) + ONE_LETTER.index(new))
                seen.add(i)
            mutants.append(tuple(sorted(mutant)))
        if wrong:
            some = ", ".join(f"{word} ({reason})" for word, reason in [*wrong.items()][:SHOWN])
            more = f" and {len(wrong) - SHOWN} more" * (len(wrong) > SHOWN)
            advice = self._advice(listed, index)
            raise ConfigError(f"{len(wrong)} mutations do not fit the structure: {some}{more}{advice}")
        return mutants

    def _advice(self, listed: list[tuple], index: Mapping) -> str:
        """The shift of the numbers with which all would fit, if there is one that is no chance."""
        places = {(chain, number, code): own for chain, own, number, code in listed}
        for shift in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs) if len(places) > 2 else ():
            keys = [(chain, f"{number + shift}{code}") for chain, number, code in places]
            if all(key in index and self.wild[index[key]] == own for key, own in zip(keys, places.values())):
                return f"; all fit if {shift} is added to the numbers (--shift {shift})"
        return ""


# ---- the ranking -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ranking:
    """All single mutants of a structure, the best first, and how far to trust them."""

    places: Places
    rows: list[dict]  # every single mutant that has not been measured
    next: list[dict]  # the rows to make next
    measured: dict[str, float]  # mean over repeats
    model: Effects | None  # None without measurements
    trust: Trust | None
    notes: list[str]
    sign: int  # -1 if lower is better

    def __repr__(self) -> str:
        return f"Ranking({len(self.rows)} mutants, {len(self.measured)} measured: {self.verdict})"

    @property
    def verdict(self) -> str:
        """Whether to believe the predictions, in a few words."""
        return self.trust.verdict if self.trust else "nothing measured: ranked by log-odds and burial"

    def predict(self, *mutants: str) -> list[tuple[float, float, float]]:
        """Value and 90 % interval of mutants such as A52G/L60V. Raises ConfigError."""
        if self.model is None:
            raise ConfigError("nothing was measured, so no value can be predicted")
        value, half = self.model.predict(self.places.read(mutants))
        return [(self.sign * v, *sorted((self.sign * (v - h), self.sign * (v + h)))) for v, h in zip(value, half)]


def rank_mutants(
    structure,
    measured: Mapping[str, float] | Iterable[tuple[str, float]] = (),
    chain: Sequence[str] | None = None,
    batch: int = 96,
    per_position: int = 2,
    explore: float = 0.0,
    lower_is_better: bool = False,
    shift: int = 0,
    kept: Path | None = None,
) -> Ranking:
    """Rank all single mutants of a structure, by measured mutants if there are any.

    Args:
        structure: a path, or what `read_structure` takes or gives.
        measured: values by mutation: A52G, A:A52aG, A52G/L60V, WT. Pairs may repeat a mutation.
        chain: the chains that are mutated, by default the first; the others are surroundings.
        batch: size of the next batch; of a position at most `per_position`.
        explore: weight of half the interval's width: 0 takes the best predictions, 1 the highest upper ends.
        shift: added to the numbers of the mutations.
        kept: a file that keeps log-odds for the next call.

    Raises StructureError, and ConfigError for mutations that do not fit the structure.
    """
    structure = structure if isinstance(structure, Structure) else read_structure(structure)
    places = Places.of(structure, chain)
    pairs = [*(measured.items() if isinstance(measured, Mapping) else measured)]
    values = defaultdict(list)
    for mutant, (_, value) in zip(places.read((text for text, _ in pairs), shift), pairs):
        values[mutant].append(float(value))
    sites, notes, sign = known_sites(structure, places.rows, kept), [], -1 if lower_is_better else 1
    if repeats := [x for x in values.values() if len(x) > 1]:
        scatter = np.sqrt(np.mean([np.var(x, ddof=1) for x in repeats]))
        notes.append(f"{len(repeats)} mutants were measured more than once, with a scatter of {scatter:.3g}")
    mean, model, belief = {mutant: float(np.mean(x)) for mutant, x in values.items()}, None, None
    if len(mean) > 1:
        y = sign * np.array([*mean.values()])
        model = Effects(sites, [*mean], y)
        belief = trust(model, y)
    rows = table_of(structure, places, sites, model, [*mean], sign)
    rows.sort(key=lambda row: -row["score"] - explore * row["half"])
    chosen, taken = [], defaultdict(int)
    for row in rows:
        taken[row["place"] // 20] += 1
        chosen += [row] if taken[row["place"] // 20] <= per_position else []
    measured = {places.name(mutant): value for mutant, value in mean.items()}
    return Ranking(places, rows, chosen[:batch], measured, model, belief, notes, sign)


def known_sites(structure: Structure, rows: list[int], kept: Path | None) -> Sites:
    """The features and log-odds of residues, from the file `kept` if it is of the same structure and encoders."""
    p = structure.protein
    parts = [x.numpy().tobytes() for x in (p.pos, p.atom_name, p.residue_type, p.residue_index, torch.tensor(rows))]
    parts += [checksum(find_weights(name)).encode() for name in ENCODERS]
    key = hashlib.sha256(b"".join(parts)).hexdigest()
    if kept and kept.exists():
        with np.load(kept, allow_pickle=False) as file:
            if str(file["key"]) == key:
                return sites_of(structure, rows, file["features"], file["odds"])
    features = np.stack([load_encoder(name, "cpu").embed(structure).per_residue[rows] for name in ENCODERS])
    with Ranks(torch.device("cpu")).bar(total=len(ENCODERS) * len(rows), unit="residue") as bar:
        odds = np.stack([log_odds(name, p, rows, bar.update) for name in ENCODERS])
    if kept:
        with replacing(kept) as file:
            np.savez(file, key=np.array(key), features=features, odds=odds)
    return sites_of(structure, rows, features, odds)


def table_of(
    structure: Structure, places: Places, sites: Sites, model: Effects | None, measured: list[Mutant], sign: int
) -> list[dict]:
    """A row for every single mutant that has not been measured."""
    singles = [(i * 20 + new,) for i, wild in enumerate(sites.wild) for new in range(20) if new != wild]
    singles = sorted({*singles} - {*measured})
    ranking = sites.ranking[[x for (x,) in singles]]
    score, half = model.predict(singles) if model else np.full((2, len(singles)), np.nan)
    ca = structure.protein.alpha_carbons().pos[places.rows]
    touched = sorted({i for mutant in measured for i in positions(mutant)})
    distance = (ca[:, None] - ca[touched]).norm(dim=-1) if touched else torch.full((len(ca), 1), float("nan"))
    rows = []
    for mutant, value, width, rank in zip(singles, score, half, ranking):
        (i,) = positions(mutant)
        nearest = int(distance[i].argmin())
        ends = sorted((sign * (value - width), sign * (value + width)))
        row = {"mutation": places.name(mutant), "predicted": sign * value, "low": ends[0], "high": ends[1]}
        row |= {
            "ranking": rank,
            "log_odds": float(sites.odds[:, i, mutant[0] % 20].mean()),
            "neighbours": int(sites.neighbours[i, 1]),
        }
        row["nearest_measured"] = places.numbers[touched[nearest]] if touched else ""
        row["distance"] = float(distance[i, nearest])
        rows.append(row | {"score": value if model else rank, "half": width if model else 0.0, "place": mutant[0]})
    return rows


def write_rows(path: Path, rows: Sequence[dict]) -> None:
    """Write a table with tabs. Raises WriteError."""
    lines = ["\t".join(COLUMNS)]
    for row in rows:
        cells = (row[column] for column in COLUMNS)
        lines.append("\t".join(("" if x != x else f"{x:.4g}") if isinstance(x, float) else str(x) for x in cells))
    write_file(path, "\n".join([*lines, ""]).encode())


def write_model(path: Path, ranking: Ranking) -> None:
    """Write the effects of all single mutations (R, 20): a mutant is `wild_type` plus the sum of its effects."""
    places, model = ranking.places, ranking.model
    every = [(x,) for x in range(20 * len(places.wild))]
    wild_type = model.predict([()])[0]
    effects = (model.predict(every)[0] - wild_type).reshape(-1, 20)
    effects[np.arange(len(effects)), model.sites.wild] = 0
    names = {"chain": places.chains, "number": places.numbers, "residue": list(places.wild), "types": list(ONE_LETTER)}
    with replacing(path) as file:
        arrays = {name: np.array(values) for name, values in names.items()}
        np.savez(file, effects=ranking.sign * effects, wild_type=ranking.sign * wild_type[0], **arrays)


# ---- the page --------------------------------------------------------------------------------------------------------


def draw_map(axes, ranking: Ranking, columns: range) -> None:
    """Predicted effects of every type at some residues; dots: measured; crosses: the wild type."""
    score = np.full((len(ranking.places.wild), 20), np.nan)
    for row in ranking.rows:
        score.flat[row["place"]] = row["score"]
    low, high = np.nanquantile(score, [0.02, 0.98])
    axes.imshow(score[columns].T, cmap="RdBu", vmin=low, vmax=high, aspect="auto", zorder=2)
    wild = [ONE_LETTER.index(ranking.places.wild[i]) for i in columns]
    axes.plot(range(len(columns)), wild, "x", color=report.INK, ms=3, zorder=3)
    for i, new in {divmod(x, 20) for mutant in (ranking.model.mutants if ranking.model else ()) for x in mutant}:
        if i in columns:
            axes.plot(i - columns[0], new, "o", color=report.INK, ms=3, zorder=3)
    axes.set_yticks(range(20), ONE_LETTER, fontsize=6)
    marks = range(0, len(columns), 5)
    axes.set_xticks(marks, [ranking.places.wild[columns[k]] + ranking.places.numbers[columns[k]] for k in marks])
    axes.tick_params(axis="x", rotation=90, labelsize=7)


def draw_held_out(axes, ranking: Ranking) -> str:
    """Predictions at positions left out, against the measured values."""
    y = np.array([*ranking.measured.values()])
    axes.scatter(y, ranking.sign * ranking.model.held_out, s=18, color=report.COLOURS[0], alpha=0.7, lw=0)
    axes.axline((y.mean(), y.mean()), slope=1, color=report.INK, lw=1, alpha=0.3)
    axes.set(xlabel="measured", ylabel="predicted, nothing measured at its position")
    return f"{ranking.trust.covered:.0%} of these values lie in their 90 % intervals"


def page(title: str, ranking: Ranking) -> bytes:
    """The verdict, the maps, and the next batch."""
    text, side = report.text, "not"
    if ranking.trust and ranking.trust.enough:
        side = "better" if ranking.trust.rho["the model"][1] > 0 else "worse"
    body = f"<h1>{text(title)}</h1><p class='big {side}'>{text(ranking.verdict)}</p>"
    body += "".join(f"<p>{text(line)}</p>" for line in said(ranking)[1:])
    cards = []
    if ranking.trust:
        cards.append(report.card(f"Held out, N = {len(ranking.measured)}", draw_held_out, ranking, height=4.4))
    for start in range(0, len(ranking.places.wild), MAP_WIDTH):
        columns = range(start, min(start + MAP_WIDTH, len(ranking.places.wild)))
        ends = [ranking.places.numbers[columns[k]] for k in (0, -1)]
        cards.append(report.card(f"Effects, {ends[0]} to {ends[1]}", draw_map, ranking, columns, height=3.6))
    note = "Blue: better; red: worse; dots: measured; crosses: the wild type."
    rows = [COLUMNS, *([row[column] for column in COLUMNS] for row in ranking.next)]
    body += f"<p class=note>{note}</p><div class=cards>{''.join(cards)}</div>"
    body += f"<div class=tables>{report.as_html('The next batch', rows)}</div>"
    return report.as_page(title, body)


def said(ranking: Ranking) -> list[str]:
    """The verdict, and what there is to say about the measurements and the model, a sentence each."""
    known = ranking.trust.sentences if ranking.trust and ranking.trust.enough else []
    return [ranking.verdict, f"{len(ranking.measured)} mutants measured", *ranking.notes, *known]


# ---- the command -----------------------------------------------------------------------------------------------------


def rank(args: Namespace) -> None:
    """Rank the mutants of a command line, for one property after the other."""
    options = {name: getattr(args, name) for name in ("chain", "per_position", "explore", "lower_is_better", "shift")}
    options |= {"batch": args.next, "kept": args.out / LOG_ODDS}
    tables = {"": []}
    if args.measured:
        table = read_table(args.measured, "regression", args.name_column, args.value_column, args.missing)
        sys.stderr.writelines(f"note: {printable(note)}\n" for note in table.notes)
        columns = {name: [row.value[k] for row in table.rows] for k, name in enumerate(table.classes)}
        columns = columns or {"": [row.value for row in table.rows]}
        texts = [row.name for row in table.rows]
        tables = {name: [(t, x) for t, x in zip(texts, values) if x == x] for name, values in columns.items()}
    structure = read_structure(args.structure)
    if args.chain is None and len(structure.chain_names) > 1:
        print(f"chain {structure.chain_names[0]} of {', '.join(structure.chain_names)}: --chain chooses others")
    for name, pairs in tables.items():
        ranking, folder = rank_mutants(structure, pairs, **options), args.out / name.replace("/", "_")
        write_rows(folder / "mutants.tsv", ranking.rows)
        write_rows(folder / "next.tsv", ranking.next)
        if ranking.model:
            write_model(folder / "model.npz", ranking)
        write_file(folder / "report.html", page(f"{name or 'mutants'} of {args.structure.name}", ranking))
        files = f"{folder / 'report.html'}, next.tsv ({len(ranking.next)} mutants), mutants.tsv ({len(ranking.rows)})"
        print(*map(printable, [*([name] if name else []), *said(ranking), files]), sep="\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns 130 after Ctrl-C."""
    parser = Parser(prog="siamdiff mutants", description=__doc__.splitlines()[0])
    parser.add_argument("structure", type=Path, help="a PDB or mmCIF file, also .gz")
    parser.add_argument("--measured", type=Path, help="table of mutations (A52G, A52G/L60V, WT) and values")
    parser.add_argument("--name-column", help="title of the mutations (default: name, or the first column)")
    parser.add_argument("--value-column", nargs="+", help="titles of the values; each is ranked alone (default: value)")
    parser.add_argument("--missing", nargs="+", help="words for a value that was not measured")
    parser.add_argument("--lower-is-better", action="store_true", help="the smallest values are the best")
    parser.add_argument("--shift", type=int, default=0, help="add this to the numbers of the mutations (default: 0)")
    parser.add_argument("--chain", nargs="+", help="chains that are mutated (default: the first)")
    parser.add_argument("--next", type=int, default=96, help="size of the next batch (default: 96)")
    parser.add_argument("--per-position", type=int, default=2, help="at most, in the next batch (default: 2)")
    text = "weight of the width of the interval: 1 takes the highest upper ends (default: 0)"
    parser.add_argument("--explore", type=float, default=0.0, help=text)
    parser.add_argument("--out", type=Path, default="mutants", help="folder of the results (default: mutants)")
    args = parser.parse_args(argv)
    try:
        with console():
            rank(args)
        return 0
    except KeyboardInterrupt:
        print("stopped: the next call begins again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
