"""Does pre-training help? Methods pre-trained on one set of chains, fine-tuned on tasks with several seeds.

    python -m benchmarks.study DATA [--config study.json] [--out runs/study] [--jobs 2]  # runs what is missing
    python -m benchmarks.study --table     # prints what is there and copies the raw results to benchmarks/results
    python -m benchmarks.study --curves    # draws the losses on held-out chains

DATA holds `pretrain.tsv` (columns id, split) and `ec.tsv` (id, split, pdb_id, chain, ec: numbers with commas), the
splits being train, val and test; `chains/ID.pdb.gz`; `ec/`, of which the annotation table gives the list of labels; and
`psr`, `msp`, `pip`, `res` as ATOM3D publishes them. Which proteins are related is said by the column cluster30 of
these two tables, and by component of `psr/index.tsv` (by target), `msp/mutations.tsv` and `pip/index.tsv` (by id). The
config says what is run: all methods see the same proteins for the same number of steps. Each run is a command of
train.py or finetune.py, printed and kept in its results, and goes on where it was when the study is started again.
`--jobs` of them run side by side.
"""

import argparse
import csv
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import one_hot

from siamdiff_min.data import atom3d, ec
from siamdiff_min.data.build import open_origin, open_store
from siamdiff_min.data.crops import Crops, collate
from siamdiff_min.data.samples import DATASETS, LabelledData, Sample
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.ops import segment_mean, segment_sum
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import NUM_RESIDUE_TYPES
from siamdiff_min.report import figure, read_predictions
from siamdiff_min.training import checkpoint, engine
from siamdiff_min.training.config import STAGED, PretrainConfig
from siamdiff_min.training.ranks import launch

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
SHOWN = {"ec": ["fmax", "auprc"], "pip": ["auroc"], "msp": ["auroc", "auprc"], "res": ["accuracy"]}
SHOWN["psr"] = ["global_spearman", "mean_spearman"]
DRAWS = 500  # of the test split, for intervals
OUT = Path("runs/study")  # relative to the root of the project


@dataclass(frozen=True)
class Run:
    """One command of the study."""

    name: str  # its folder under --out
    command: list[str]
    done: Path  # is there when it has ended
    needs: Path | None = None  # has to be there before it begins


