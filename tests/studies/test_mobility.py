"""studies/2026-11/mobility.py: the report."""

from importlib import import_module

import numpy as np

mobility = import_module("studies.2026-11.mobility")


def test_the_report(tmp_path, capsys):
    for kind, gain in (("simulated", 0.0), ("models", 0.2)):
        for seed in range(3):
            rho = np.full(8, 0.3 + gain + 0.01 * seed, np.float32)
            np.savez(tmp_path / f"conf-{kind}-{seed}.npz", rho=rho, family=[f"c{i // 2}.pdb" for i in range(8)])
    np.savez(tmp_path / "neighbours.npz", rho=np.full(8, 0.1), family=[f"c{i // 2}.pdb" for i in range(8)])
    mobility.main(["--report", str(tmp_path)])
    said = capsys.readouterr().out
    assert "| neighbours | 1 | " in said and "| conf-models | 3 | 0.510 ± 0.010 |" in said
    assert "| conf-models minus conf-simulated | +0.200 | +0.1" in said
