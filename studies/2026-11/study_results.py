"""What came out of the study of `study.py`: its raw results, tables and curves.

    python -m studies.2026-11.study_results            # copies the raw results to results/, prints the tables
    python -m studies.2026-11.study_results --curves   # draws the losses on held-out chains

Besides mean and standard deviation over the seeds: what needs no network, 95 % intervals of differences over draws of
the test proteins, the same metrics without the one family of proteins that matters most, and the sizes of the splits.
"""

import argparse
import functools
import hashlib
import json
import os
import shlex
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import one_hot
from torch.utils.data import Subset

from siamdiff_min.data import atom3d, ec
from siamdiff_min.data.crops import Crops
from siamdiff_min.data.labelled import LabelledData
from siamdiff_min.data.samples import SAMPLES, Sample
from siamdiff_min.data.store import open_store
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import weights
from siamdiff_min.encoders.ops import segment_mean, segment_sum
from siamdiff_min.protein.constants import NUM_RESIDUE_TYPES
from siamdiff_min.training import checkpoint, evaluation
from siamdiff_min.training.ranks import Ranks
from siamdiff_min.training.results import read_predictions

from .study import CONFIG, OUT, ROOT, plan

RESULTS = Path(__file__).parent / "results"
SHOWN = {"ec": ["fmax", "auprc"], "pip": ["auroc"], "msp": ["auroc", "auprc"], "res": ["accuracy"]}
SHOWN["psr"] = ["global_spearman", "mean_spearman"]
DRAWS = 2000  # of the test split, for intervals
CONSTANT, LINEAR = "always the same", "linear"  # what needs no network


@dataclass(frozen=True)
class Answers:
    """What one model says of the K samples of a split."""

    score: np.ndarray  # (K,) or (K, C)
    target: np.ndarray  # (K,) or (K, C)
    group: np.ndarray  # (K,)   as in predictions.tsv
    family: np.ndarray  # (K,)   proteins that are related


def kind_of(task: str) -> str:
    """psr of psr-residue."""
    return task.partition("-")[0]


def metrics(kind: str, answers: Answers, rows=slice(None), group: list[str] | None = None) -> np.ndarray:
    """Those of SHOWN, of some of the samples; `group` takes the place of their groups."""
    group = answers.group[rows].tolist() if group is None else group
    values = TASKS[kind].metrics(TASKS[kind], answers.score[rows], answers.target[rows], group)
    return np.array([values[name] for name in SHOWN[kind]])


def described(sample: Sample) -> np.ndarray:
    """What anyone sees of a sample without a network (numbers,), for each of its structures: the shares of the residue
    types, those in focus, the log of the number of residues, and the radius of gyration (angstrom) over the number of
    residues to the power 0.38, as it goes with the size of globular proteins."""
    protein, graphs = sample.protein, sample.protein.num_proteins
    kinds = one_hot(protein.residue_type, NUM_RESIDUE_TYPES) * ~protein.masked[:, None]
    shares = []
    for weight in (kinds, kinds * sample.focus[:, None]):
        count = segment_sum(weight.double(), protein.residue_protein, graphs)
        shares.append(count / count.sum(1, keepdim=True).clamp(min=1))
    size, pos = protein.residues_per_protein.double(), protein.pos.double()
    centre = segment_mean(pos, protein.atom_protein, graphs)
    radius = segment_mean((pos - centre[protein.atom_protein]).square(), protein.atom_protein, graphs).sum(1).sqrt()
    return torch.cat([*shares, size.log()[:, None], (radius / size**0.38)[:, None]], dim=1).flatten().numpy()


