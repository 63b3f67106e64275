"""Real conformers as second views: which are found, how they are matched, and that they reach the second view only."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import generator, real_protein, rigid_motion
from given import Given
from processes import run

from benchmarks.pdb import write_pdb
from siamdiff_min.data.build import open_origin, open_store
from siamdiff_min.data.conformers import ConformerCrops, matched
from siamdiff_min.data.crops import Crops, collate
from siamdiff_min.data.sources import Listing, Origin
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import ConfigError, StructureError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.pretraining.siamdiff import SiamDiff
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.parse import read_models, read_structure
from siamdiff_min.protein.protein import Protein
from siamdiff_min.protein.structure import Structure
from siamdiff_min.training.config import pretrain_options


def open_conformers(path, pairs=None):
    return open_store(path, conformers=True, pairs=pairs)


def single(name: str = "1LCD_A") -> Protein:
    protein = real_protein(name, torch.float32)
    return replace(protein, chain=torch.zeros_like(protein.chain))


def moved(protein: Protein, by: float) -> Protein:
    return replace(protein, pos=protein.pos + by)


def without(protein: Protein, residue: int, name: int) -> Protein:
    return protein.select_atoms((protein.atom_residue != residue) | (protein.atom_name != name))


def write_models(path, proteins: list[Protein]) -> None:
    texts = []
    for protein in proteins:
        write_pdb(path, protein)
        texts.append("\n".join(line for line in path.read_text().splitlines() if line[:4] in ("ATOM", "TER")))
    path.write_text("".join(f"MODEL     {i:4d}\n{text}\nENDMDL\n" for i, text in enumerate(texts, 1)) + "END\n")


@pytest.fixture
def folder(tmp_path):
    """An ensemble of three models, a protein alone, and the two files of a pair, one of which lacks residues."""
    data = tmp_path / "data"
    data.mkdir()
    one = single()
    write_models(data / "nmr.pdb", [one, moved(one, 1.0), moved(one, 2.0)])
    write_pdb(data / "alone.pdb", one)
    write_pdb(data / "long.pdb", moved(one, 3.0))
    write_pdb(data / "short.pdb", moved(one, 5.0).crop(2, one.num_residues - 4))
    (tmp_path / "pairs.tsv").write_text("id_a\tid_b\nlong\tshort\n")
    return data


def views(crops: Crops, name: str, epoch: int = 0) -> list[Protein]:
    protein, found = crops[epoch, list(crops.store.names).index(name)]
    assert found == name
    return protein.unpack()


def test_the_models_of_a_file_are_its_conformers(folder, tmp_path):
    crops = ConformerCrops(open_conformers(folder), None, 0)
    assert crops.about.startswith("1 of 4")
    drawn = set()
    for epoch in range(20):
        first, second = views(crops, "nmr", epoch)
        assert torch.equal(first.pos, read_structure(folder / "nmr.pdb").protein.pos)
        drawn.add(round((second.pos - first.pos).mean().item()))
        alone = views(crops, "alone", epoch)
        assert torch.equal(alone[0].pos, alone[1].pos)
    assert drawn == {1, 2}


@pytest.mark.parametrize("text", ["id_a\tid_b\nlong\tshort\n", "\nshort\tlong\nlong\tshort\n"])
def test_pairs_are_matched_and_what_one_lacks_is_left_out_of_both(folder, tmp_path, text):
    (tmp_path / "pairs.tsv").write_text(text)
    crops = ConformerCrops(open_conformers(folder, tmp_path / "pairs.tsv"), None, 0)
    assert crops.about.startswith("3 of 4")
    for name, difference in (("long", 2.0), ("short", -2.0)):
        first, second = views(crops, name)
        assert first.num_residues == second.num_residues == single().num_residues - 4
        assert torch.equal(first.residue_type, second.residue_type)
        assert torch.equal(first.atom_name, second.atom_name) and torch.equal(first.atom_residue, second.atom_residue)
        assert (second.pos - first.pos - difference).abs().max() < 2e-3


def test_a_crop_has_the_same_window_with_and_without_conformers(folder, tmp_path):
    plain = Crops(open_store(folder), 12, 7)
    crops = ConformerCrops(open_conformers(folder, tmp_path / "pairs.tsv"), 12, 7)
    for epoch in range(30):
        for index, name in enumerate(crops.store.names):
            (expected, _), (first, second) = plain[epoch, index], views(crops, name, epoch)
            rows = np.isin(expected.residue_number, first.residue_number)
            assert torch.equal(expected.select_residues(torch.from_numpy(rows)).pos, first.pos)
            shift = {"nmr": (1, 2), "alone": (0,), "long": (2,), "short": (-2,)}[name]
            assert round((second.pos - first.pos).mean().item()) in shift
            assert len(first.pos) > 60 or rows.sum() < 12


def test_both_draws_either_and_never_depends_on_the_order(folder):
    crops = ConformerCrops(open_conformers(folder), None, 3, both=True)
    real = [not torch.equal(*(view.pos for view in views(crops, "nmr", epoch))) for epoch in range(200)]
    assert 70 < sum(real) < 130
    assert real[:5] == [not torch.equal(*(v.pos for v in views(crops, "nmr", e))) for e in (0, 1, 2, 3, 4)]


def test_every_protein_draws_a_conformer_of_its_own(folder):
    """Of two equal ensembles the second view is not always the same model."""
    (folder / "again.pdb").write_text((folder / "nmr.pdb").read_text())
    crops = ConformerCrops(open_conformers(folder), None, 0)
    drawn = {tuple(views(crops, name, epoch)[1].pos[0, 0].item() for name in ("nmr", "again")) for epoch in range(30)}
    assert len(drawn) == 4


def as_structure(protein: Protein, names: str = "A") -> Structure:
    return Structure(protein, tuple(names), Counter())


def test_an_atom_or_a_ca_that_is_missing():
    first = single()
    for name in (CA + 1, CA):
        found = matched(as_structure(first), as_structure(without(first, 3, name)), "a", "b")
        lost = found[:, 0].isnan()
        assert lost.sum() == 1 and first.atom_name[lost] == name and first.atom_residue[lost] == 3
        assert torch.equal(found[~lost], first.pos[~lost])


def test_a_residue_of_another_type_is_not_the_same_residue():
    """A mutation between two conformers: its atoms have no partner, not even those of the same name."""
    first = single()
    types = first.residue_type.clone()
    types[7] = (types[7] + 1) % 20
    lost = matched(as_structure(first), as_structure(replace(first, residue_type=types)), "a", "b")[:, 0].isnan()
    assert torch.equal(lost, first.atom_residue == 7)


def test_a_residue_whose_conformer_lacks_its_ca_is_left_out(tmp_path):
    """Its other atoms too: at residue level a residue is its CA."""
    protein = single()
    other = protein.pos + 1
    other[(protein.atom_residue == 3) & (protein.atom_name == CA)] = torch.nan
    given = Given("a", replace(as_structure(protein), labels={"conformers": other[None]}))
    store = open_origin(Origin(tmp_path, "a", lambda: Listing([given], [])), store=tmp_path / "s")
    for view in views(ConformerCrops(store, None, 0), "a"):
        assert view.residue_index.tolist() == [i for i in range(51) if i != 3]


def test_residues_are_matched_by_their_sequence():
    """In a run of equal residues an alignment cannot tell which of them is missing; elsewhere it can."""
    first = single()
    first = replace(first, residue_type=torch.where(first.residue_index // 4 == 5, 0, first.residue_type))
    for lost, equal in ((21, range(20, 24)), (7, range(7, 8))):
        left = torch.arange(first.num_residues) != lost
        outside = torch.tensor([r not in equal for r in first.atom_residue.tolist()])
        other = moved(first.select_residues(left), 1.0)
        for names in ("A", "B"):  # the same chain, or another name for the only chain
            found = matched(as_structure(first), as_structure(other, names), "a", "b")
            assert np.allclose(found[outside], first.pos[outside] + 1, atol=1e-4)
            gone = first.atom_residue[found[:, 0].isnan()].unique()
            assert set(gone.tolist()) <= set(equal) and len(gone) >= 1
    renumbered = replace(moved(first, 1.0), residue_number=first.residue_number + 500)
    assert np.allclose(matched(as_structure(first), as_structure(renumbered), "a", "b"), first.pos + 1, atol=1e-4)


def test_a_chain_that_is_numbered_through_after_a_gap():
    """By number, most residues fit as well, and those behind the gap are lost or paired with others."""
    first = single()
    left = ~torch.isin(torch.arange(first.num_residues), torch.tensor([first.num_residues - 4, first.num_residues - 3]))
    other = moved(first.select_residues(left), 1.0)
    other = replace(other, residue_number=first.residue_number[: other.num_residues])
    found = matched(as_structure(first), as_structure(other), "a", "b")
    expected = np.where(left[first.atom_residue][:, None], first.pos.numpy() + 1, np.nan)
    assert np.allclose(found, expected, atol=1e-4, equal_nan=True)


def test_a_dimer_of_which_each_chain_lacks_an_end_does_not_slip():
    """Aligned as one, the last residues of a chain could pass for those of the next."""
    one = single()
    chains = [one.crop(0, one.num_residues - 2), moved(one, 50.0).crop(2, one.num_residues - 2)]
    whole = [one, moved(one, 50.0)]

    def dimer(parts):
        packed = Protein.pack([replace(p, chain=torch.full_like(p.chain, i)) for i, p in enumerate(parts)])
        packed = replace(packed, residue_protein=torch.zeros_like(packed.residue_protein), num_proteins=1)
        return as_structure(packed, "AB")

    found = matched(dimer(whole), dimer(chains), "a", "b").numpy()
    there = ~np.isnan(found[:, 0])
    assert np.allclose(found[there], dimer(whole).protein.pos[there], atol=1e-4)
    assert there.sum() == sum(p.num_atoms for p in chains)


def test_chains_are_matched_by_name_in_whatever_order():
    one = single()
    two = replace(moved(one, 50.0), chain=torch.ones_like(one.chain))
    pair = replace(Protein.pack([one, two]), residue_protein=torch.zeros(2 * one.num_residues).long(), num_proteins=1)
    both = [replace(moved(p, 1.0), chain=torch.full_like(one.chain, i)) for i, p in enumerate((two, one))]
    swapped = replace(Protein.pack(both), residue_protein=pair.residue_protein, num_proteins=1)
    found = matched(as_structure(pair, "AB"), as_structure(swapped, "BA"), "a", "b")
    assert np.allclose(found, pair.pos + 1, atol=1e-4)


@pytest.mark.parametrize(
    "damage", ["MODEL        4\nENDMDL\n", "MODEL        4\nATOM  bad\nENDMDL\n", "MODEL        4\n"]
)
def test_a_damaged_further_model_costs_that_model_only(folder, damage):
    text = (folder / "nmr.pdb").read_text().replace("END\n", "").replace("ENDMDLMODEL", "ENDMDL\nMODEL")
    (folder / "nmr.pdb").write_text(text.replace("ENDMDL", "ENDMDL\n").replace("\n\n", "\n") + damage)
    store = open_conformers(folder)
    assert len(store) == 4 and store.meta["dropped"]["conformers that do not match"] == 1
    assert ConformerCrops(store, None, 0).conformers(list(store.names).index("nmr")).shape[0] == 2


def test_unlike_structures_are_a_failure_with_a_reason_and_the_protein_stays(folder, tmp_path):
    half = single().crop(0, single().num_residues // 2)
    write_pdb(folder / "half.pdb", half)
    (tmp_path / "pairs.tsv").write_text("long\thalf\n")
    store = open_conformers(folder, tmp_path / "pairs.tsv")
    assert len(store) == 5 and store.meta["dropped"]["conformers that do not match"] == 2
    detail = f"shares {half.num_residues} residues of {single().num_residues} and {half.num_residues}"
    rows = (store.path / "failures.tsv").read_text().splitlines()
    assert [row.split("\t")[:3] for row in rows[1:]] == [
        [name, "no conformer", "a conformer of other residues"] for name in ("half", "long")
    ]
    assert detail in rows[2] and store.meta["seen"] == 5


@pytest.mark.parametrize(
    "text, said",
    [
        ("long\tshort\textra\n", "not two different names"),
        ("\nlong\tlong\n", "not two different names"),
        ("long\t\n", "not two different names"),
        ("id_a\tid_b\nlong\tnobody\n", "names that match no structure .1 of 2, e.g. 'nobody'; there is 'alone'"),
        (None, "cannot be opened"),
    ],
)
def test_a_table_that_cannot_be_used(folder, tmp_path, text, said):
    (tmp_path / "pairs.tsv").unlink() if text is None else (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(StructureError, match=said):
        open_conformers(folder, tmp_path / "pairs.tsv")


def test_without_any_conformer_or_with_a_table_for_a_store(folder, tmp_path):
    with pytest.raises(ConfigError, match="no structure has another conformer"):
        ConformerCrops(open_store(folder), None, 0)
    with pytest.raises(ConfigError, match="finished store"):
        open_conformers(open_conformers(folder).path, tmp_path / "pairs.tsv")
    assert ConformerCrops(open_conformers(open_conformers(folder).path), None, 0).about[0] == "1"


def test_stores_with_other_conformers_have_other_names_and_the_same_proteins(folder, tmp_path):
    plain, models, pairs = (
        open_store(folder),
        open_conformers(folder),
        open_conformers(folder, tmp_path / "pairs.tsv"),
    )
    assert (
        len({store.path for store in (plain, models, pairs)}) == len({s.checksum for s in (plain, models, pairs)}) == 3
    )
    for index in range(len(plain)):
        assert torch.equal(plain[index].pos, pairs[index].pos)


def test_all_models_are_read_in_order_from_both_formats(folder):
    found = list(read_models(folder / "nmr.pdb"))
    assert [round((s.protein.pos - found[0].protein.pos).mean().item()) for s in found] == [0, 1, 2]
    columns = ("pdbx_PDB_model_num", "auth_asym_id", "auth_seq_id", "label_comp_id", "label_atom_id")
    columns += ("Cartn_x", "Cartn_y", "Cartn_z")
    table = "data_x\nloop_\n" + "".join(f"_atom_site.{column}\n" for column in columns)
    table += "".join(f"{m} A 1 GLY CA {x} 0 0\n" for m, x in (("2", 5), ("7", 6)))
    assert [s.protein.pos[0, 0].item() for s in read_models("x.cif", table.encode())] == [5, 6]


def test_a_real_ensemble():
    """1LCD of the PDB (CC0), three NMR models, as in the test files of Biopython 1.88."""
    folder = Path(__file__).parent
    models = read_models(folder / "1LCD.pdb.gz")
    first, *others = (structure.protein for structure in models)
    assert first.num_residues == 51 and len(others) == 2
    for other in others:
        same = matched(as_structure(first), as_structure(other), "", "")
        assert np.array_equal(same, other.pos)  # the same atoms in the same order
        assert 0.05 < (first.pos - other.pos).norm(dim=1).median() < 3


# ---- the objective ---------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """The views that SiamDiff puts noise on, as they come."""
    seen = []
    add_noise = SiamDiff.add_noise

    def record(self, protein, *args):
        seen.append(protein)
        return add_noise(self, protein, *args)

    monkeypatch.setattr(SiamDiff, "add_noise", record)
    return seen


def objective(level: str, conformers: str = "models") -> SiamDiff:
    torch.manual_seed(0)
    return OBJECTIVES["siamdiff"](ENCODERS["gearnet"](level, "tiny"), level, conformers=conformers)


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_the_other_model_reaches_the_second_view_only(level, recorded):
    """Leakage: whatever the other conformer is, the first view and all that is drawn are the same."""
    first = single()
    seen = []
    for by in (0.5, 4.0):
        turn, shift = rigid_motion(int(by))
        bent = replace(
            first,
            pos=(first.pos.double() @ turn + shift).float() + by * (first.residue_index > 9)[first.atom_residue, None],
        )
        recorded.clear()
        pairs = [(Protein.pack([first, bent]), "a"), (Protein.pack([first, first]), "b")]
        loss, logs = objective(level)(collate(pairs)[0], generator(1))
        assert loss.isfinite() and logs["real_views"].sums.tolist() == [1, 2]
        seen.append([view.unpack() for view in recorded])
        given = objective(level).encoder.builder.select_nodes(bent)
        assert torch.equal(seen[-1][1][0].pos, given.pos)
    (first_a, second_a), (first_b, second_b) = seen
    assert torch.equal(first_a[0].pos, first_b[0].pos) and torch.equal(first_a[1].pos, first_b[1].pos)
    assert not torch.equal(second_a[0].pos, second_b[0].pos)
    assert torch.equal(second_a[1].pos, second_b[1].pos)  # simulated: neither model plays a part
    assert not torch.equal(second_a[1].pos, first_a[1].pos)


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_gradients_reach_the_other_model_from_the_second_view_only(level, recorded):
    first, other = single(), moved(single(), 2.0)
    batch = Protein.pack([first, other])
    batch = replace(batch, pos=batch.pos.requires_grad_())
    objective(level)(batch, generator())
    half = first.num_atoms
    for view, own in zip(recorded, (slice(0, half), slice(half, None))):
        (grad,) = torch.autograd.grad(view.pos.sum(), batch.pos, retain_graph=True)
        outside = torch.ones(len(grad), dtype=torch.bool)
        outside[own] = False
        assert grad[own].any() and not grad[outside].any()


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_a_protein_without_other_conformers_has_the_loss_of_siamdiff(level):
    first = single()
    expected, _ = objective(level, "simulated")(first, generator(3))
    loss, logs = objective(level)(Protein.pack([first, first]), generator(3))
    assert torch.equal(loss, expected) and logs["real_views"].sums.tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["models", "both"])
def test_training_with_conformers(folder, tmp_path, kind):
    options = "--level residue --size tiny --batch-size 2 --epochs 2 1 --valid-fraction 0 --device cpu --threads 1"
    options += f" --num-workers 1 --data {folder} --pairs {tmp_path}/pairs.tsv --out {tmp_path}/run --conformers {kind}"
    said = run("train", *options.split())
    assert f"conformers  {kind}: 3 of 4 proteins have others; 0 do not match" in said and "real_views" in said
    assert (tmp_path / "run" / "encoder.pt").is_file()


def test_options_that_do_not_go_together(capsys):
    for argv in (["--pairs", "x.tsv"], ["--conformers", "models", "--method", "diffpret"]):
        with pytest.raises((SystemExit, ConfigError)) as error:
            pretrain_options(argv)
        said = capsys.readouterr().err + str(error.value)
        assert "--pairs is for --conformers" in said or "--conformers is for siamdiff" in said
