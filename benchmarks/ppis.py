"""Which residues of a protein bind another protein: Train_335 -> Test_60, as studies/2026-11-benchmarks/plan.md says.

    python -m benchmarks.ppis DATA [FEATURES...] [--predicted NAME-SEED=predicted.tsv ...] [--test] [--out runs/ppis]
    python -m benchmarks.ppis DATA --table ppis.tsv  # for finetune.py --task table --level residue --metric auprc
    python -m benchmarks.ppis DATA --report FOLDER [--test] [--without NAME...]  # intervals and differences

DATA holds labels.tsv (name, chain, number, value, split) and the structures that it names. FEATURES are `floor`, or
those of `benchmarks.probe`, fitted by logistic regression; NAME-SEED in a file name is one of several seeds.
--predicted takes what `finetune.py --eval-only best.pt --predict DATA` wrote; of several files, joined by commas, the
mean. Without --test no row of the test split is read: linear maps are scored on five folds of families, fine-tuned ones
on the validation chains. OUT/NAME.npz keeps the answer for every residue that has a label, and no label.
"""

import argparse
import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from benchmarks.alike import families
from benchmarks.kept import kept, rows_of
from benchmarks.probe import Item, load, save, short
from siamdiff_min.files import console
from siamdiff_min.reading.sources import find_structures

FLOOR = "onehot+geometry+counts+neighbours"
PENALTIES = (1e-4, 1e-3, 1e-2)  # C of scikit-learn
FOLDS, DRAWS = 5, 2000
SPLIT = {"train": "train", "valid": "val", "test": "test"}


class Chain(NamedTuple):
    """A chain with labels."""

    item: Item  # its family is that among the training and validation chains
    label: np.ndarray  # (R,)   0, 1, or nan where the table has none
    places: list[tuple[str, str]]  # chain and number of every residue


def read_chains(data: Path, test: bool) -> list[Chain]:
    """All chains, by name. A family with chains on both sides is for training. Test rows are passed over unless they
    are asked for."""
    labels, split = defaultdict(dict), {}
    for row in rows_of(data / "labels.tsv"):
        if test or row["split"] != "test":
            labels[row["name"]][row["chain"], row["number"]] = float(row["value"])
            split[row["name"]] = SPLIT[row["split"]]
    sources = {source.name: source for source in find_structures(data).sources}
    structures = {name: sources[name].read() for name in sorted(labels)}
    family = families({name: structure.protein for name, structure in structures.items() if split[name] != "test"})
    both = {family[name] for name in family if split[name] == "train"}
    found = []
    for name, structure in structures.items():
        side = "train" if family.get(name) in both else split[name]
        places = [(chain, f"{number}{code}".strip()) for chain, number, code in structure.positions]
        y = np.array([labels[name].get(place, np.nan) for place in places])
        found.append(Chain(Item(name, side, family.get(name, name), "", structure.protein), y, places))
    return found


# ---- linear maps -----------------------------------------------------------------------------------------------------


def fitted(x: np.ndarray, y: np.ndarray, penalty: float):
    """Logistic regression of standardised features: a function (K, d) -> log-odds (K,)."""
    scale = StandardScaler().fit(x)
    model = LogisticRegression(C=penalty, solver="newton-cholesky", max_iter=50).fit(scale.transform(x), y)
    return lambda new: model.decision_function(scale.transform(new))


@torch.inference_mode()
def linear(name: str, chains: list[Chain]) -> dict[str, np.ndarray]:
    """The answers of one kind of features, for the test chains if there are some, else for held-out folds."""
    features = load(name, [chain.item for chain in chains])
    x = np.concatenate([features(item.protein).double().numpy() for item, *_ in chains])
    y = np.concatenate([label for _, label, _ in chains])
    chain = np.repeat(np.arange(len(chains)), [len(label) for _, label, _ in chains])
    family = np.array([chains[k].item.family for k in chain])
    test = np.array([chains[k].item.split == "test" for k in chain])
    known = ~np.isnan(y)
    (ours,), held = (known & ~test).nonzero(), {penalty: np.zeros(len(y)) for penalty in PENALTIES}
    for fit, rest in GroupKFold(FOLDS).split(ours, groups=family[ours]):
        for penalty, answer in held.items():
            answer[ours[rest]] = fitted(x[ours[fit]], y[ours[fit]], penalty)(x[ours[rest]])
    best = max(held, key=lambda penalty: average_precision_score(y[ours], held[penalty][ours]))
    about = {"threshold": best_threshold(held[best][ours], y[ours]), "penalty": best}
    if not test.any():
        return record(chains, chain[ours], held[best][ours], **about)
    (chosen,) = (known & test).nonzero()
    return record(chains, chain[chosen], fitted(x[ours], y[ours], best)(x[chosen]), **about)


