"""Does pre-training help? Methods pre-trained on one set of chains, fine-tuned on tasks with several seeds.

    python -m studies.2026-11.study DATA [--config study.json] [--out runs/study] [--jobs 2]  # runs what is missing
    python -m studies.2026-11.study_results  # what came out

DATA holds `pretrain.tsv` (columns id, split) and `ec.tsv` (id, split, pdb_id, chain, ec: numbers with commas), the
splits being train, val and test; `chains/ID.pdb.gz`; `ec/`, of which the annotation table gives the list of labels; and
`psr`, `msp`, `pip`, `res` as ATOM3D publishes them. Which proteins are related is said by the column cluster30 of
these two tables, and by component of `psr/index.tsv` (by target), `msp/mutations.tsv` and `pip/index.tsv` (by id); of
`res/index.tsv` (by id) too, if it has that column. The config says what is run: all methods see the same proteins for
the same number of steps. `encoders` in it names those of `pretrain.py`, one for every seed; then nothing is
pre-trained here. Each run is a command of train.py or finetune.py, printed and kept in its results, and goes on where
it was when the study is started again. `--jobs` of them run side by side.
"""

import argparse
import csv
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

from siamdiff_min.data import ec
from siamdiff_min.pretraining import STAGED

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_suffix(".json")
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
        epochs = [budget["epochs"]]
        if options[options.index("--method") + 1] in STAGED:
            first = epochs[0] if config.get("one stage", {}).get(method) else epochs[0] // 2
            epochs = [first, epochs[0] - first]
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
                options = shlex.split(config["tasks"][task])  # which may end with seeds of its own
                if "--seeds" not in options:
                    options += ["--seeds", *config["seeds"].split()]
                command += [*options, "--save-predictions"]
                before = None
                if method != "scratch" and "encoders" in config:  # a pre-training run for every seed
                    start = config["encoders"].format(method=method, level=level, seed="{seed}")
                    before = Path(start.format(seed=options[-1]))
                    command += ["--init-from", start]
                elif method != "scratch":
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
    if (data / "res/index.tsv").exists():
        found |= {
            f"res/{row['id']}": row["component"] for row in table_of(data / "res/index.tsv") if "component" in row
        }
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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder described above")
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=OUT, help="relative to the root of the project")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    args = parser.parse_args(argv)
    config, data = json.loads(args.config.read_text()), args.data.resolve()
    os.chdir(ROOT)
    parts = [f"{task}/{split}/data.mdb" for task in ("psr", "msp", "pip", "res") for split in ("train", "val", "test")]
    parts += ["pretrain.tsv", "ec.tsv", "chains", "ec", "psr/index.tsv", "msp/mutations.tsv", "pip/index.tsv"]
    if missing := [part for part in parts if not (data / part).exists()]:
        sys.exit(f"error: {data} is not such a folder: there is no {', '.join(missing)} in it")
    prepare(data, args.out)
    pool = Pool(plan(config, args.out), args.out, args.jobs)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pool.stop)
    failed = pool.run()
    if failed:
        sys.exit("error: not all runs ended well:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
