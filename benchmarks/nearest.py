"""How far E-values can be believed, and what else finds relatives; and the families file of the scales that we ship.

    python -m benchmarks.nearest families TRAIN.npz FAMILIES.tsv --structures FOLDER --out families.tsv
    siamdiff nearest --fit families.tsv --among TRAIN.npz --out siamdiff_min/weights/NAME.scale.npz
    python -m benchmarks.nearest held-out TEST.npz FAMILIES.tsv [--scale FILE] [--structures FOLDER]
    python -m benchmarks.nearest crossed TRAIN.npz FAMILIES.tsv
    python -m benchmarks.nearest speed

An .npz is one of `siamdiff embed`; FAMILIES.tsv has columns name, family, cluster (a closer kind of family) and folds.
`families` gives a fold of their own to similar pairs with a mean TM-score above .5 (tmtools), which labels miss.
`held-out` counts hits between chains without family or fold in common, per query, over what E promises. With structures
(PDB files, NAME.pdb) it compares other scores, all at the level that one stranger in 500 reaches: alignment (Biopython,
BLOSUM62) of residues and of 3Di states (mini3di; their matrix is fitted on these very relatives, which favours them),
cosines of composition and of pairs of states. `crossed` counts false hits of each quarter of the families by a scale of
the other three: the encoder knows them, the scale does not.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siamdiff_min import read_structure
from siamdiff_min.files import console, read_rows, write_rows
from siamdiff_min.names import BUNDLED
from siamdiff_min.protein.constants import ONE_LETTER
from siamdiff_min.tools.nearest import command
from siamdiff_min.tools.nearest.scale import Scale, fit_scale, read_scale

SETS, LEVELS = (100, 500, 2000), (0.1, 1, 10)
QUARTERS = 4  # of the families, in `crossed`
LENGTHS = (40, 60, 100, 200, 400, 801)  # residues
ALIKE = 300  # most similar pairs whose TM-score is measured
STATES = "ACDEFGHIKLMNPQRSTVWY"  # of 3Di, by the letters of Foldseek


def read_table(path: Path, names: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[set[str]]]:
    """The family, the cluster and the folds of each name."""
    titles, *lines = read_rows(path).values()
    rows = {line[0]: dict(zip(titles, line)) for line in lines}
    rows = [rows[name] for name in names]
    folds = [{*row.get("folds", "").split(",")} - {""} for row in rows]
    family = np.array([row["family"] for row in rows])
    return family, np.array([row.get("cluster", row["family"]) for row in rows]), folds


def share_a_fold(folds: list[set[str]]) -> np.ndarray:
    """Which chains have a fold in common: (K, K)."""
    return np.array([[not one.isdisjoint(two) for two in folds] for one in folds])


def write_families(args: argparse.Namespace) -> None:
    """Copy the table, with a fold of their own for the most similar pairs that are alike."""
    from tmtools import tm_align

    arrays = command.vectors_of([str(args.vectors)], "")
    names = arrays["id"]
    family, _, folds = read_table(args.table, names)
    _, first = np.unique(family, return_index=True)
    scale = fit_scale(arrays["mean"][first], arrays["residues"][first], family[first], [folds[k] for k in first])
    z = scale.whiten(arrays["mean"][first])
    likeness = scale.standardise(z @ z.T, arrays["residues"][first], arrays["residues"][first])
    likeness[share_a_fold([folds[k] for k in first])] = -np.inf
    one, two = np.unravel_index(np.argsort(-np.triu(likeness, 1), axis=None)[:ALIKE], likeness.shape)
    for number, (a, b) in enumerate(zip(first[one], first[two])):
        chains = [read_structure(args.structures / f"{names[k]}.pdb").protein for k in (a, b)]
        places = [chain.alpha_carbons().pos.double().numpy() for chain in chains]
        found = tm_align(*places, *(sequence_of(chain) for chain in chains))
        if found.tm_norm_chain1 + found.tm_norm_chain2 > 1:
            folds[a].add(f"tm{number}")
            folds[b].add(f"tm{number}")
    rows = [[name, of, ",".join(sorted(labels))] for name, of, labels in zip(names, family, folds)]
    write_rows(args.out, [["name", "family", "folds"], *rows])


def sequence_of(chain) -> str:
    """One letter for each residue."""
    return "".join(ONE_LETTER[kind] for kind in chain.residue_type.tolist())


def false_hits(
    chance: np.ndarray, unrelated: np.ndarray, weight: np.ndarray
) -> Iterator[tuple[int, float, np.ndarray]]:
    """(size of a set, E, hits of each query over E): unrelated ones, families weighted alike."""
    for size in SETS:
        for e in LEVELS:
            hit = (chance <= e / size) & unrelated
            yield size, e, size / e * (hit * weight).sum(1) / (unrelated * weight).sum(1)


class HeldOut(NamedTuple):
    """K chains of families that neither encoder nor scale has seen, and how alike they are."""

    names: np.ndarray
    mean: np.ndarray  # (K, d)
    residues: np.ndarray
    family: np.ndarray
    cluster: np.ndarray
    folds: list[set[str]]
    scale: Scale
    likeness: np.ndarray  # (K, K) standardised whitened cosines

    @property
    def unrelated(self) -> np.ndarray:
        """Which pairs have neither family nor fold in common: (K, K)."""
        return ~((self.family[:, None] == self.family) | share_a_fold(self.folds))


def read_held_out(vectors: Path, table: Path, scale: Path | None = None, every: int = 1) -> HeldOut:
    """The chains of an .npz, one family in `every`. Without `scale` the package has one for their encoder."""
    arrays = command.single_chains(command.vectors_of([str(vectors)], ""), "set")
    family, _, _ = read_table(table, arrays["id"])
    chosen = np.isin(family, np.unique(family)[::every])
    names, mean, residues = (arrays[name][chosen] for name in ("id", "mean", "residues"))
    found = read_scale(scale or BUNDLED / f"{arrays['encoder'][0]}.scale.npz")
    z = found.whiten(mean)
    likeness = found.standardise(z @ z.T, residues, residues)
    return HeldOut(names, mean, residues, *read_table(table, names), found, likeness)


def crossed(vectors: Path, table: Path) -> list[HeldOut]:
    """Quarters of the families, each with a scale of one chain for each of the other families."""
    arrays = command.single_chains(command.vectors_of([str(vectors)], ""), "set")
    names, mean, residues = (arrays[name] for name in ("id", "mean", "residues"))
    family, cluster, folds = read_table(table, names)
    _, first, number = np.unique(family, return_index=True, return_inverse=True)
    quarters = []
    for k in range(QUARTERS):
        others = first[number[first] % QUARTERS != k]
        scale = fit_scale(mean[others], residues[others], family[others], [folds[i] for i in others])
        own = np.flatnonzero(number % QUARTERS == k)
        z = scale.whiten(mean[own])
        likeness = scale.standardise(z @ z.T, residues[own], residues[own])
        labels = family[own], cluster[own], [folds[i] for i in own]
        quarters.append(HeldOut(names[own], mean[own], residues[own], *labels, scale, likeness))
    return quarters


def table_of_e(*sets: HeldOut) -> Iterator[str]:
    """Lines: false hits over what E promises, by the size of the set and E, and at E <= 1 by length."""
    weight = [np.array([1 / (chains.family == name).sum() for name in chains.family]) for chains in sets]
    residues, weights = (np.concatenate(x) for x in ([chains.residues for chains in sets], weight))
    families = {*np.concatenate([chains.family for chains in sets])}
    count = f"{len(residues)} chains of {len(families)} families"
    yield f"{count}; false hits over E, at E <= {LEVELS}; by length at E <= 1"
    found = []
    for chains, own in zip(sets, weight):
        found.append(false_hits(chains.scale.probability(chains.likeness), chains.unrelated, own))
    for of_sets in zip(*found):
        size, e, _ = of_sets[0]
        hits = np.concatenate([of_set for _, _, of_set in of_sets])
        by_length = []
        for low, high in itertools.pairwise(LENGTHS):
            own = (residues >= low) & (residues < high)
            if own.any():
                by_length.append(f"{low}-{high - 1}: {np.average(hits[own], weights=weights[own]):.2f} ({own.sum()})")
        yield f"{size} {e} {np.average(hits, weights=weights):.2f} {'; '.join(by_length) if e == 1 else ''}"


def held_out(args: argparse.Namespace) -> None:
    """Print false hits over what E promises, then how many relatives each score finds."""
    chains = read_held_out(args.vectors, args.table, args.scale, args.every)
    for line in table_of_e(chains):
        print(line)
    names, mean, residues, family, cluster, folds, scale, likeness = chains
    unrelated = chains.unrelated
    same = family[:, None] == family
    # sets of one sort
    sorts = {"below 100 residues": residues < 100}
    if args.structures:
        sorts["over 65 % helix"] = np.array([helical(args.structures / f"{name}.pdb") for name in names]) > 0.65
    for sort, own in sorts.items():
        inner = np.ix_(own, own)
        lowered, told = command.against_usual(scale, likeness[inner])
        hit = scale.probability(lowered) <= 1 / own.sum()
        hits = (hit & unrelated[inner]).sum(1).mean() * own.sum() / unrelated[inner].sum(1).mean()
        share = f"{hits:.2f} false hits at E <= 1; {told.mean():.0%} of the queries are told so"
        print(f"set of {own.sum()} chains {sort}: {share}")

    # what each score finds at the level that one stranger in 500 reaches
    same &= ~np.eye(len(same), dtype=bool)
    kinds = {
        "relatives": same,
        "remote": same & (cluster[:, None] != cluster),
        "other family, same fold": share_a_fold(folds) & (family[:, None] != family),
    }
    counts = ", ".join(f"{kind} {pairs.sum() // 2}" for kind, pairs in kinds.items())
    print(
        f"pairs: {counts}; score: queries with a relative that find one, its nearest is a relative, shares of the pairs"
    )
    say("whitened, E <= 1 of 500", -scale.probability(likeness), -1 / 500, kinds)
    x = mean.astype(float)
    scores = {"whitened": likeness, "standardised cosine": cosine((x - x.mean(0)) / x.std(0)), "cosine": cosine(x)}
    if args.structures:
        scores |= other_scores([args.structures / f"{name}.pdb" for name in names])
    for name, score in scores.items():
        say(name, score, np.quantile(score[unrelated], 1 - 1 / 500), kinds)


def helical(file: Path) -> float:
    """The share of residues that begin a turn of a helix, by the distance to the third next CA."""
    pos = read_structure(file).protein.alpha_carbons().pos
    return float(((pos[3:] - pos[:-3]).norm(dim=1) < 6).float().mean())


def say(name: str, score: np.ndarray, level: float, kinds: dict[str, np.ndarray]) -> None:
    """Print the line of one score (K, K)."""
    related = kinds["relatives"]
    asked = related.any(1)
    best = np.where(np.eye(len(score), dtype=bool), -np.inf, score).argmax(1)
    found = ((score >= level) & related).any(1)[asked].mean()
    nearest = related[np.arange(len(best)), best][asked].mean()
    shares = [(score >= level)[pairs].mean() for pairs in kinds.values()]
    print(f"{name}: {found:.3f}, {nearest:.3f}, " + ", ".join(f"{share:.2f}" for share in shares), flush=True)


def cosine(x: np.ndarray) -> np.ndarray:
    """Of all rows of x (K, d) to each other."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def other_scores(files: list[Path]) -> dict[str, np.ndarray]:
    """(K, K) of what needs no encoder, standardised as vectors are where they are vectors."""
    from Bio.Align import PairwiseAligner, substitution_matrices
    from Bio.PDB import PDBParser
    from mini3di import Encoder

    chains = [next(PDBParser(QUIET=True).get_structure("", file).get_chains()) for file in files]
    sequences = [sequence_of(read_structure(file).protein) for file in files]
    states = [np.asarray(Encoder().encode_chain(chain)) for chain in chains]
    pairs = np.stack([shares(of_chain) for of_chain in states])
    letters = np.array([[sequence.count(letter) for letter in STATES] for sequence in sequences])
    composition = letters / letters.sum(1, keepdims=True)

    aligner = PairwiseAligner(mode="local", open_gap_score=-11, extend_gap_score=-1)
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    found = {"alignment": aligned(aligner, sequences)}
    odds = log_odds(aligner, sequences, states, found["alignment"])
    aligner.substitution_matrix = substitution_matrices.Array(STATES, 2, odds)
    found["alignment of 3Di states"] = aligned(aligner, ["".join(STATES[k] for k in row) for row in states])
    for name, x in {"pairs of 3Di states": pairs, "composition": composition}.items():
        found[name] = cosine((x - x.mean(0)) / (x.std(0) + 1e-9))
    return found


