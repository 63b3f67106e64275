"""From one structure and a few measured mutants to the next batch: `siamdiff mutants 1abc.cif --measured tested.csv`.

In Python, `siamdiff_min.rank_mutants("1abc.cif", {"A52G": 1.3, ...})`. `mutation_model.py` is the model; here are
mutations as people write them, the tables, and the page (docs/mutants.md).
"""

import hashlib
import re
import sys
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..data.labels import read_table
from ..encoders.weights import find_weights, load_encoder
from ..files import ConfigError, Parser, checksum, printable, replacing, write_file, write_rows
from ..machine import progress
from ..protein.constants import ONE_LETTER
from ..protein.parse import read_structure
from ..protein.structure import Structure
from . import mutation_model, report
from .mutation_model import AROUND, MODEL, Effects, Mutant, Sites, Trust, between, positions

MUTATION = re.compile(rf"(?:(\w+):)?([A-Z])(-?\d+)([A-Za-z]?)([{ONE_LETTER}])")  # chain, type, number, code, new type
BETWEEN = re.compile(r"[/+,;\s]+|(?<=\d[A-Z]):")  # mutations; A:A52G is a mutation of chain A, A52G:L60V are two
WILD_TYPE = {"wt", "wildtype", "wild-type", "wild type"}
MAX_SHIFT = 2000
SHOWN = 5  # misfits in an error
MAP_WIDTH = 45  # residues in a map, at most
LOG_ODDS = "log-odds.npz"  # kept in OUT
VERDICTS = {  # is the model better than chance at new positions?
    True: "better than chance: worth using at new positions",
    False: "not told apart from chance: do not use it at new positions",
    None: f"too few to say: it takes {mutation_model.FEWEST[0]} mutants at {mutation_model.FEWEST[1]} positions",
}


# ---- mutations as text -----------------------------------------------------------------------------------------------


class Places(NamedTuple):
    """The R residues of a structure that may be mutated."""

    rows: list[int]  # of the structure
    keys: list[tuple[str, int, str]]  # chain, number, insertion code
    wild: str

    @staticmethod
    def of(structure: Structure, chains: Sequence[str] | None) -> "Places":
        """The residues of these chains, by default of the first. Raises ConfigError."""
        if unknown := {*(chains or ())} - {*structure.chain_names}:
            raise ConfigError(f"there is no chain {', '.join(sorted(unknown))}, but {', '.join(structure.chain_names)}")
        keys, types = [(*key, code.strip()) for *key, code in structure.positions], structure.protein.residue_type
        rows = [i for chain in chains or structure.chain_names[:1] for i, key in enumerate(keys) if key[0] == chain]
        return Places(rows, [keys[i] for i in rows], "".join(ONE_LETTER[types[i]] for i in rows))

    def label(self, i: int, own: str = "", new: str = "") -> str:
        """A residue as text, such as 52 or A52G; with its chain if there are several."""
        chain, number, code = self.keys[i]
        several = self.keys[0][0] != self.keys[-1][0]
        return f"{chain}:" * several + f"{own}{number}{code}{new}"

    def name(self, mutant: Mutant) -> str:
        """A mutant as text, such as A52G/L60V."""
        changes = [divmod(mutation, len(ONE_LETTER)) for mutation in mutant]
        return "/".join(self.label(i, self.wild[i], ONE_LETTER[new]) for i, new in changes) or "WT"

    def read(self, texts: Iterable[str], shift: int = 0) -> list[Mutant]:
        """The mutants that texts stand for. Raises ConfigError, with all that do not fit in one sentence."""
        index, chains = {key: i for i, key in enumerate(self.keys)}, [key[0] for key in self.keys]
        mutants, wrong, listed = [], {}, {}
        for text in texts:
            mutant = {}  # residue -> new type
            for word in [] if text.strip().lower() in WILD_TYPE else BETWEEN.split(text.strip()):
                if not (match := MUTATION.fullmatch(word)):
                    wrong[word] = "is no mutation like A52G"
                    continue
                chain, own, number, code, new = match.groups(chains[0])
                key = chain, int(number) + shift, code
                listed[key], i = own, index.get(key)
                if chain not in chains:
                    wrong[word] = f"chain {chain} is not among those of --chain"
                elif i is None or self.wild[i] != own:
                    wrong[word] = "no such residue" if i is None else f"the structure has {self.wild[i]}"
                elif i in mutant:
                    wrong[word] = f"a second mutation there in {text}"
                mutant[i] = new
            if not wrong:
                changes = (20 * i + ONE_LETTER.index(new) for i, new in mutant.items() if new != self.wild[i])
                mutants.append(tuple(sorted(changes)))
        if wrong:
            some = ", ".join(f"{word} ({reason})" for word, reason in [*wrong.items()][:SHOWN])
            some += f" and {len(wrong) - SHOWN} more" * (len(wrong) > SHOWN)
            for more in sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)[1:] if len(listed) > 2 else ():
                found = [index.get((chain, number + more, code)) for chain, number, code in listed]
                if None not in found and [self.wild[i] for i in found] == [*listed.values()]:
                    some += f"; all fit if {more} is added to the numbers (--shift {more + shift})"
                    break
            raise ConfigError(f"{len(wrong)} mutations do not fit the structure: {some}")
        return mutants


