"""`python -m benchmarks.gpu` on a CPU: every section comes to its end."""

import sys

import pytest

from benchmarks import gpu


@pytest.mark.full
def test_every_section_comes_to_its_end(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--steps", "2"])
    monkeypatch.setattr(gpu, "execute", lambda command, timeout: "11 passed")  # runs of others, tested below
    result = {"weights": {"w": 1.0}, "proteins_per_second": 2.0, "peak_memory_mb": 3.0}
    monkeypatch.setattr(gpu, "train", lambda *_, **__: result)
    gpu.main()
    out = capsys.readouterr().out
    assert "Error" not in out and "no time left" not in out
    for text in (
        "11 passed",
        "- residue: ",
        "the same to the last bit",
        "| atom | 4 | TF32 |",
        "| `aten::mm` |",
        "processes: 2, gloo",
        "all in",
    ):
        assert text in out
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| residue |")]
    assert len(rows) == 3 and all(float(row[4]) > 0 and len(row) == 7 for row in rows)


def test_what_fails_is_told_and_the_rest_goes_on(capsys):
    with gpu.section("One"):
        gpu.execute([sys.executable, "-c", "raise ValueError('a reason')"], 60)
    with gpu.section("Two"):
        gpu.execute([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    out = capsys.readouterr().out
    assert "**RuntimeError**: status 1: ValueError: a reason" in out and "not finished within" in out


@pytest.mark.full
@pytest.mark.slow
def test_a_run_of_the_training_script():
    options = ["--max-steps", "2", "--batch-size", "2", "--num-workers", "0", "--level", "residue"]
    first, second = (gpu.train("cpu", "tiny", *options, timeout=300) for _ in range(2))
    assert first["weights"] == second["weights"] and first["proteins_per_second"] > 0


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.slow
@pytest.mark.parametrize("level", ["residue", "atom"])
def test_fifty_steps_in_bfloat16_lose_as_much_as_in_float32(level):
    both = [gpu.losses(level, "tiny", kind, "cpu") for kind in ("float32", "bf16")]
    assert all(low == pytest.approx(full, rel=0.02) for full, low in zip(*both, strict=True))
    assert sum(both[0][-10:]) < 0.95 * sum(both[0][:10])  # it learns
