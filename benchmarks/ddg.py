"""Change of stability by a mutation: 2,224 -> S461, as studies/2026-11-benchmarks/plan.md says.

    python -m benchmarks.ddg DATA [FEATURES...] [--test] [--out runs/ddg]
    python -m benchmarks.ddg DATA --report FOLDER [--test]  # scores with intervals, and differences

DATA holds train.tsv and s461.tsv (structure, chain, wild, number, mutant, ddg in kcal/mol, 0 or more stabilises; and
what others predict) and the structures. FEATURES are `floor` (types, volumes, hydrophobicity and surroundings), an
ENCODER of `benchmarks.probe` beside the floor, or `odds:ENCODER`: log p(mutant) - log p(wild) alone, of the sequence
head in the file, with the residue masked. The regression is the one of MODELS with the best Pearson correlation on ten
held-out folds of families. Without --test these are scored, and s461.tsv is not opened. OUT/NAME.npz keeps the answers
in the order of the table.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from benchmarks.alike import families
from benchmarks.kept import kept, rows_of
from benchmarks.ppis import interval
from benchmarks.probe import Item, load, save, short, sides
from siamdiff_min.encoders import weights
from siamdiff_min.encoders.ops import MLP
from siamdiff_min.files import ConfigError, StructureError, console
from siamdiff_min.pretraining.diffusion import hide_residues
from siamdiff_min.protein.constants import NUM_RESIDUE_TYPES, ONE_LETTER
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import find_structures
from siamdiff_min.tools.mutants.mutation_model import HYDROPATHY, VOLUME

FLOOR, FOLDS, DRAWS, PENALTIES = "counts+neighbours", 10, 2000, (30, 300, 3000)
MODELS = {f"ridge {a}": lambda a=a: Ridge(alpha=a) for a in PENALTIES}
MODELS |= {f"svr {c}": lambda c=c: SVR(C=c, epsilon=0.2) for c in (0.5, 1, 2, 4)}
MODELS |= {
    f"trees {n}": lambda n=n: HistGradientBoostingRegressor(
        learning_rate=0.05, max_iter=n, max_leaf_nodes=12, l2_regularization=10, max_features=0.3, random_state=0
    )
    for n in (100, 300)
}
COMPONENTS = (8, 32)  # main directions of an encoder's features that the regression sees
PUBLISHED = ("FoldX", "EvoEF", "DynaMut2", "ThermoNet", "KORPM", "CartesianDDG", "ACDCNN", "PoPMuSiC", "DDGun3D")


@dataclass(frozen=True)
class Mutation:
    """One row of the table."""

    structure: str
    family: str
    protein: Protein  # the mutated chain
    residue: int  # row of the protein
    wild: int  # types
    mutant: int
    row: dict[str, str]

    @property
    def ddg(self) -> float:
        return float(self.row["ddg"])


def read_mutations(data: Path, table: str, required: bool = True) -> list[Mutation]:
    """The rows of a table, with families of the chains that are mutated.

    A refused structure is an error. If not `required`, its rows are left out instead, and a line says so.
    """
    rows, chains, place = rows_of(data / table), {}, {}
    sources = {source.name: source for source in find_structures(data).sources}
    for name, chain in sorted({(row["structure"], row["chain"]) for row in rows}):
        try:
            structure = sources[name].read()
        except StructureError as error:
            if required:
                raise
            print(f"left out: {error}")
            continue
        (side,) = sides(structure, chain)
        chains[name + chain] = side.protein
        place |= {(name, chain, f"{n}{code}".strip()): i for i, (_, n, code) in enumerate(side.positions)}
    family, found = families(chains), []
    for row in [row for row in rows if row["structure"] + row["chain"] in chains]:
        name, residue = row["structure"] + row["chain"], place[row["structure"], row["chain"], row["number"]]
        wild, mutant = (ONE_LETTER.index(row[key]) for key in ("wild", "mutant"))
        if int(chains[name].residue_type[residue]) != wild:
            raise ConfigError(f"{data / table}: {row} is not what the structure has")
        found.append(Mutation(row["structure"], family[name], chains[name], residue, wild, mutant, row))
    return found


# ---- features --------------------------------------------------------------------------------------------------------


def of_types(m: Mutation) -> list[float]:
    """Both types, what changes of volume and hydropathy, and by how much (45,)."""
    both = np.eye(NUM_RESIDUE_TYPES)[[m.wild, m.mutant]].ravel()
    a, b = m.wild, m.mutant
    volume, water = (VOLUME[b] - VOLUME[a]) / 50, (HYDROPATHY[b] - HYDROPATHY[a]) / 3
    return [*both, volume, abs(volume), water, abs(water), HYDROPATHY[a] / 3]


def at_residues(function, mutations: list[Mutation]) -> np.ndarray:
    """`function(protein)` (R, d) at every mutated residue (K, d), once for every protein."""
    known = {}
    for m in mutations:
        if id(m.protein) not in known:
            known[id(m.protein)] = function(m.protein).double().numpy()
    return np.stack([known[id(m.protein)][m.residue] for m in mutations])


def surroundings(mutations: list[Mutation]) -> np.ndarray:
    """The floor (K, d): types, counts and types around the residue, and products of burial with what changes."""
    types = np.array([of_types(m) for m in mutations])
    around = at_residues(load(FLOOR, []), mutations)
    buried = at_residues(load("geometry", []), mutations)[:, -2:] / 20  # CA within 10, atoms within 4.5
    products = [types[:, [k]] * buried for k in (40, 41, 42, 43, 44)]
    return np.concatenate([types, buried, *products, around], axis=1)


def log_odds(name: str, mutations: list[Mutation]) -> np.ndarray:
    """log p(mutant) - log p(wild), log p(mutant), log p(wild) (K, 3) of the sequence head, the residue masked."""
    content = weights.load_encoder_file(Path(name))
    state = content["seq_mlp"]
    shapes = [tensor.shape for key, tensor in state.items() if key.endswith("weight")]
    head = MLP(shapes[0][1], *(shape[0] for shape in shapes))
    head.load_state_dict(state)
    features, known, found = load(name, []), {}, []
    for m in mutations:
        if (id(m.protein), m.residue) not in known:
            hidden = features(hide_residues(m.protein, torch.tensor([m.residue]), backbone=4))
            known[id(m.protein), m.residue] = head(hidden[m.residue]).log_softmax(-1)
        mutant, wild = (float(known[id(m.protein), m.residue][kind]) for kind in (m.mutant, m.wild))
        found.append([mutant - wild, mutant, wild])
    return np.array(found)


@torch.inference_mode()
def blocks(name: str, mutations: list[Mutation]) -> list[np.ndarray]:
    """The features of one row: of the floor, with the log-odds where there are some, and of the encoder."""
    first = surroundings(mutations)
    if name == "floor":
        return [first]
    once = {id(m.protein): m for m in mutations}.values()
    items = [Item(m.structure, "train", m.family, "", m.protein) for m in once]
    if not name.startswith("random-") and "seq_mlp" in weights.load_encoder_file(Path(name)):
        first = np.concatenate([first, log_odds(name, mutations)], axis=1)
    return [first, at_residues(load(name, items), mutations)]


# ---- regression ------------------------------------------------------------------------------------------------------


def fitted(parts: list[np.ndarray], y: np.ndarray, model: str, components: int):
    """A regression on standardised features, those of an encoder by their main directions: parts -> answers."""
    scales = [StandardScaler().fit(part) for part in parts]
    z = [scale.transform(part) for scale, part in zip(scales, parts)]
    turn = [PCA(components, random_state=0).fit(part) for part in z[1:]]

    def seen(parts: list[np.ndarray]) -> np.ndarray:
        z = [scale.transform(part) for scale, part in zip(scales, parts)]
        turned = [pca.transform(part) / pca.singular_values_[0] * len(y) ** 0.5 for pca, part in zip(turn, z[1:])]
        return np.concatenate([z[0], *turned], axis=1)

    regression = MODELS[model]().fit(seen(parts), y)
    return lambda new: regression.predict(seen(new))


def answers(name: str, train: list[Mutation], test: list[Mutation]) -> tuple[np.ndarray, str]:
    """The answers for the test rows if there are some, else for held-out folds of training; and what was chosen."""
    if name.startswith("odds:"):
        with torch.inference_mode():
            return log_odds(name.removeprefix("odds:"), test or train)[:, 0], "nothing fitted"
    parts = blocks(name, train + test)
    known, new = ([part[side] for part in parts] for side in (slice(len(train)), slice(len(train), None)))
    y, folds = np.array([m.ddg for m in train]), GroupKFold(FOLDS)
    held = {}
    for model in MODELS:
        for components in COMPONENTS if len(parts) > 1 else (0,):
            held[model, components] = np.zeros(len(y))
            for fit, rest in folds.split(y, groups=[m.family for m in train]):
                answer = fitted([part[fit] for part in known], y[fit], model, components)
                held[model, components][rest] = answer([part[rest] for part in known])
    best = max(held, key=lambda key: pearsonr(held[key], y).statistic)
    chosen = f"{best[0]}, {best[1]} directions" if len(parts) > 1 else best[0]
    return (fitted(known, y, *best)(new) if test else held[best]), chosen


def report(folder: Path, mutations: list[Mutation], published: tuple[str, ...]) -> list[str]:
    """Correlations with 95 % intervals over structures, and differences of Pearson's to what others predict."""
    names, place = np.unique([m.structure for m in mutations], return_inverse=True)
    y = np.array([m.ddg for m in mutations])
    rows = {name: row["answer"] for name, row in kept(folder)}
    rows |= {name: np.array([float(m.row[name]) for m in mutations]) for name in published}
    of = [np.flatnonzero(place == k) for k in range(len(names))]
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    drawn = [np.arange(len(y)), *(np.concatenate([of[k] for k in draw]) for draw in drawn)]
    found = {name: [pearsonr(x[draw], y[draw]).statistic for draw in drawn] for name, x in rows.items()}
    lines = ["| | Pearson | Spearman |", "|---|---|---|"]
    for name, values in found.items():
        ranks = [spearmanr(rows[name][draw], y[draw]).statistic for draw in drawn]
        lines.append(f"| {name} | {values[0]:.3f} {interval(values[1:])} | {ranks[0]:.3f} {interval(ranks[1:])} |")
    lines += ["", "| Pearson | difference |", "|---|---|"]
    own = [name for name in found if name not in published]
    for one in own:
        for two in [name for name in [*own, *published] if name != one]:
            gaps = np.subtract(found[one], found[two])
            lines.append(f"| {one} minus {two} | {gaps[0]:+.3f} {interval(gaps[1:])} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ddg", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("features", nargs="*")
    parser.add_argument("--test", action="store_true", help="score S461: once")
    parser.add_argument("--out", type=Path, default=Path("runs/ddg"))
    parser.add_argument("--report", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    train = read_mutations(args.data, "train.tsv", required=False)
    test = read_mutations(args.data, "s461.tsv") if args.test else []
    for name in args.features:
        answer, chosen = answers(name, train, test)
        y = np.array([m.ddg for m in test or train])
        label = f"odds-{short(name.removeprefix('odds:'))}" if name.startswith("odds:") else short(name)
        save(args.out / f"{label}.npz", answer=answer.astype(np.float32), chosen=np.array(chosen))
        shown = f"Pearson {pearsonr(answer, y).statistic:.3f}  Spearman {spearmanr(answer, y).statistic:.3f}"
        print(f"{label:32}  {shown}  ({chosen})", flush=True)
    if args.report:
        print(*report(args.report, test or train, PUBLISHED if test else ()), sep="\n")


if __name__ == "__main__":
    with console():
        main()