# ---- models of finetune.py -------------------------------------------------------------------------------------------


def write_table(path: Path, chains: list[Chain]) -> None:
    """The labels without the test split. finetune.py wants one: its place takes the first validation chain."""
    held = [item.name for item, *_ in chains if item.split == "val"]
    lines = ["name\tchain\tnumber\tvalue\tsplit"]
    for item, label, places in chains:
        split = "test" if item.name == held[0] else {"val": "valid"}.get(item.split, item.split)
        for place, y in zip(places, label):
            if y >= 0:
                lines.append("\t".join([item.name, *place, f"{y:.0f}", split]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def predicted(paths: list[str], chains: list[Chain]) -> dict[str, np.ndarray]:
    """The mean probabilities of models, for the test chains if there are some, else for the validation chains."""
    of_chain = defaultdict(float)
    for path in paths:
        rows = defaultdict(list)
        for row in rows_of(Path(path)):
            rows[row["group"]].append(float(row["prediction"]))
        for name, answer in rows.items():
            of_chain[name] += np.array(answer) / len(paths)
    parts = {split: [] for split in SPLIT.values()}
    for k, (item, label, _) in enumerate(chains):
        if item.split == "train":
            continue
        known = ~np.isnan(label)
        parts[item.split].append((np.full(known.sum(), k), of_chain[item.name][known], label[known]))
    _, answer, y = (np.concatenate(values) for values in zip(*parts["val"]))
    chain, chosen, _ = (np.concatenate(values) for values in zip(*(parts["test"] or parts["val"])))
    return record(chains, chain, chosen, threshold=best_threshold(answer, y))


# ---- scores ----------------------------------------------------------------------------------------------------------


def best_threshold(answer: np.ndarray, y: np.ndarray) -> float:
    """The answer from which on calling a residue 1 gives the largest MCC. Equal answers are called together."""
    order = np.argsort(-answer, kind="stable")
    last = np.flatnonzero(np.diff(answer[order], append=-np.inf))  # of all with the same answer
    called, hits = np.arange(1, len(y) + 1), y[order].cumsum()
    return float(answer[order][last][np.argmax(mcc(hits, called, y.sum(), len(y))[last])])


def mcc(hits, called, positive, total):
    """Matthews' correlation of `called` answers of which `hits` are among the `positive` of `total`; 0 for 0 / 0."""
    square = called * (total - called) * positive * (total - positive) * 1.0
    return (hits * total - called * positive) / np.sqrt(np.maximum(square, 1))


def record(chains: list[Chain], chain: np.ndarray, answer: np.ndarray, **about) -> dict[str, np.ndarray]:
    """What is kept of a row: its chains, and the answer for every residue with a label, chain by chain."""
    names = [chains[k].item.name for k in sorted(set(chain.tolist()))]
    # Half the digits take half the room. Through ties AUPRC and AUROC change by up to 0.0001, MCC by 0.0004.
    return {"names": np.array(names), "answer": answer.astype(np.float16)} | {k: np.array(v) for k, v in about.items()}


def with_labels(row, chains: list[Chain]) -> dict[str, np.ndarray]:
    """A row of `record` with the chain (a row of `names`) and the label of every answer."""
    label = {item.name: y[~np.isnan(y)] for item, y, _ in chains}
    lengths = [len(label[name]) for name in row["names"]]
    y = np.concatenate([label[name] for name in row["names"]])
    return {**row, "chain": np.repeat(np.arange(len(lengths)), lengths), "y": y > 0}


def scores(run, weight: np.ndarray | None = None) -> dict[str, float]:
    """AUPRC, AUROC and MCC over all residues; `weight` (chains,) is how often every chain counts."""
    y, answer = run["y"], run["answer"]
    w = np.ones(len(y)) if weight is None else weight[run["chain"]].astype(float)
    called = answer >= run["threshold"]
    return {
        "AUPRC": average_precision_score(y, answer, sample_weight=w),
        "AUROC": roc_auc_score(y, answer, sample_weight=w),
        "MCC": mcc((w * called * y).sum(), (w * called).sum(), (w * y).sum(), w.sum()),
    }


def without(run: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """A row of `with_labels` without some chains."""
    keep = ~np.isin(run["names"], names)
    of = keep[run["chain"]]
    names = {"names": run["names"][keep], "chain": (keep.cumsum() - 1)[run["chain"]][of]}
    return run | names | {name: run[name][of] for name in ("answer", "y")}


def report(folder: Path, chains: list[Chain], left_out: list[str]) -> list[str]:
    """Scores with 95 % intervals over chains, mean over seeds, and the differences of all rows with the same chains.

    A second interval of each difference draws the seeds of both rows too. `left_out` are chains that do not count.
    """
    rows = defaultdict(list)
    for name, row in kept(folder):
        rows[re.sub(r"-\d+$", "", name)].append(without(with_labels(row, chains), left_out))
    found, seeds = {}, np.random.default_rng(1)
    for name, runs in rows.items():
        number = len(runs[0]["names"])
        drawn = np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), DRAWS)
        found[name] = np.array([[[*scores(run, weight).values()] for run in runs] for weight in (None, *drawn)])
    lines = ["| | seeds | AUPRC | AUROC | MCC |", "|---|---|---|---|---|"]
    for name, values in found.items():
        cells = [f"{x[0]:.3f} {interval(x[1:])}" for x in values.mean(1).T]
        lines.append(f"| {name} | {len(rows[name])} | {' | '.join(cells)} |")
    lines += ["", "| AUPRC | difference | seeds drawn too |", "|---|---|---|"]
    for one, two in combinations(found, 2):
        if len(rows[one][0]["names"]) != len(rows[two][0]["names"]):
            continue
        values = [found[name][..., 0] for name in (one, two)]  # (1 + DRAWS, seeds)
        gaps = np.subtract(*(x.mean(1) for x in values))
        picked = [np.take_along_axis(x[1:], seeds.integers(x.shape[1], size=x[1:].shape), 1).mean(1) for x in values]
        drawn = f"{interval(gaps[1:])} | {interval(np.subtract(*picked))}"
        lines.append(f"| {one} minus {two} | {gaps[0]:+.3f} {drawn} |")
    return lines


def interval(values) -> str:
    """The middle 95 % of draws."""
    return "({:.3f} to {:.3f})".format(*np.quantile(values, (0.025, 0.975)))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ppis", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("features", nargs="*")
    parser.add_argument("--predicted", nargs="+", default=[], metavar="NAME=FILE[,FILE]")
    parser.add_argument("--test", action="store_true", help="score Test_60: once")
    parser.add_argument("--table", type=Path, help="write the labels for finetune.py")
    parser.add_argument("--out", type=Path, default=Path("runs/ppis"))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="chains that the report leaves out")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    chains = read_chains(args.data, args.test)
    if args.table:
        write_table(args.table, chains)
    done = [(short(name), linear, name) for name in args.features]
    done += [(name, predicted, files.split(",")) for name, files in (pair.split("=", 1) for pair in args.predicted)]
    for name, answer, source in done:
        found = answer(source.replace("floor", FLOOR) if answer is linear else source, chains)
        save(args.out / f"{name}.npz", **found)
        shown = "  ".join(f"{key} {value:.3f}" for key, value in scores(with_labels(found, chains)).items())
        print(f"{name:32}  {shown}  ({len(found['names'])} chains, {len(found['answer'])} residues)", flush=True)
    if args.report:
        print(*report(args.report, chains, args.without), sep="\n")


if __name__ == "__main__":
    with console():
        main()