def plan(config: dict, out: Path) -> list[Run]:
    """All runs in the order of the config; what is pre-trained comes right before it is needed."""
    runs: dict[str, Run] = {}
    common = shlex.split(config["common"])

    def pretrain(method: str, level: str) -> Run:
        name, options = f"{method}/pretrain-{level}", shlex.split(config["methods"][method])
        budget = config["pretrain"][level]
        staged = options[options.index("--method") + 1] in STAGED
        if staged and "--stages" not in options:
            epochs = [budget["epochs"] // 2, budget["epochs"] - budget["epochs"] // 2]
        else:
            epochs = [budget["epochs"]]
        command = ["train.py", "--data", f"{out}/data/train", "--valid-fraction", "0", "--level", level, *options]
        command += [*shlex.split(budget["options"]), "--epochs", *map(str, epochs), "--keep", "999", *common]
        run = Run(name, [*command, "--out", f"{out}/{name}"], out / name / "encoder.pt")
        return runs.setdefault(name, run)

    for methods, tasks in config["order"]:
        for method in methods.split():
            for task in tasks.split():
                kind, level, *_ = task.split("-")
                if kind == "pretrain":
                    pretrain(method, level)
                    continue
                command = ["finetune.py", "--task", kind, "--level", level, "--data", f"{out}/data/{kind}", *common]
                command += [*shlex.split(config["tasks"][task]), "--seeds", *config["seeds"].split()]
                command += ["--save-predictions"]
                before = None
                if method != "scratch":
                    before = pretrain(method, level).done
                    command += ["--init-from", str(before)]
                name = f"{method}/{task}"
                runs[name] = Run(name, [*command, "--out", f"{out}/{name}"], out / name / "results.json", before)
    return list(runs.values())


def prepare(data: Path, out: Path) -> None:
    """The data in the layouts that train.py and finetune.py read, as links; the stores are built beside these."""
    if (out / "data/complete").exists():
        return
    shutil.rmtree(out / "data", ignore_errors=True)
    for row in table_of(data / "pretrain.tsv"):
        if row["split"] in ("train", "val"):
            link(data / f"chains/{row['id']}.pdb.gz", out / f"data/{row['split']}/{row['id']}.pdb.gz")
    for task in ("psr", "msp", "pip", "res"):
        for split in ("train", "val", "test"):
            link(data / task / split / "data.mdb", out / "data" / task / split / "data.mdb")
    prepare_ec(data, out / "data/ec")
    (out / "data/families.json").write_text(json.dumps(families(data)))
    (out / "data/complete").touch()


def prepare_ec(data: Path, out: Path) -> None:
    """The EC set as it is published: three folders, a table of labels, and one of the test chains."""
    numbers, test = {}, []
    for row in table_of(data / "ec.tsv"):
        name = name_in_ec(row)
        if len(row["pdb_id"]) == 4 and name not in numbers:
            numbers[name] = row["ec"]
            link(data / f"chains/{row['id']}.pdb.gz", out / row["split"] / f"{name}.pdb")
            if row["split"] == "test":
                test.append(name)
    annotation = next((data / "ec").glob("*annot.tsv")).read_text().splitlines()[:3]
    lines = [*annotation, *(f"{name}\t{labels}" for name, labels in numbers.items())]
    (out / ec.ANNOTATION[0]).write_text("\n".join(lines) + "\n")
    lines = ["PDB-chain,<30%,<40%,<50%,<70%,<95%", *(f"{name},1,1,1,1,1" for name in test)]
    (out / ec.TEST_TABLE[0]).write_text("\n".join(lines) + "\n")


def name_in_ec(row: dict[str, str]) -> str:
    """What the published set calls a chain: 1ABC-A; 0 where the entry names no chain."""
    return f"{row['pdb_id'].upper()}-{row['chain'] if row['chain'] != '-' else '0'}"


def families(data: Path) -> dict[str, str]:
    """TASK/GROUP -> family of the groups of predictions.tsv; what is not in it is related to nothing."""
    found = {}
    for table in ("pretrain.tsv", "ec.tsv"):
        found |= {f"res/{row['id']}": row["cluster30"] for row in table_of(data / table)}
    found |= {f"ec/{name_in_ec(row)}": row["cluster30"] for row in table_of(data / "ec.tsv")}
    for table, column in (("psr/index.tsv", "target"), ("msp/mutations.tsv", "id"), ("pip/index.tsv", "id")):
        found |= {f"{table[:3]}/{row[column]}": row["component"] for row in table_of(data / table)}
    return found


def table_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve(strict=True))


class Pool:
    """Runs side by side, each when what it needs is there; times go to OUT/times.tsv."""

    def __init__(self, runs: list[Run], out: Path, jobs: int):
        self.waiting, self.out, self.lock = [run for run in runs if not run.done.exists()], out, threading.Lock()
        self.running, self.failed, self.processes = 0, [], set()
        self.threads = [threading.Thread(target=self.work) for _ in range(jobs)]

    def run(self) -> list[str]:
        """The names of the runs that failed."""
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        return self.failed + [f"{run.name} (needs {run.needs})" for run in self.waiting]

    def stop(self, number: int, frame) -> None:
        """On a signal: begin nothing more; what runs saves itself and ends."""
        self.waiting.clear()
        for process in list(self.processes):
            process.terminate()

    def next(self) -> Run | None:
        with self.lock:
            for run in self.waiting:
                if run.needs is None or run.needs.exists():
                    self.waiting.remove(run)
                    self.running += 1
                    return run

    def work(self) -> None:
        while True:
            run = self.next()
            if run is not None:
                self.execute(run)
            elif self.waiting and self.running:
                time.sleep(1)
            else:
                return

    def execute(self, run: Run) -> None:
        print(time.strftime("%H:%M:%S"), shlex.join(["python", *run.command]), flush=True)
        log = self.out / f"{run.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        started = time.time()
        with open(log, "ab") as file:
            process = subprocess.Popen([sys.executable, *run.command], cwd=ROOT, stdout=file, stderr=file)
            self.processes.add(process)
            _, status, usage = os.wait4(process.pid, 0)  # processes of its own included
            process.returncode = status = os.waitstatus_to_exitcode(status)
            self.processes.remove(process)
        with self.lock, open(self.out / "times.tsv", "a") as file:
            seconds = usage.ru_utime + usage.ru_stime
            file.write(f"{run.name}\t{time.time() - started:.0f}\t{seconds:.0f}\t{status}\n")
            self.running -= 1
            if status or not run.done.exists():
                self.failed.append(f"{run.name}: see {log}")


