"""metrics.jsonl: its lines, the order in which a reader wants their measures, and a summary."""

import json
from pathlib import Path

from ..files import ConfigError

NO_MEASURE = {"step", "epoch", "epochs", "stage", "split", "samples", "seconds", "cpu_seconds", "lr", "peak_memory_mb"}


def lines_before(path: Path, step: int) -> bytes:
    """The lines of a metrics.jsonl that were written up to `step`. A line that a kill cut off is left out.

    Raises ConfigError if no run wrote this file: such a file is never changed.
    """
    *lines, rest = path.read_bytes().split(b"\n") if path.exists() else [b""]
    try:
        written = [json.loads(line) for line in lines]
        if not all({"step", "epoch", "split"} <= line.keys() for line in written) or not b'{"step'.startswith(rest[:6]):
            raise ValueError("not lines of ours")
        return b"".join(line + b"\n" for line, x in zip(lines, written) if x["step"] <= step)
    except (ValueError, AttributeError) as error:
        foreign = f"{path} is damaged, or not written by a run: choose another --out, or remove it"
        raise ConfigError(foreign) from error


def in_order(values: dict[str, float]) -> list[tuple[str, float]]:
    """Measures as a reader wants them: loss, accuracies, other losses, the rest; without the constant predictors."""
    names = sorted(values, key=lambda name: (name != "loss", "accuracy" not in name, not name.endswith("_loss")))
    return [(name, values[name]) for name in names if not (name in NO_MEASURE or name.endswith("_constant"))]


def shown(values: dict[str, float]) -> str:
    """Measures on a line, as a reader wants them."""
    return "  ".join(f"{name} {value:.4g}{of_baseline(name, values)}" for name, value in in_order(values))


def of_baseline(name: str, values: dict[str, float]) -> str:
    """The loss of the best constant prediction, in brackets, to stand behind that of the model."""
    baseline = values.get(f"{name}_constant")
    return "" if baseline is None else f" ({baseline:.4g})"


def summary(path: Path) -> str:
    """A table of a metrics.jsonl: every measure's first and last value, stage by stage, beside the constant's.

    What a stage has measured once alone has no first value.
    """
    # Of each measure, by stage and split: not every line has every measure.
    values: dict = {}
    for line in map(json.loads, path.read_text().splitlines()):
        for name, value in in_order(line):
            key = line.get("stage", 1), line["split"], name
            values.setdefault(key, []).append((value, of_baseline(name, line)))

    rows = [f"{'stage':5}  {'split':5}  {'measure':24}  {'start':>10}  {'end':>10} (of a constant)"]
    for key in sorted(values, key=lambda key: key[:2]):
        stage, split, name = key
        start = f"{values[key][0][0]:.4g}" if len(values[key]) > 1 else ""
        end, baseline = values[key][-1]
        if name.endswith("_per_second"):
            continue
        numbers = f"{start:>10}  {end:>10.4g}{baseline}"
        rows.append(f"{stage:<5}  {split:5}  {name:24}  {numbers}")
    return "\n".join(rows)