def trivial(kind: str, data: LabelledData, related: dict[str, str]) -> dict[str, dict[str, Answers]]:
    """Answers on every split of what needs no network: the best constant answer, that is the shares of the labels in
    training (EC), the commonest type (RES); and a linear model of `described`, as scikit-learn fits it by default."""
    seen, given = {}, {}
    for split in ("train", "valid", "test"):
        dataset = SAMPLES[kind](open_store(getattr(data, split), workers=1), classes=data.classes)
        samples = [dataset[0, i] for i in range(len(dataset))]
        seen[split] = np.stack([described(sample) for sample in samples])
        group = [name for sample in samples for name in sample.groups]
        given[split] = (torch.cat([sample.target for sample in samples]).numpy(), group)
    y, classes = given["train"][0], NUM_RESIDUE_TYPES if kind == "res" else 2
    model = make_pipeline(StandardScaler(), Ridge() if kind in ("ec", "psr") else LogisticRegression(max_iter=10_000))
    model.fit(seen["train"], y)
    answers = {CONSTANT: {}, LINEAR: {}}
    for split, (target, group) in given.items():
        constant = np.zeros(len(target))
        if kind in ("ec", "res"):
            share = y.mean(0) if kind == "ec" else np.bincount(y, minlength=classes)
            constant = np.tile(share, (len(target), 1))
        if kind in ("ec", "psr"):
            fitted = model.predict(seen[split])
        else:
            fitted = np.zeros((len(target), classes))
            fitted[:, model.classes_.astype(int)] = model.predict_proba(seen[split])
        if kind in ("pip", "msp"):
            fitted = fitted[:, 1]
        for name, score in ((CONSTANT, constant), (LINEAR, fitted)):
            answers[name][split] = Answers(score, target, np.array(group), families_of(kind, group, related))
    return answers


def families_of(kind: str, group: list[str], related: dict[str, str]) -> np.ndarray:
    return np.array([related.get(f"{kind}/{name}", name) for name in group])


@functools.cache
def related_proteins(out: Path) -> dict[str, str]:
    """TASK/GROUP -> family, as the study wrote it."""
    return json.loads((out / "data/families.json").read_text())


@functools.cache
def easy(out: Path, kind: str) -> dict[str, dict[str, Answers]]:
    folder = f"{out}/data/{kind}"
    return trivial(kind, ec.ec_set(folder) if kind == "ec" else atom3d.atom3d_set(folder, kind), related_proteins(out))


@functools.cache
def tested(out: Path, method: str, task: str) -> list[Answers]:
    """What the models of a method said of the test split, one for each seed; none where it was not run."""
    if method in (CONSTANT, LINEAR):
        return [easy(out, kind_of(task))[method]["test"]]
    answers, related = [], related_proteins(out)
    if (out / method / task / "results.json").exists():
        for path in sorted((out / method / task).glob("seed-*/predictions.tsv")):
            read = read_predictions(path)
            family = families_of(kind_of(task), read["group"], related)
            answers.append(Answers(read["prediction"], read["target"], np.array(read["group"]), family))
    return answers


@functools.cache
def redrawn(out: Path, method: str, task: str) -> np.ndarray:
    """Metrics (DRAWS, seeds, those of SHOWN) of fine-tuned models on test splits drawn with replacement by families.

    Whole families of proteins are drawn, as errors on one of them go together. The draws are the same for all methods.
    nan where a metric is not defined, as AUROC of one class. What was computed is kept beside the predictions.
    """
    file, seeds, known = out / method / task / "redrawn.npz", [], hashlib.sha256(str(DRAWS).encode())
    for answers in tested(out, method, task):
        for array in (answers.score, answers.target):
            known.update(array.tobytes())
        known.update("\n".join([*answers.group, *answers.family]).encode())
    if file.exists():
        with np.load(file, allow_pickle=False) as kept:
            if str(kept["of"]) == known.hexdigest():
                return kept["values"]
    for answers in tested(out, method, task):
        names = dict.fromkeys(answers.family.tolist())  # in the order of the samples
        places, random, draws = [np.flatnonzero(answers.family == name) for name in names], np.random.default_rng(0), []
        for _ in range(DRAWS):
            drawn = [places[k] for k in random.integers(len(places), size=len(places))]
            group = [f"{k} {answers.group[i]}" for k, place in enumerate(drawn) for i in place]
            draws.append(metrics(kind_of(task), answers, np.concatenate(drawn), group))
        seeds.append(draws)
    values = np.array(seeds).transpose(1, 0, 2)
    np.savez(file, values=values, of=known.hexdigest())
    return values