# ---- the ranking -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ranking:
    """All single mutants of a structure, the best first, and how far to trust them."""

    places: Places
    effects: np.ndarray  # (R, 20) of every mutation on the value; without measurements, its score
    rows: list[dict]  # every single mutant that has not been measured
    next: list[dict]  # the rows to make next
    measured: dict[str, float]  # mean over repeats
    model: Effects | None  # None without measurements
    trust: Trust | None  # None if they are too few
    notes: list[str]
    sign: int  # -1 if lower is better

    def __repr__(self) -> str:
        return f"Ranking({len(self.rows)} mutants, {len(self.measured)} measured: {self.verdict})"

    @property
    def verdict(self) -> str:
        """Whether to believe the predictions, in a few words."""
        return VERDICTS[self.better] if self.measured else "nothing measured: ranked by log-odds and burial"

    @property
    def better(self) -> bool | None:
        """Whether the model is better than chance at new positions; None if too few were measured to say."""
        return self.trust and self.trust.rho[MODEL][1] > 0

    @property
    def sentences(self) -> list[str]:
        """The verdict, and what there is to say about the measurements and the model."""
        count = [f"{len(self.measured)} mutants measured"] if self.measured else []
        return [self.verdict, *count, *self.notes, *(self.trust.sentences if self.trust else [])]

    def predict(self, *mutants: str) -> list[tuple[float, float, float]]:
        """Value and 90 % interval of mutants such as A52G/L60V. Raises ConfigError."""
        if self.model is None:
            raise ConfigError("nothing was measured, so no value can be predicted")
        value, half = self.model.predict(self.places.read(mutants))
        return [(v, v - h, v + h) for v, h in zip((self.sign * value).tolist(), half.tolist())]


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
    places, values, notes = Places.of(structure, chain), defaultdict(list), []
    pairs = [*(measured.items() if isinstance(measured, Mapping) else measured)]
    for mutant, (_, value) in zip(places.read([text for text, _ in pairs], shift), pairs):
        if not np.isnan(value):
            values[mutant].append(value)
    if repeats := [x for x in values.values() if len(x) > 1]:
        scatter = np.sqrt(np.mean([np.var(x, ddof=1) for x in repeats]))
        notes.append(f"{len(repeats)} mutants were measured more than once, with a scatter of {scatter:.3g}")
    if shift:
        notes.append(f"results have the structure's numbers: {shift:+} to the table's")
    mean = {mutant: float(np.mean(x)) for mutant, x in values.items()}

    sites, model, belief, sign = known_sites(structure, places.rows, kept), None, None, 1
    score = effects = sites.ranking
    if len(mean) > 1:
        sign = -1 if lower_is_better else 1
        y = sign * np.array([*mean.values()])
        model = Effects(sites, [*mean], y)
        belief = mutation_model.trust(model, y)
        (wild_type,), _ = model.predict([()])
        value, half = model.predict([(x,) for x in range(len(score))])
        score, effects, value = value + explore * half, sign * (value - wild_type), sign * value
    rows, chosen, taken, odds = [], [], Counter(), sites.odds.mean(0).ravel()
    touched = sorted({i for mutant in mean for i in positions(mutant)})
    ca = structure.protein.alpha_carbons().pos[places.rows]
    for x in np.argsort(-score, kind="stable").tolist():
        (i, new), row = divmod(x, 20), {"mutation": places.name((x,))}
        if new == sites.wild[i] or (x,) in mean:
            continue
        if model:
            row |= {"predicted": float(value[x]), "low": float(value[x] - half[x]), "high": float(value[x] + half[x])}
        row |= {"ranking": float(sites.ranking[x]), "log_odds": float(odds[x])}
        row |= {"neighbours": int(sites.neighbours[i, 1])}
        if touched:
            distance, nearest = (ca[touched] - ca[i]).norm(dim=-1).min(dim=0)
            row |= {
                "nearest_measured": places.label(touched[nearest], places.wild[touched[nearest]]),
                "distance": float(distance),
            }
        rows.append(row)
        taken[i] += 1
        chosen += [row] if taken[i] <= per_position else []
    measured = {places.name(mutant): x for mutant, x in mean.items()}
    effects = np.where(np.eye(20)[sites.wild], 0, effects.reshape(-1, 20))
    return Ranking(places, effects, rows, chosen[:batch], measured, model, belief, notes, sign)