def described(sample: Sample) -> np.ndarray:
    """What anyone sees of a sample without a network (numbers,), for each of its structures: the shares of the residue
    types, those in focus, the log of the number of residues, and the radius of gyration (angstrom) over the number of
    residues to the power 0.38, as it goes with the size of globular proteins."""
    protein, graphs = sample.protein, sample.protein.num_graphs
    kinds = one_hot(protein.residue_type, NUM_RESIDUE_TYPES) * ~protein.masked[:, None]
    shares = []
    for weight in (kinds, kinds * sample.focus[:, None]):
        count = segment_sum(weight.double(), protein.residue_graph, graphs)
        shares.append(count / count.sum(1, keepdim=True).clamp(min=1))
    size, pos = protein.residues_per_graph.double(), protein.pos.double()
    centre = segment_mean(pos, protein.atom_graph, graphs)
    radius = segment_mean((pos - centre[protein.atom_graph]).square(), protein.atom_graph, graphs).sum(1).sqrt()
    return torch.cat([*shares, size.log()[:, None], (radius / size**0.38)[:, None]], dim=1).flatten().numpy()


def trivial(kind: str, data: LabelledData) -> dict[str, dict[str, float]]:
    """Metrics of what needs no network: the best constant answer, that is the shares of the labels in training (EC),
    the commonest type (RES); and a linear model of `described`, as scikit-learn fits it by default."""

    def read(origin) -> tuple[np.ndarray, np.ndarray, list[str]]:
        dataset = DATASETS[kind](open_origin(origin, workers=1), labels=data.labels)
        samples = [(described(s), s.target.numpy(), s.groups) for s in (dataset[0, i] for i in range(len(dataset)))]
        seen, target, groups = zip(*samples)
        return np.stack(seen), np.concatenate(target), [group for of_sample in groups for group in of_sample]

    (x, y, _), (seen, target, groups) = read(data.train), read(data.test)
    model = make_pipeline(StandardScaler(), Ridge() if kind in ("ec", "psr") else LogisticRegression(max_iter=10_000))
    model.fit(x, y)
    constant = np.zeros(len(target))
    if kind in ("ec", "psr"):
        fitted = model.predict(seen)
    else:
        fitted = np.zeros((len(target), NUM_RESIDUE_TYPES if kind == "res" else 2))
        fitted[:, model.classes_.astype(int)] = model.predict_proba(seen)
    if kind in ("pip", "msp"):
        fitted = fitted[:, 1]
    if kind in ("ec", "res"):
        share = y.mean(0) if kind == "ec" else np.bincount(y, minlength=NUM_RESIDUE_TYPES)
        constant = np.tile(share, (len(target), 1))
    answers = {"always the same": constant, "linear": fitted}
    return {name: TASKS[kind].metrics(score, target, groups) for name, score in answers.items()}