def versus(out: Path, method: str, other: str, task: str) -> dict[str, list[float]]:
    """95 % interval of what a method is better by than another, over draws of test families and of seeds (percentiles).

    Of k seeds k - 1 are drawn: the mean of k draws would vary less than the mean over k seeds does, by (k - 1) / k.
    Draws for which a metric is not defined are left out.
    """
    random = np.random.default_rng(1)

    def mean(values: np.ndarray) -> np.ndarray:
        seeds = random.integers(values.shape[1], size=(len(values), max(1, values.shape[1] - 1)))
        return np.take_along_axis(values, seeds[:, :, None], axis=1).mean(1)

    gain = mean(redrawn(out, method, task)) - mean(redrawn(out, other, task))
    return dict(zip(SHOWN[kind_of(task)], np.nanquantile(gain, [0.025, 0.975], axis=0).T.tolist()))


def most_telling(task: str, methods: list[list[Answers]]) -> str:
    """The family of the test split without which the first metric of SHOWN, the mean over seeds, changes most: in the
    mean over the methods, whichever way. One without which it is not defined does not count."""
    kind = kind_of(task)
    whole = [[metrics(kind, x)[0] for x in seeds] for seeds in methods]

    def change(family: str) -> float:
        rest = [[metrics(kind, x, x.family != family)[0] for x in seeds] for seeds in methods]
        return float(np.nan_to_num(np.mean([abs(np.mean(a) - np.mean(b)) for a, b in zip(rest, whole)])))

    return max(dict.fromkeys(methods[0][0].family.tolist()), key=change)