def known_sites(structure: Structure, rows: list[int], kept: Path | None = None) -> Sites:
    """The features and log-odds of residues, from the file `kept` if it is of the same structure and encoders."""
    p = structure.protein
    parts = [x.numpy().tobytes() for x in (p.pos, p.atom_name, p.residue_type, p.residue_index, torch.tensor(rows))]
    parts += [checksum(find_weights(name)).encode() for name in AROUND]
    key, known = hashlib.sha256(b"".join(parts)).hexdigest(), {}
    if kept and kept.exists():
        with np.load(kept, allow_pickle=False) as file:
            known = {name: file[name] for name in ("features", "odds") if str(file["key"]) == key}
    if not known:
        known["features"] = np.stack([load_encoder(name, "cpu").embed(structure).per_residue[rows] for name in AROUND])
        with progress(total=len(AROUND) * len(rows), unit="residue") as bar:
            known["odds"] = np.stack([mutation_model.log_odds(name, p, rows, bar.update) for name in AROUND])
        if kept:
            with replacing(kept) as file:
                np.savez(file, key=np.array(key), **known)
    ca = p.alpha_carbons().pos
    near = [(torch.cdist(ca[rows], ca) < radius).sum(1).double().numpy() for radius in (8, 12)]
    return Sites(p.residue_type[rows].numpy(), np.stack(near, axis=1), **known)


# ---- files -----------------------------------------------------------------------------------------------------------


def write_results(folder: Path, title: str, ranking: Ranking) -> None:
    """Write the tables, the page, and with measurements the model. Raises WriteError."""
    for name, rows in {"mutants.tsv": ranking.rows, "next.tsv": ranking.next}.items():
        write_rows(folder / name, cells(rows))
    if ranking.model:
        chains, numbers, codes = zip(*ranking.places.keys)
        arrays = {"effects": ranking.effects, "wild_type": ranking.predict("WT")[0][0], "types": [*ONE_LETTER]}
        arrays |= {"chain": chains, "number": [f"{number}{code}" for number, code in zip(numbers, codes)]}
        with replacing(folder / "model.npz") as file:
            np.savez(file, residue=[*ranking.places.wild], **arrays)
    write_file(folder / "report.html", page(title, ranking))


def cells(rows: Sequence[dict]) -> list[list[str]]:
    """Rows as text, the titles first."""
    lines = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    return [*map(list, rows[:1]), *lines]