@functools.cache
def redrawn(folder: Path, task: str) -> np.ndarray:
    """Metrics (DRAWS, seeds, those of SHOWN) of fine-tuned models on test splits drawn with replacement by families.

    Whole families of proteins are drawn, as errors on one of them go together. The draws are the same for all methods.
    nan where a metric is not defined, as AUROC of one class.
    """
    kind, seeds = task.partition("-")[0], []
    related = json.loads((folder.parent.parent / "data/families.json").read_text())
    for path in sorted(folder.glob("seed-*/predictions.tsv")):
        read, members = read_predictions(path), {}
        target, score, group = read["target"], read["prediction"], read["group"]
        for i, name in enumerate(group):
            members.setdefault(related.get(f"{kind}/{name}", name), []).append(i)
        places, random, draws = list(members.values()), np.random.default_rng(0), []
        for _ in range(DRAWS):
            drawn = [places[k] for k in random.integers(len(places), size=len(places))]
            rows, groups = np.concatenate(drawn), [f"{k} {group[i]}" for k, place in enumerate(drawn) for i in place]
            values = TASKS[kind].metrics(score[rows], target[rows], groups)
            draws.append([values[name] for name in SHOWN[kind]])
        seeds.append(draws)
    return np.array(seeds).transpose(1, 0, 2)


def versus(folder: Path, scratch: Path, task: str) -> dict[str, list[float]]:
    """95 % interval of what a method is better than scratch by, over draws of test families and of seeds (percentiles).

    Draws for which a metric is not defined are left out.
    """
    random = np.random.default_rng(1)

    def mean(values: np.ndarray) -> np.ndarray:
        seeds = random.integers(values.shape[1], size=values.shape[:2])
        return np.take_along_axis(values, seeds[:, :, None], axis=1).mean(1)

    gain = mean(redrawn(folder, task)) - mean(redrawn(scratch, task))
    return dict(zip(SHOWN[task.split("-")[0]], np.nanquantile(gain, [0.025, 0.975], axis=0).T.tolist()))


def collect(config: dict, out: Path) -> None:
    """Copy the raw results to benchmarks/results, with the commands for the usual --out, and name what is missing."""
    cpu, missing, commands = {}, [], {run.name: run.command for run in plan(config, OUT)}
    for line in (out / "times.tsv").read_text().splitlines():
        name, _, seconds, _ = line.split("\t")
        cpu[name] = cpu.get(name, 0) + float(seconds) / 60
    for run in plan(config, out):
        if not run.done.exists():
            missing.append(run.name)
            continue
        method, task = run.name.split("/")
        if run.done.name == "results.json":
            content, scratch = json.loads(run.done.read_text()), out / "scratch" / task
            if method != "scratch" and (scratch / "results.json").exists():
                content["minus_scratch"] = versus(run.done.parent, scratch, task)
        else:
            content = {"config": checkpoint.load_encoder_file(run.done)["config"]}
            content["last"] = json.loads((run.done.parent / "metrics.jsonl").read_text().splitlines()[-1])
        command = shlex.join(["python", *commands[run.name]])
        content |= {"command": command, "cpu_minutes": round(cpu.get(run.name, 0), 1)}
        (RESULTS / method).mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{run.name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"CPU hours: {sum(cpu.values()) / 60:.1f}; not run: {', '.join(missing) or 'nothing'}")


def tables(config: dict, out: Path) -> None:
    """Print a table of every task, and one of all with the metric that chooses the epoch."""
    methods, short, titles = ["scratch", *config["methods"]], {}, []
    for task in config["tasks"]:
        kind = task.partition("-")[0]
        paths = {method: RESULTS / method / f"{task}.json" for method in methods}
        results = {method: json.loads(path.read_text()) for method, path in paths.items() if path.exists()}
        if not results:
            continue
        folder, names = f"{out}/data/{kind}", SHOWN[kind]
        easy = trivial(kind, ec.find(folder) if kind == "ec" else atom3d.find(folder, kind))
        titles.append(f"{task} {names[0]}")
        print(f"\n| {task} | {' | minus scratch | '.join(names)} | minus scratch |\n|{'---|' * (2 * len(names) + 1)}")
        for name, values in easy.items():
            print(f"| {name} | {' | '.join(f'{values[metric]:.3f} | ' for metric in names)} |")
            short.setdefault(name, {})[titles[-1]] = f"{values[names[0]]:.3f}"
        for method, content in results.items():
            values = {name: f"{content['mean'][name]:.3f} ± {content['std'][name]:.3f}" for name in names}
            bounds = content.get("minus_scratch", {})
            cells = [x for n in names for x in (values[n], "{:+.3f} .. {:+.3f}".format(*bounds[n]) if bounds else "")]
            print(f"| {method} | {' | '.join(cells)} |")
            short.setdefault(method, {})[titles[-1]] = values[names[0]]
    print(f"\n| | {' | '.join(titles)} |\n|{'---|' * (len(titles) + 1)}")
    for method, values in short.items():
        print(f"| {method} | {' | '.join(values.get(title, '') for title in titles)} |")