def shares(states: np.ndarray) -> np.ndarray:
    """Of each pair of states along a chain: (400,)."""
    pairs = states[:-1].astype(int) * len(STATES) + states[1:]
    return np.bincount(pairs, minlength=len(STATES) ** 2) / len(pairs)


def aligned(aligner, sequences: list[str]) -> np.ndarray:
    """The score of the best local alignment of all pairs, less what their lengths give by chance: (K, K)."""
    score = np.zeros((len(sequences), len(sequences)))
    for k, sequence in enumerate(sequences):
        for other in range(k):
            score[k, other] = aligner.score(sequence, sequences[other])
    score += score.T
    length = np.log([len(sequence) for sequence in sequences])
    size = length[:, None] + length
    slope, at_one = np.polyfit(size.ravel(), score.ravel(), 1)
    return score - slope * size - at_one


def log_odds(aligner, sequences: list[str], states: list[np.ndarray], score: np.ndarray) -> np.ndarray:
    """Half bits for each pair of states at aligned residues of 300 of the 3,000 most similar pairs: (20, 20)."""
    count = np.ones((len(STATES), len(STATES)))
    order = np.argsort(-np.triu(score, 1), axis=None)
    for pair in order[:3000:10]:
        one, two = np.unravel_index(pair, score.shape)
        for (a, b), (c, d) in zip(*aligner.align(sequences[one], sequences[two])[0].aligned):
            np.add.at(count, (states[one][a:b], states[two][c:d]), 1)
    count += count.T
    share = count.sum(1) / count.sum()
    return 2 * np.log2(count / count.sum() / (share[:, None] * share))