def draw_map(axes, ranking: Ranking, columns: np.ndarray, darkest: float) -> None:
    """Effects of every type at some residues; dots: measured; crosses: the wild type."""
    places, wild = ranking.places, np.array([ONE_LETTER.index(letter) for letter in ranking.places.wild])
    better = ranking.sign * ranking.effects[columns].T
    axes.imshow(better, cmap="RdBu", vmin=-darkest, vmax=darkest, aspect="auto", zorder=2)
    axes.plot(range(len(columns)), wild[columns], "x", color="black", ms=3, zorder=3)
    measured = {x for mutant in (ranking.model.mutants if ranking.model else ()) for x in mutant}
    dots = np.array([divmod(x, 20) for x in measured if x // 20 in columns]).reshape(-1, 2)
    axes.plot(dots[:, 0] - columns[0], dots[:, 1], "o", color="black", mec="white", mew=0.5, ms=4, zorder=3)
    axes.set_yticks(range(20), ONE_LETTER, fontsize=7)
    axes.set_xticks(range(0, len(columns), 5), [places.label(i, places.wild[i]) for i in columns[::5]])
    axes.tick_params(axis="x", rotation=90, labelsize=8)


def draw_held_out(axes, ranking: Ranking) -> str:
    """Predictions at positions left out, against the measured values."""
    y = np.array([*ranking.measured.values()])
    dots = axes.scatter(y, ranking.sign * ranking.model.held_out, s=18, color=report.COLOURS[0], alpha=0.7, lw=0)
    dots.set_urls([*ranking.measured])  # names for the pointer
    axes.axline((y.mean(), y.mean()), slope=1, color=report.INK, lw=1, alpha=0.3)
    axes.set(xlabel="measured", ylabel="predicted, nothing measured at its position")
    return f"{ranking.trust.covered:.0%} of these values lie in their 90 % intervals" if ranking.trust else ""


def page(title: str, ranking: Ranking) -> bytes:
    """The verdict, the maps, the next batch, and what the model is compared with."""
    side = {None: "not", True: "better", False: "worse"}[ranking.better]
    body = f"<h1>{report.text(title)}</h1><p class='big {side}'>{report.text(ranking.verdict)}</p>"
    body += "".join(f"<p>{report.text(line)}</p>" for line in ranking.sentences[1:])
    darkest, cards = np.quantile(np.abs(ranking.effects), 0.98), []
    if ranking.model:
        cards.append(report.card(f"Held out, N = {len(ranking.measured)}", draw_held_out, ranking, height=4.4))
    for columns in np.array_split(np.arange(len(ranking.effects)), -(-len(ranking.effects) // MAP_WIDTH)):
        name = f"Effects, {ranking.places.label(columns[0])} to {ranking.places.label(columns[-1])}"
        cards.append(report.card(name, draw_map, ranking, columns, darkest, height=3.8))
    blue = f"better than the wild type, darkest by {darkest:.3g}" if ranking.model else "better than most"
    note = f"Blue: {blue}; red: worse; dots: measured; crosses: the wild type."
    body += f"<p class=note>{note}</p><div class=cards>{''.join(cards)}</div>"
    tables = report.as_html("The next batch", cells(ranking.next)) if ranking.next else ""
    if ranking.trust:
        rho, rmse = ranking.trust.rho, ranking.trust.rmse
        rows = [[name, between(rho[name], ".2f"), between(rmse[name], ".3g")] for name in rho]
        tables += report.as_html("Positions left out", [["", "rho (95 % interval)", "root mean squared error"], *rows])
    return report.as_page(title, f"{body}<div class=tables>{tables}</div>")


# ---- the command -----------------------------------------------------------------------------------------------------


def rank(args: Namespace) -> None:
    """Rank the mutants of a command line, for one property after the other."""
    options = {name: getattr(args, name) for name in ("chain", "per_position", "explore", "lower_is_better", "shift")}
    options |= {"batch": args.next, "kept": args.out / LOG_ODDS}
    texts, columns = [], {"": []}
    if args.measured:
        table = read_table(args.measured, "regression", args.name_column, args.value_column, args.missing)
        sys.stderr.writelines(f"note: {printable(note)}\n" for note in table.notes)
        columns = {name: [row.value[k] for row in table.rows] for k, name in enumerate(table.classes)}
        texts, columns = [row.name for row in table.rows], columns or {"": [row.value for row in table.rows]}
    structure = read_structure(args.structure)
    if args.chain is None and len(structure.chain_names) > 1:
        print(f"chain {structure.chain_names[0]} of {', '.join(structure.chain_names)}: --chain chooses others")
    for name, values in columns.items():
        ranking, folder = rank_mutants(structure, zip(texts, values), **options), args.out / name.replace("/", "_")
        write_results(folder, f"{name or 'mutants'} of {args.structure.name}", ranking)
        files = f"{folder / 'report.html'}, next.tsv ({len(ranking.next)} mutants), mutants.tsv ({len(ranking.rows)})"
        print(*map(printable, [*([name] if name else []), *ranking.sentences, files]), sep="\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
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
    rank(parser.parse_args(argv))
    return 0
