"""studies/2026-11/mobility.py: labels of known motions, what is fitted to what, the report and the figure."""

from collections import Counter
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from conftest import generator, real_protein, rigid_motion

from benchmarks.pdb import write_pdb
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.structure import Structure

mobility = import_module("studies.2026-11.mobility")


def shift_of(first, other):
    return mobility.displacement(*(Structure(p, ("A",), Counter()) for p in (first, other)))


def hinged(protein, angle: float):
    """The residues from 30 on turned about an axis through the CA of residue 30."""
    late = (protein.atom_residue >= 30)[:, None]
    pivot = protein.pos[(protein.atom_residue == 30) & (protein.atom_name == CA)]
    turn = torch.tensor([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    return replace(protein, pos=torch.where(late, (protein.pos - pivot) @ turn.float().T + pivot, protein.pos))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """PAIRS.tsv of one protein whose end turns by various angles."""
    folder = tmp_path_factory.mktemp("pairs")
    first = real_protein("1LCD_A", torch.float32)
    lines = ["file_a\tfile_b\tsplit\tcluster\tn_a\tn_b"]
    for i, split in enumerate(["train"] * 3 + ["val"] * 2 + ["test"] * 4):
        for name, protein in (("a", first), ("b", hinged(first, 0.3 + 0.2 * i))):
            write_pdb(folder / f"{i}{name}.pdb", replace(protein, chain=torch.zeros_like(protein.chain)))
        lines.append(f"{i}a.pdb\t{i}b.pdb\t{split}\tc{i}\t51\t51")
    lines.append("0a.pdb\t0b.pdb\ttrain\tlong\t51\t501")
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_rigid_motion_is_no_displacement_and_a_local_one_is_seen():
    first = real_protein("1LCD_A", torch.float32)
    first = replace(first, chain=torch.zeros_like(first.chain))
    turn, shift = rigid_motion(1, 20.0)
    turned = replace(first, pos=(first.pos.double() @ turn + shift).float())
    assert shift_of(first, turned).max() < 1e-3
    moved = turned.pos + torch.tensor([4.0, 0, 0]) * (turned.atom_residue == 7)[:, None]
    found = shift_of(first, replace(turned, pos=moved))
    assert found.argmax() == 7 and found[7] == pytest.approx(4, abs=0.2) and np.delete(found, 7).max() < 0.3
    short = shift_of(first, turned.crop(2, 47))
    assert np.isnan(short[[0, 1, -1, -2]]).all() and np.isnan(short).sum() == 4


def test_the_fit_finds_what_the_features_hold_and_never_sees_the_test_labels(pairs, monkeypatch):
    items, labels = mobility.read_pairs(pairs / "pairs.tsv", pairs)
    assert len(items) == 18  # both of nine pairs; the long one is left out
    truth = {id(item.protein): torch.from_numpy(np.log(label + 0.1)) for item, label in zip(items, labels)}
    noise = torch.randn(51, 3, generator=generator())
    monkeypatch.setattr(mobility, "load", lambda *_: lambda p: torch.cat([truth[id(p)][:, None] * -3, noise], 1))
    test = [i for i, item in enumerate(items) if item.split == "test"]
    answers = mobility.predict("x", items, labels)
    assert mobility.rho(answers, [labels[i] for i in test]).min() > 0.98
    blind = [np.full_like(label, 1.0) if i in test else label for i, label in enumerate(labels)]
    assert all(np.array_equal(a, b) for a, b in zip(answers, mobility.predict("x", items, blind)))


def test_neighbours_counts():
    protein = real_protein("1LCD_A", torch.float32)
    ca = protein.pos[protein.atom_name == CA]
    assert -mobility.neighbours(protein)[5] == sum(float((x - ca[5]).norm()) < 10 for x in ca)


def test_from_the_command_line(pairs, tmp_path, capsys):
    table = [str(pairs / "pairs.tsv"), str(pairs)]
    mobility.main([*table, "neighbours", "geometry", "--out", str(tmp_path)])
    with np.load(tmp_path / "geometry.npz") as kept:
        assert kept["rho"].shape == (8,) and len(set(kept["family"])) == 4
        for kind, gain in (("simulated", 0.0), ("models", 0.2)):
            for seed in range(3):
                rho = kept["rho"] * 0 + 0.3 + gain + 0.01 * seed
                np.savez(tmp_path / f"conf-{kind}-{seed}.npz", rho=rho, family=kept["family"])
    mobility.main(["--report", str(tmp_path)])
    said = capsys.readouterr().out
    assert "| neighbours | 1 | " in said and "| conf-models | 3 | 0.510 ± 0.010 |" in said
    assert "| conf-models minus conf-simulated | +0.200 | +0.1" in said


def test_the_figure(pairs, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    table = [str(pairs / "pairs.tsv"), str(pairs)]
    mobility.main([*table, "geometry", "--figure", str(tmp_path / "x.png")])
    assert (tmp_path / "x.png").stat().st_size > 10_000 and "the median of" in capsys.readouterr().out