def speed() -> None:
    """Print the CPU seconds of 1,000 queries among 100,000 vectors, once all are read."""
    draw = np.random.default_rng(0)
    sets = []
    for count in (1000, 100_000):
        mean = draw.normal(size=(count, 768)).astype(np.float32)
        sets.append({"id": np.arange(count).astype(str), "mean": mean, "residues": draw.integers(40, 800, count)})
    start = time.process_time()
    hits = list(command.nearest(read_scale(BUNDLED / "siamdiff-residue.scale.npz"), *sets, 10))
    print(f"{len(hits)} queries among {len(sets[1]['id']):,} vectors: {time.process_time() - start:.1f} CPU s")


def main(argv: list[str] | None = None) -> None:
    """Do what the first word of a command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nearest", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("families", "held-out", "crossed", "speed"))
    parser.add_argument("vectors", type=Path, nargs="?")
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--scale", type=Path)
    parser.add_argument("--structures", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take one family of so many (default: 1)")
    parser.add_argument("--out", type=Path, default="families.tsv")
    args = parser.parse_args(argv)
    if args.what == "speed":
        speed()
    elif args.what == "crossed":
        print(*table_of_e(*crossed(args.vectors, args.table)), sep="\n")
    else:
        (write_families if args.what == "families" else held_out)(args)


if __name__ == "__main__":
    with console():
        main()