def curves(config: dict, out: Path) -> None:
    """Structure loss and sequence accuracy of held-out chains after every epoch, each run under its own noise."""
    level, ranks = config["curves"]["level"], launch("cpu", 1)
    store = open_store(f"{out}/data/val", workers=1)
    budget, points = config["pretrain"][level], {}
    for title, method in config["curves"]["runs"].items():
        folder = out / method / f"pretrain-{level}"
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        stages = {line["step"]: line["stage"] for line in lines}
        options = checkpoint.load_encoder_file(folder / "encoder.pt")["config"]
        run = PretrainConfig(**{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
        objective = OBJECTIVES[run.method](ENCODERS[run.encoder](level, run.size), level, run.preset, run.ablation)
        points[title] = []
        for path in sorted(folder.glob("checkpoint-*.pt")):
            state = checkpoint.load(path)
            if state["step"] * budget["epochs"] % max(stages):
                continue  # within an epoch
            objective.load_state_dict(state["objective"])
            objective.set_stage(stages[state["step"]])
            crops = Crops(store, run.max_length, run.seed)  # and masks and noise: the same after every epoch
            measured = engine.evaluate(objective, (crops, collate, range(len(store))), run, ranks)
            point = {"epoch": state["step"] * budget["epochs"] / max(stages)}
            point |= {name: measured[name] for name in ("structure_loss", "sequence_accuracy") if name in measured}
            points[title].append(point)
            print(title, point, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "curves.json").write_text(json.dumps(points, indent=1) + "\n")
    draw(points)


def draw(points: dict[str, list[dict[str, float]]]) -> None:
    """The curves as benchmarks/results/curves.png."""
    made, axes = figure(1, 2)
    for axis, name in zip(axes[0], ("structure_loss", "sequence_accuracy")):
        for color, (title, series) in enumerate(points.items()):
            known = [(p["epoch"], p[name]) for p in series if name in p]
            if known:
                axis.plot(*zip(*known), "o-", markersize=3, color=f"C{color}", label=title)
        axis.set(title=name.replace("_", " ") + ", held-out chains", xlabel="epoch")
    axes[0, 0].set_yscale("log")
    made.legend(*axes[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    made.savefig(RESULTS / "curves.png", dpi=100)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="the folder described above")
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--out", type=Path, default=OUT, help="relative to the root of the project")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--curves", action="store_true")
    args = parser.parse_args(argv)
    config, args.data = json.loads(args.config.read_text()), args.data and args.data.resolve()
    os.chdir(ROOT)
    if args.data and not (args.data / "pretrain.tsv").is_file():
        sys.exit(f"error: {args.data} is not such a folder: there is no pretrain.tsv in it")
    if not args.data and not (args.out / "times.tsv").is_file():
        sys.exit(f"error: {args.out} holds no study; begin one by naming the folder of its data")
    if args.data:
        prepare(args.data, args.out)
        pool = Pool(plan(config, args.out), args.out, args.jobs)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pool.stop)
        failed = pool.run()
        if failed:
            sys.exit("error: not all runs ended well:\n" + "\n".join(failed))
    if args.table:
        collect(config, args.out)
        tables(config, args.out)
    if args.curves:
        curves(config, args.out)


if __name__ == "__main__":
    main()
