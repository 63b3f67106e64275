"""The steps that demo sets are made by: bending, ideal CB, alanine; and entries as the datasets read them."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from conftest import real_protein

from benchmarks import make_sets
from siamdiff_min.data import demo
from siamdiff_min.data.samples import SAMPLES
from siamdiff_min.data.sets import SETS
from siamdiff_min.data.sources import Listing, Origin, Source
from siamdiff_min.data.store import open_store
from siamdiff_min.protein.constants import ATOM_INDEX, CA, RESIDUE_INDEX, C, N, O
from siamdiff_min.protein.geometry import dihedral, length
from siamdiff_min.protein.protein import TENSOR_FIELDS

TASKS = [task for task in SETS if task != "table"]  # which is of the user's own data


def entries(task: str) -> list[Source]:
    return demo.demo_set(task).valid.listing().sources[:2]


def test_a_change_of_task_split_or_file_makes_another_store(monkeypatch, tmp_path):
    def states(task: str) -> list[str]:
        return [getattr(demo.demo_set(task), split).key for split in ("train", "valid", "test")]

    before = {task: states(task) for task in TASKS}
    assert before == {task: states(task) for task in TASKS} and len({x for s in before.values() for x in s}) == 15
    places = [getattr(demo.demo_set(task), split).path for task in TASKS for split in ("train", "valid", "test")]
    assert len(set(places)) == len(places)
    text = (demo.FOLDER / "ec.json").read_text()
    (tmp_path / "ec.json").write_text(text.replace('"valid"', '"test"', 1))
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    assert not set(before["ec"]) & set(states("ec"))
    (tmp_path / "ec.json").write_text(text)
    assert before["ec"] == states("ec")


@pytest.mark.parametrize("task", TASKS)
def test_entries_are_the_same_in_another_process_and_can_be_learnt_from(task, tmp_path):
    made = entries(task)
    one, two = made[0].read(), pickle.loads(pickle.dumps(made[0])).read()
    assert str(one.labels) == str(two.labels) and one.labels
    for field in TENSOR_FIELDS:
        assert torch.equal(getattr(one.protein, field), getattr(two.protein, field)), field
    store = open_store(Origin(tmp_path / task, "x", lambda: Listing(made, [])), store=tmp_path / "store")
    data = SAMPLES[task](store, classes=demo.demo_set(task).classes)
    sample = data[0, len(data) - 1]
    assert len(data) >= len(made) and sample.focus.any() and sample.target.isfinite().all()


@pytest.mark.parametrize("bond", ["phi", "psi"])
def test_bending_changes_one_torsion_and_no_bond_or_angle(bond):
    """All pairs of atoms that share a bond or a neighbour, found by distance, keep their distance to rounding."""
    protein = real_protein("1LCD_A")
    bonded = (length(protein.pos[:, None] - protein.pos) < 1.95).float()
    bonded.fill_diagonal_(1)
    one, other = (bonded @ bonded > 0).nonzero().T
    assert len(one) > 5 * protein.num_atoms
    n, ca, c = (make_sets.atoms_named(protein, name) for name in (N, CA, C))
    last = protein.num_residues - 1
    prolines = (protein.residue_type == RESIDUE_INDEX["PRO"]).nonzero().flatten().tolist()
    assert prolines and 20 not in prolines
    for residue in [1, 20, last - 1, last, *prolines]:
        turn = make_sets.turn_of(protein, residue, bond, 1.0)
        pos = demo.bend(protein.pos, [turn] if turn else [])
        assert (length(pos[one] - pos[other]) - length(protein.pos[one] - protein.pos[other])).abs().max() < 1e-9
        if bond == "phi" and residue in prolines:
            assert torch.equal(pos, protein.pos)
        elif residue < last:
            own = n[residue], ca[residue], c[residue]
            torsion = (c[residue - 1], *own) if bond == "phi" else (*own, n[residue + 1])
            after, before = (dihedral(*(x[i] for i in torsion)) for x in (pos, protein.pos))
            assert math.remainder(float(after - before) - 1.0, 2 * math.pi) == pytest.approx(0, abs=1e-9)


def test_bending_moves_both_oxygens_of_the_last_residue():
    protein = real_protein("1LCD_A")
    own = protein.atom_residue == protein.num_residues - 1
    stand_in = int(own.nonzero()[-1])  # the end of its side chain, called OXT
    names = protein.atom_name.clone()
    names[stand_in] = ATOM_INDEX["OXT"]
    turn = make_sets.turn_of(replace(protein, atom_name=names), protein.num_residues - 1, "psi", 1.0)
    pos = demo.bend(protein.pos, [turn])
    oxygen = int((own & (protein.atom_name == O)).nonzero())
    assert (pos != protein.pos).any(1).nonzero().flatten().tolist() == [oxygen, stand_in]


@pytest.mark.parametrize("name", ["1LCD_A", "2BEG", "2XHE"])
def test_the_ideal_cb_is_where_the_real_one_is(name):
    """Of every residue but glycine. On the wrong side of the backbone it would be 2.5 angstrom away."""
    protein = real_protein(name)
    n, ca, c, cb = (make_sets.atoms_named(protein, atom) for atom in (N, CA, C, ATOM_INDEX["CB"]))
    there = (n >= 0) & (c >= 0) & (cb >= 0)
    error = length(make_sets.ideal_cb(*(protein.pos[x[there]] for x in (n, ca, c))) - protein.pos[cb[there]])
    assert there.sum() > 40 and error.median() < 0.2 and error.max() < 0.6


def test_alanine_is_what_remains():
    protein = real_protein("1LCD_A", torch.float32)
    cut = make_sets.behind_cb(protein)
    for residue in range(protein.num_residues):
        own = protein.atom_residue == residue
        names = protein.atom_name[own].tolist()
        kept = [name for name in names if name <= O or name in (ATOM_INDEX["CB"], ATOM_INDEX["OXT"])]
        assert protein.atom_name[own & ~cut].tolist() == kept
    assert cut.sum() > 100