def collect(config: dict, out: Path) -> None:
    """Copy the raw results to results/, with the commands for the usual --out, and name what is missing."""
    cpu, missing, commands = {}, [], {run.name: run.command for run in plan(config, OUT)}
    for line in (out / "times.tsv").read_text().splitlines():
        name, _, seconds, _ = line.split("\t")
        cpu[name] = cpu.get(name, 0) + float(seconds) / 60
    for run in plan(config, out):
        if not run.done.exists():
            missing.append(run.name)
            continue
        method, task = run.name.split("/")
        (RESULTS / method).mkdir(parents=True, exist_ok=True)
        if run.done.name == "results.json":
            content = json.loads(run.done.read_text())
            if method != "scratch" and tested(out, "scratch", task):
                content["minus_scratch"] = versus(out, method, "scratch", task)
            if "encoders" in config:  # so that every interval can be computed again
                np.savez_compressed(RESULTS / f"{run.name}.npz", draws=redrawn(out, method, task).astype(np.float32))
        else:
            content = {"config": weights.load_encoder_file(run.done)["config"]}
            content["last"] = json.loads((run.done.parent / "metrics.jsonl").read_text().splitlines()[-1])
        command = shlex.join(["python", *commands[run.name]])
        content |= {"command": command}
        if run.name in cpu:
            content["cpu_minutes"] = round(cpu[run.name], 1)
        (RESULTS / f"{run.name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"CPU hours: {sum(cpu.values()) / 60:.1f}; not run: {', '.join(missing) or 'nothing'}")


def show(rows: dict[str, dict[str, str]], corner: str = "") -> None:
    """Print a table: row -> column -> cell; a row need not have all columns."""
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    print(f"\n| {' | '.join([corner, *columns])} |\n|{'---|' * (len(columns) + 1)}")
    for name, cells in rows.items():
        print(f"| {' | '.join([name, *(cells.get(column, '') for column in columns)])} |")


def over_seeds(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def interval(bounds: list[float]) -> str:
    return "{:+.3f} .. {:+.3f}".format(*bounds)


def tables(config: dict, out: Path) -> None:
    """Print a table of every task; of all tasks by the metric that chooses the epoch, as it is and without the most
    telling family; of the pairs of methods that the config names; and of the splits."""
    methods = [CONSTANT, LINEAR, "scratch", *config["methods"]]
    short, without, pairs, sizes = {}, {}, {}, {}
    for task in config["tasks"]:
        kind, rows = kind_of(task), {}
        ended = [method for method in methods[2:] if tested(out, method, task)]
        if not ended:
            continue
        family = most_telling(task, [tested(out, method, task) for method in ended])
        for method in [*methods[:2], *ended]:
            seeds = tested(out, method, task)
            values = np.stack([metrics(kind, answers) for answers in seeds]).T
            bounds = versus(out, method, "scratch", task) if method in ended[1:] and "scratch" in ended else {}
            rows[method] = {}
            for name, of_metric in zip(SHOWN[kind], values):
                rows[method][name] = over_seeds(of_metric)
                rows[method][f"{name} minus scratch"] = interval(bounds[name]) if bounds else ""
            short.setdefault(method, {})[f"{task} {SHOWN[kind][0]}"] = over_seeds(values[0])
            left = [answers.family != family for answers in seeds]
            column = f"{task} without {family} ({(~left[0]).sum()} of {len(left[0])})"
            rest = [metrics(kind, answers, keep)[0] for answers, keep in zip(seeds, left)]
            without.setdefault(method, {})[column] = over_seeds(rest)
        show(rows, task)
        for method, other in config["pairs"]:
            if method in ended and other in ended:
                difference = interval(versus(out, method, other, task)[SHOWN[kind][0]])
                pairs.setdefault(f"{method} minus {other}", {})[task] = difference
        for split, answers in easy(out, kind)[CONSTANT].items():
            count = Counter(answers.family.tolist())
            name, largest = count.most_common(1)[0]
            unknown = {x for x in answers.group.tolist() if f"{kind}/{x}" not in related_proteins(out)}
            cells = {"samples": len(answers.target), "families": len(count), "largest": f"{largest} ({name})"}
            cells["proteins of unknown family"] = len(unknown)
            cells |= {x: f"{metrics(kind, easy(out, kind)[x][split])[0]:.3f}" for x in (CONSTANT, LINEAR)}
            sizes[f"{kind} {split}"] = {key: str(value) for key, value in cells.items()}
    for rows in (short, without, pairs, sizes):
        show(rows)


def curves(config: dict, out: Path) -> None:
    """Structure loss and sequence accuracy of held-out chains after every epoch, each run under its own noise."""
    level, ranks = config["curves"]["level"], Ranks(torch.device("cpu"))
    store = open_store(f"{out}/data/val", workers=1)
    budget, points = config["pretrain"][level], {}
    for title, method in config["curves"]["runs"].items():
        folder = out / method / f"pretrain-{level}"
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        stages = {line["step"]: line["stage"] for line in lines}
        options = weights.load_encoder_file(folder / "encoder.pt")["config"]
        run = Namespace(**options)
        objective = checkpoint.new_objective(weights.new_encoder(run), run).eval()
        points[title] = []
        for path in sorted(folder.glob("checkpoint-*.pt")):
            state = weights.read_weights(path)
            if state["step"] * budget["epochs"] % max(stages):
                continue  # within an epoch
            weights.load_weights(objective, state["objective"], str(path))
            objective.set_stage(stages[state["step"]])
            crops = Crops(store, run.max_length, run.seed)  # and masks and noise: the same after every epoch
            measured = evaluation.evaluate(objective, Subset(crops, range(len(store))), run, ranks)
            point = {"epoch": state["step"] * budget["epochs"] / max(stages)}
            point |= {name: measured[name] for name in ("structure_loss", "sequence_accuracy") if name in measured}
            points[title].append(point)
            print(title, point, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "curves.json").write_text(json.dumps(points, indent=1) + "\n")
    draw(points)


def draw(points: dict[str, list[dict[str, float]]]) -> None:
    """The curves as studies/2026-11/results/curves.png."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(8.4, 3.4), layout="constrained")
    axes = made.subplots(1, 2)
    for axis, name in zip(axes, ("structure_loss", "sequence_accuracy")):
        for color, (title, series) in enumerate(points.items()):
            known = [(p["epoch"], p[name]) for p in series if name in p]
            if known:
                axis.plot(*zip(*known), "o-", markersize=3, color=f"C{color}", label=title)
        axis.set(title=name.replace("_", " ") + ", held-out chains", xlabel="epoch")
    axes[0].set_yscale("log")
    made.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    made.savefig(RESULTS / "curves.png", dpi=100)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=OUT, help="of the study, relative to the root of the project")
    parser.add_argument("--curves", action="store_true")
    args = parser.parse_args(argv)
    config = json.loads(args.config.read_text())
    os.chdir(ROOT)
    if not (args.out / "times.tsv").is_file():
        sys.exit(f"error: {args.out} holds no study; begin one by studies.2026-11.study")
    if args.curves:
        curves(config, args.out)
    else:
        collect(config, args.out)
        tables(config, args.out)


if __name__ == "__main__":
    main()
