"""Labels of the user's own: tables that are read or refused, splits, residues that are found, samples, the recipe."""

import gzip
import json
import pickle
import re
import runpy
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from Bio.PDB import PDBParser
from Bio.PDB.mmcifio import MMCIFIO
from conftest import real_protein

from benchmarks.pdb import write_pdb
from siamdiff_min import __version__, cli
from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.downstream.tasks import KINDS as TARGETS
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import ConfigError, StoreError, StructureError, checksum, read_rows
from siamdiff_min.protein.constants import ONE_LETTER, RESIDUES
from siamdiff_min.reading.sources import bundle_index, bundled
from siamdiff_min.reading.store import open_store
from siamdiff_min.sets.labelled_set import SPLITS
from siamdiff_min.sets.samples import SAMPLES
from siamdiff_min.tools.report import command as report
from siamdiff_min.tools.report.runs import read_predictions
from siamdiff_min.tools.table.table_set import table_set

ROOT = Path(__file__).parents[2]
NAMES = [f"p{i}" for i in range(6)]
PROTEIN = real_protein("1LCD_A", torch.float32)
PROTEIN = replace(PROTEIN, chain=torch.zeros_like(PROTEIN.chain))


@pytest.fixture
def folder(tmp_path):
    """Six structures, the last in a folder of its own; and a file without a label."""
    for i, name in enumerate([*NAMES, "other"]):
        path = tmp_path / "data" / ("x" if i == 5 else "") / f"{name}.pdb"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            write_pdb(file, PROTEIN.crop(i, 10 + i))
    return tmp_path


def write(folder, *lines):
    path = folder / "labels.tsv"
    if "name" not in lines[0]:
        residues = ("chain", "number") * (len(lines[0]) > 3)
        lines = (("name", *residues, "value", "split")[: len(lines[0])], *lines)
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return path


def opened(folder, *lines):
    """The store of the training split, with the labels of a table."""
    return table_set(write(folder, *lines), folder / "data", needed=["train"]).open("train", workers=1)


def values_of(store):
    return {name: store.labels(i)["values"] for i, name in enumerate(store.names)}


def write_mmcif(path, protein):
    """One chain as mmCIF, packed if the name ends so."""
    scratch = path.parents[1] / "scratch"
    write_pdb(scratch, replace(protein, chain=torch.zeros_like(protein.chain)))
    written = MMCIFIO()
    written.set_structure(PDBParser(QUIET=True).get_structure("p", scratch))
    written.save(str(scratch))
    text = scratch.read_bytes()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


# ---- structures ------------------------------------------------------------------------------------------------------


KINDS = {
    "regression": ["1", "2.5", "-3e1", "0", "7", "8"],
    "binary": ["1", "0", "1", "0.0", "1", "0"],
    "classes": ["b", "a", "b", "a", "c", "b"],
    "labels": ["b", "a,b", "a", "c", "a", "b,c,"],
}


def test_one_store_for_all_tables_and_nothing_beside_the_data(folder):
    """It is that of the structures alone; a checksum tells apart what is seen of it."""
    path = write(folder, ("name", "value"), *((f"{name}.pdb", i) for i, name in enumerate(NAMES)))
    plain, checksums = open_store(folder / "data"), set()
    text = path.read_text()
    for other in (text, text.replace("\t", ","), text.replace("p5.pdb\t5", "p5.pdb\t6")):
        path.write_text(other)
        data = table_set(path, folder / "data")
        stores = [data.open(split, workers=1) for split in SPLITS]
        assert {store.path for store in stores} == {plain.path}
        assert sorted(name for store in stores for name in store.names) == NAMES and len(plain) == 7
        checksums |= {store.checksum for store in stores}
    assert len(checksums) == 4 and {x.name for x in folder.iterdir()} == {"data", "data.store", "labels.tsv"}
    assert values_of(pickle.loads(pickle.dumps(stores[0]))) == values_of(stores[0])


def test_a_finished_store_takes_the_place_of_its_structures(folder):
    """As for pre-training: of a folder, or as `siamdiff build --min-plddt` prints it."""
    path = write(folder, *((name, i) for i, name in enumerate(NAMES)))
    data = table_set(path, folder / "data")
    assert data.notes == ["6 of 7 structures have a label; without one: other"]
    expected = [data.open(split, workers=1) for split in SPLITS]
    for store in (expected[0].path, folder / "data.store"):
        given = table_set(path, store)
        assert (given.about, given.notes) == (data.about, data.notes)
        for split, own in zip(SPLITS, expected):
            found = given.open(split, workers=1)
            assert (found.path, found.checksum) == (own.path, own.checksum) and values_of(found) == values_of(own)
    with pytest.raises(StructureError, match=r"names that match no structure \(1 of 7: p9;"):
        table_set(write(folder, *((name, 1) for name in [*NAMES, "p9"])), store)


def test_structures_that_cannot_be_read_are_counted(folder):
    (folder / "data" / "p0.pdb").write_text("<html>")
    lines = [(name, i, "train") for i, name in enumerate(NAMES)]
    store = opened(folder, *lines)
    finished = table_set(folder / "labels.tsv", store.path, needed=["train"]).open("train", workers=1)
    assert store.names == finished.names == NAMES[1:]
    assert store.not_found == finished.not_found == "1 structures (p0)"


def test_all_faults_of_names_are_named_at_once(folder):
    lines = [("p0", 1, "train"), ("p0.pdb", 2, "test"), ("q", "x", "train"), ("2-Mar", 4, "train")]
    with pytest.raises(StructureError) as found:
        table_set(write(folder, *lines), folder / "data")
    said = str(found.value)
    for fault in (
        "row 4: 'x' is no value",
        "rows 2, 3 are of p0, but differ: keep one",
        "no structure (a date? a spreadsheet may have changed it) (2 of 3: 2-Mar, q;",
        "leave none for test and valid",
    ):
        assert fault in said


def test_repeats_are_averaged_and_counted(folder):
    """Each under any name of its structure; of several columns each by itself."""

    def data_of(titles, *lines, **columns):
        return table_set(write(folder, ("name", *titles), *lines), folder / "data", needed=["train"], **columns)

    data = data_of(["value"], ("p0", 1), ("p1", 5), ("p0.pdb", 2), ("p0", 6))
    assert [row.value for rows in data.labels.values() for row in rows] == [3, 5]
    assert data.notes[0] == "3 rows are repeats, of 1 structures or residues: their mean is taken"
    data = data_of("xy", ("p0", 1, ""), ("p1", 5, 6), ("p0", 2, 8), value_column=["x", "y"])
    assert data.labels["p0"][0].value == [1.5, 8] and data.options["properties"] == ["x", "y"]
    data = data_of("xy", ("p0", 1, ""), ("p1", 0, 0), ("p0", 1, 1), value_column=["x", "y"])
    assert data.labels["p0"][0].value == [1, 1]
    data = data_of(["value"], ("p0", "a"), ("p1", "b"), ("p0", "a"))
    assert [row.value for rows in data.labels.values() for row in rows] == ["a", "b"]
    for values in ("abb", "100"):
        with pytest.raises(StructureError, match="rows 2, 4 are of p0, but differ: keep one"):
            data_of(["value"], *zip(["p0", "p1", "p0"], values))


@pytest.mark.parametrize("titles", [("chain", "resid"), ("batch", "number")])
def test_residues_without_their_columns_are_no_repeats(folder, titles):
    path = write(folder, ("name", *titles, "value"), ("p0", "A", 1, 1), ("p0", "A", 2, 2))
    columns = f"labels of residues need columns 'chain' and 'number', there is '{titles[1]}'"
    with pytest.raises(StructureError, match=f"rows 2, 3 are of p0(_A)?: {columns}"):
        table_set(path, folder / "data", needed=["train"])


def test_of_two_files_of_one_stem_each_name_means_its_own(folder):
    """p0.pdb and p0.cif are the structures p0 and p0.cif; a packed file is meant without its .gz too."""
    data = folder / "data"

    def values(*files):
        return values_of(opened(folder, *((file, value, "train") for value, file in enumerate(files))))

    for name in ("p0.cif", "p1.cif.gz"):
        write_mmcif(data / name, PROTEIN.crop(30, 10))
    assert values("p0.pdb", "p0.cif", "p1", "p1.cif") == {"p0": [0], "p0.cif": [1], "p1": [2], "p1.cif.gz": [3]}
    assert values("p0.cif", "p2") == {"p0.cif": [0], "p2": [1]}

    # With its folder, and beside a packed one of its name.
    (data / "a").mkdir()
    (data / "a" / "p0.pdb").write_bytes((data / "p2.pdb").read_bytes())
    (data / "p0.cif").rename(data / "a" / "p0.cif")
    (data / "p1.pdb").unlink()
    write_mmcif(data / "p1.cif", PROTEIN.crop(18, 10))
    found = values("a/p0.cif", "a/p0.pdb", "p1.cif", "p1.cif.gz")
    assert found == {"p0.cif": [0], "a/p0": [1], "p1": [2], "p1.cif.gz": [3]}


def test_splits_by_column(folder):
    lines = [(name, 1, split) for name, split in zip(NAMES, ["train", "val", "test"] * 2)]
    data = table_set(write(folder, *lines), folder / "data")
    listed = [data.open(split, workers=1).names for split in SPLITS]
    assert listed == [["p0", "p3"], ["p1", "p4"], ["p2", "p5"]]
    with pytest.raises(StructureError, match="4 structures leave none for valid"):
        table_set(write(folder, *[line for line in lines if line[2] != "val"]), folder / "data")
    alone = table_set(write(folder, *((name, 1, "test") for name in NAMES)), folder / "data", needed=["test"])
    assert alone.split_of == dict.fromkeys(NAMES, "test")  # enough to score
    with pytest.raises(StructureError, match="p0 has more than one split"):
        table_set(write(folder, ("p0", "A", 1, 0.5, "train"), ("p0", "A", 2, 0.5, "test")), folder / "data")


def test_residues_of_one_number_are_told_apart_by_chain_and_insertion_code(folder):
    """Two chains of five residues, each numbered 5, 5A, 5B, 6, -7; the rows of the table come in another order."""
    numbers = torch.tensor([5, 5, 5, 6, -7] * 2)
    codes = torch.tensor([*map(ord, " AB  " * 2)])
    chain = torch.arange(10) // 5
    protein = replace(PROTEIN.crop(0, 10), residue_number=numbers, insertion_code=codes, chain=chain)
    write_pdb(folder / "data" / "two.pdb", protein, ("L", "H"))
    places = [(chain, number) for number in ("5A", "-7", "5", "6", "5B") for chain in "HL"]
    store = opened(folder, *(("two", *place, row, "train") for row, place in enumerate(places)))
    assert not store.not_found
    sample = SAMPLES["table"](store)[0, 0]
    in_file = [(chain, number) for chain in "LH" for number in ("5", "5A", "5B", "6", "-7")]
    assert sample.names == tuple(f"two:{chain}:{number}" for chain, number in in_file)
    assert sample.target.tolist() == [places.index(place) for place in in_file]
    assert sample.focus.all()
    store = opened(
        folder,
        ("two", "H", "5A", 1, "train"),
        ("two", "H", "5C", 1, "train"),
        ("two", "A", "5", 1, "train"),
    )
    assert SAMPLES["table"](store)[0, 0].focus.nonzero().flatten().tolist() == [6]
    assert store.not_found == "2 labels of residues that are not in theirs (two:H:5C, two:A:5)"


def test_structures_without_their_labelled_residues_are_left_out(folder):
    """Numbers or chains of another scheme: the store has its structures, but none of the labels."""
    numbers = [900, *[int(PROTEIN.residue_number[8])] * 5]
    store = opened(folder, *((name, "A", number, 1, "train") for name, number in zip(NAMES, numbers)))
    assert store.names == NAMES[1:]
    assert store.not_found == "1 structures (p0), 1 labels of residues that are not in theirs (p0:A:900)"
    reason = r"data\.store.*: a split without any sample \(not found: 6 structures \(p0, p1, p2, \.\.\.\), 6 labels of"
    with pytest.raises(StoreError, match=reason):
        SAMPLES["table"](opened(folder, *((name, "A", 900, 1, "train") for name in NAMES)))


# ---- the task --------------------------------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize("kind, residues, level", [
    ("regression", False, "residue"), ("binary", True, "residue"), ("classes", False, "atom"), ("labels", True, "atom"),
    ("classes", True, "residue"), ("labels", False, "residue"),
])  # fmt: skip
def test_every_kind_is_learnt_by_heart(folder, kind, residues, level):
    torch.manual_seed(0)
    lines = [*zip(NAMES, KINDS[kind])]
    if residues:
        numbers = PROTEIN.residue_number.tolist()
        lines = [(name, "A", numbers[i + 5], text) for i, (name, text) in enumerate(lines)]
    data = table_set(write(folder, *lines), folder / "data", kind)
    assert data.options == {"kind": kind, "residues": residues, "each_chain": False, "column": "", "properties": []}
    samples = SAMPLES["table"](data.open("train", workers=1), classes=data.classes)
    batch, _ = pack_samples([samples[0, i] for i in range(4)])
    task = TASKS["table"](ENCODERS["gearnet"](level, "tiny"), len(data.classes) or None, **data.options)
    task.fit(samples.targets(), "tiny")
    optimizer, losses = torch.optim.Adam(task.parameters(), lr=1e-2), []
    while len(losses) < 60 and min(losses, default=1) > 0.1 * max(losses, default=1):
        optimizer.zero_grad()
        loss, logs = task(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0] and "loss_constant" in logs
    score = task.to_prediction(task.predict(batch)).detach().double().numpy()
    values = task.metrics(score, batch.target.numpy(), batch.groups)
    assert set(TARGETS[kind].measures) == values.keys() and values.get("spearman", values[task.measures[0]]) > 0.8


def test_a_metric_of_another_kind_is_refused():
    encoder = ENCODERS["gearnet"]("residue", "tiny")
    with pytest.raises(ConfigError, match="--metric rmse is not for binary, which has auroc, auprc, accuracy"):
        TASKS["table"](encoder, kind="binary", metric="rmse")
    assert TASKS["table"](encoder, metric="mae").decides == ("mae", "min")
    assert TASKS["table"](encoder, metric="spearman").decides == ("spearman", "max")


def test_a_residue_of_another_type_is_refused_and_numbers_from_one_are_pointed_out(folder):
    """The table of p2 counts from 1, its file does not: labels would lie on other residues."""
    numbers, letters = PROTEIN.residue_number.tolist()[2:14], [ONE_LETTER[t] for t in PROTEIN.residue_type[2:14]]
    assert 1 not in numbers

    def labelled(numbers, types):
        rows = [("p2", "A", *row, "train") for row in zip(numbers, types, range(12))]
        return opened(folder, ("name", "chain", "number", "residue", "value", "split"), *rows)

    store = labelled(numbers, [RESIDUES[ONE_LETTER.index(letter)] for letter in letters])
    assert values_of(store) == {"p2": [*range(12)]} and not store.not_found
    with pytest.raises(StructureError, match=r"p2: residues are numbered differently \(A:\d+ is \w, but \w in row \d+"):
        labelled(range(1, 13), letters)
    assert "labels of residues that are not in theirs (p2:A:1, " in labelled(range(1, 13), [""] * 12).not_found


# ---- several properties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_a_gap_changes_neither_loss_nor_gradient(kind):
    task = TASKS["table"](ENCODERS["gearnet"]("residue", "tiny"), 2, kind=kind, properties=("x", "y"))
    target = torch.tensor([[1.0, 0.0], [0.0, torch.nan], [torch.nan, 1.0]])
    output = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = task.loss(output, target).mean()
    there = ~target.isnan()
    alone = TASKS["table"](ENCODERS["gearnet"]("residue", "tiny"), kind=kind)
    expected = alone.loss(output[there][:, None], target[there]).mean()
    assert torch.allclose(loss, expected)
    (gradient,) = torch.autograd.grad(loss, output)
    (other,) = torch.autograd.grad(expected, output)
    assert torch.allclose(gradient, other) and not gradient[~there].any()


def test_metrics_of_each_property_and_their_mean():
    task = TASKS["table"](ENCODERS["gearnet"]("residue", "tiny"), 2, properties=("x", "y"))
    target = np.array([[1.0, 100], [2, np.nan], [3, 300], [np.nan, 600]])
    task.fit(target, "tiny")
    score = np.nan_to_num(target) + np.array([1, 10])
    values = task.metrics(score, target, ["a"] * 4)
    assert values["rmse:x"] == 1
    assert np.isclose(values["rmse:y"], 10)
    assert values["spearman"] == 1
    x, y = np.nanstd(target, axis=0)
    assert np.isclose(values["rmse"], (1 / x + 10 / y) / 2)
    assert task.direction("rmse:x") == "min"
    baseline = task.baseline(target)
    assert baseline == {"mean": [2, 1000 / 3], "median": [2, 300]}
    constant = task.baseline_metrics(baseline, target, ["a"] * 4)
    assert constant["mae:y"] == (200 + 0 + 300) / 3
    assert np.isclose(constant["rmse:x"] ** 2, 2 / 3)


# ---- a table of a lab, from its files to a page and to predictions ---------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Path:
    """Twelve structures in four formats, and the table that a German Excel makes of two properties of them."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "files").mkdir()
    rows = ["\ufeffProtein;Datum;Länge;halb;Bemerkung"]
    chains = [f"{row['pdb_id']}_{row['chains']}" for row in bundle_index() if len(row["chains"]) == 1]
    for i in range(12):
        path = folder / "files" / f"p{i}{('.pdb', '.pdb.gz', '.cif', '.cif.gz')[i % 4]}"
        protein = bundled(chains[10 * i]).protein.crop(0, 10 + 4 * i)  # unrelated sequences
        if ".cif" in path.name:
            write_mmcif(path, protein)
        else:
            write_pdb(folder / "one.pdb", replace(protein, chain=torch.zeros_like(protein.chain)))
            text = (folder / "one.pdb").read_bytes()
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        half = "n.d." if i == 3 else "" if i % 4 == 1 else f"{5 + 2 * i}"
        rows.append(f'p{i};1.2.24;{10 + 4 * i},50;{half};"gut; aber"')
    (folder / "lab.csv").write_bytes("\r\n".join(rows).encode())
    return folder


QUICK = ["--num-workers", "0", "--device", "cpu", "--threads", "1"]
TINY = ["--level", "residue", "--size", "tiny"]
pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture
def in_lab(lab, monkeypatch):
    monkeypatch.chdir(lab)
    return lab


def finetune(*options) -> None:
    assert cli.run("finetune", [*map(str, options), *QUICK]) == 0


def tabled(labels, *options) -> None:
    """Learn a table of labels for the structures in `files`."""
    finetune("--task", "table", "--data", "files", "--labels", labels, *options)


def write_table(name, *lines) -> str:
    Path(name).write_text("\n".join(lines))
    return name


def results_of(out) -> dict:
    return json.loads(Path(out, "results.json").read_text())


@pytest.mark.repeats
@pytest.mark.parametrize("columns", [["Länge", "halb"], ["Länge"]])
def test_from_a_table_of_a_lab_to_a_page_and_predictions(in_lab, columns, capsys):
    """Without training: a linear head in closed form, every structure scored by a head that has not seen it."""
    out, several = Path("-".join(columns)), len(columns) == 2
    table = ["lab.csv", "--missing", "n.d."]
    frozen = ["--value-column", *columns, "--freeze", "--folds", 4, "--init-from", "siamdiff-residue"]
    tabled(*table, *frozen, "--out", out, "--predict", "files/p3.cif.gz", "files/p4.pdb")
    said = capsys.readouterr().out
    for sentence in ("decimal commas", "columns that are not read: Datum", "4 folds     12 samples", "fewer than 4 in"):
        assert sentence in said
    assert said.count("predicted   1 structures") == 2
    assert "warning     the model has learned from 1 of them (p3)" in said
    assert ("without low and high, as too few were measured: halb" in said) == several

    # Scores, predictions with what they are worth, the page, the model again.
    results = results_of(out)
    scored = read_predictions(out / "seed-0" / "predictions.tsv")
    assert scored["target"].shape == (12, len(columns))
    name = "spearman:Länge" if several else "spearman"
    assert results["mean"][name] > 0.8 and results["interval"][name] and results["options"]["linear"]
    (path,) = out.glob("predicted-p3-*.tsv")
    titles, row, *_ = (line.split("\t") for line in path.read_text().splitlines())
    row = dict(zip(titles, row))
    of = ":Länge" if several else ""
    assert {f"low{of}", f"high{of}", "learned"} <= {*titles} and "low:halb" not in titles
    assert ("verdict" in titles) == ("do not rely on these" in said or "the encoder may add nothing to it" in said)
    assert abs(float(row[f"prediction{of}"]) - 22.5) < 5
    best = f"{out}/seed-0/best.pt"
    assert row["model"] == f"{best} {checksum(best)[:12]} {__version__}"
    page = report.write_page([out]).read_text()
    assert ("halb: 4 of 12 rows were not measured" in page) == several
    assert ("root mean squared error, mean in standard deviations" in page) == several
    assert f"<h1>{', '.join(columns)}: regression of structures" in page and "Predicted against true" in page

    # Scored on what it has not learned from, or on what the table sends to test.
    model = ["--eval-only", out / "seed-0" / "best.pt", "--data", "files", "--labels"]
    with pytest.raises(StoreError, match=r"12 structures leave none for test: .* A column `split` of the table says"):
        finetune(*model, *table)
    lines = Path("lab.csv").read_text().splitlines()
    of_split = [f"{line};{'test' if i < 6 else 'train'}" for i, line in enumerate(lines[1:])]
    finetune(*model, write_table("split.csv", f"{lines[0]};split", *of_split), *table[1:])
    assert "warning     the model has learned from 6 of 6 structures in test" in capsys.readouterr().out


def test_several_properties_are_trained_together(in_lab):
    columns = ["--value-column", "Länge", "halb", "--missing", "n.d."]
    tabled("lab.csv", *columns, *TINY, "--max-steps", 2, "--batch-size", 4, "--out", "trained")
    results = results_of("trained")
    assert {"rmse", "rmse:Länge", "rmse:halb"} <= results["mean"].keys() and results["answer"]["mean"][0] > 10


def test_a_model_of_chains_predicts_chains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    rows = ["pdb,chain,value"]
    for i in range(4):
        write_pdb(f"files/f{i}.pdb", replace(PROTEIN.crop(i, 30), chain=torch.arange(30) // 15), ("A", "B"))
        rows += [f"f{i},{chain},{i + 2 * k}" for k, chain in enumerate("AB")]
    tabled(write_table("lab.csv", *rows), "--freeze", "--folds", 2, *TINY, "--out", "run", "--predict", "files/f2.pdb")
    finetune("--eval-only", "run/seed-0/best.pt", "--predict", "files", "--store", "kept")
    names = [f"f{i}_{chain}" for i in range(4) for chain in "AB"]
    for pattern, expected in (("run/predicted-*.tsv", names[4:6]), ("run/seed-0/eval/predicted-files-*.tsv", names)):
        (path,) = Path().glob(pattern)
        assert sorted(line.split("\t")[0] for line in path.read_text().splitlines()[1:]) == expected


VECTORS = np.random.default_rng(0).normal(size=(12, 5))


def learn_vectors(lines, vectors=VECTORS, *options, out="out") -> str:
    """Learn a table of these lines over given vectors of p0, p1, ...; returns the model."""
    np.savez("vectors.npz", id=[f"p{i}" for i in range(len(vectors))], mean=vectors)
    tabled(write_table("own.csv", *lines), "--freeze", "--features", "vectors.npz", "--out", out, *options)
    return f"{out}/seed-0/best.pt"


def test_a_model_of_before_the_learned_and_the_families_were_kept(in_lab, capsys):
    lines = ["name,value", *(f"p{i},{x[0]}" for i, x in enumerate(VECTORS))]
    best = learn_vectors(lines, VECTORS, "--folds", 3)
    content = torch.load(best, weights_only=True)
    for name in ("learned", "learned_names", "within_of"):
        del content[name]
    torch.save(content, best)
    finetune("--eval-only", best, "--features", "vectors.npz", "--predict")
    assert "values of structures like those of the table lie between\n" in capsys.readouterr().out
    finetune("--eval-only", best, "--features", "vectors.npz", "--labels", "own.csv", "--data", "files")
    assert "warning     a model of before 0.5 does not say what it has learned from" in capsys.readouterr().out


def test_vectors_of_ones_own(in_lab, capsys):
    """The head of given vectors stands on the same folds; a model of them has no encoder."""
    vectors = VECTORS + np.arange(12)[:, None] * [4, 0, 0, 0, 0]
    lines = ["name,value", *(f"p{i},{x[0]}" for i, x in enumerate(vectors))]
    best = learn_vectors(lines, vectors, "--folds", 3)
    assert "encoder     none, vectors of vectors.npz" in capsys.readouterr().out
    results = results_of("out")
    assert results["mean"]["rmse"] < 2 and results["verdict"]["rmse"] == "better" and results["floor"]["mean"]
    np.savez("new.npz", id=np.array([b"p3", b"q"]), mean=vectors[[3, 4]])
    model = ["--eval-only", best, "--features"]
    finetune(*model, "new.npz", "--predict")
    assert "the model has learned from 1 of them (p3)" in capsys.readouterr().out
    titles, *rows = read_rows(next(Path("out/seed-0/eval").glob("predicted-new-*.tsv"))).values()
    assert titles[-1] == "learned" and [row[-1] for row in rows] == ["yes", "no"]
    assert np.allclose([float(row[2]) for row in rows], vectors[[3, 4], 0], atol=2)

    # Scored on a table with three more than the model's.
    nine = ["--eval-only", learn_vectors(lines[:10], vectors, "--folds", 3, out="nine"), "--features", "vectors.npz"]
    finetune(*nine, "--labels", write_table("more.csv", *lines), "--data", "files")
    said = "left out: 9 structures that the model has learned from (p0, p1, p2, ...)"
    assert said in capsys.readouterr().out and results_of("nine/seed-0/eval")["counts"]["samples"] == 3

    np.savez("twice.npz", id=["p0", "p1", "p0"], mean=vectors[:3])
    np.savez("few.npz", id=["p0"], mean=vectors[:1])
    few = [
        "--task",
        "table",
        "--data",
        "files",
        "--labels",
        "own.csv",
        "--freeze",
        "--folds",
        3,
        "--features",
        "few.npz",
    ]
    for options, error, reason in (
        ([*model[:2], "--predict", "files"], ConfigError, r"was fitted to vectors of vectors\.npz: give it --features"),
        ([*model, "twice.npz", "--predict"], StructureError, "1 structures are there twice: p0"),
        (
            [*model, write_table("vectors.csv", "id,1", "p0,1.0"), "--predict"],
            StructureError,
            "no vectors as siamdiff embed",
        ),
        ([*few, "--out", "few"], ConfigError, r"--features few\.npz has no finite vector of p"),
        ([*few, "--init-from", "x"], ConfigError, "takes the place of the encoder: with --freeze alone"),
    ):
        with pytest.raises(error, match=reason):
            finetune(*options)


def test_small_folds_and_families_are_said(in_lab, capsys):
    learn_vectors(["name,value", *(f"p{i},{i}" for i in range(12))], VECTORS, "--folds", 12)
    assert "fewer than 4 in a fold scores come out too low, and may never be" in capsys.readouterr().out
    learn_vectors(["name,value,family", *(f"p{i},{i},f{i // 3}" for i in range(12))], VECTORS, "--folds", 3)
    said = capsys.readouterr().out
    assert "3 folds of 4 different structures" in said and "12 samples of 4 families (relatives count once)" in said


def test_relatives_stay_together_and_their_scores_stand_beside(tmp_path, monkeypatch, capsys):
    """Twelve families of three relatives, found by their sequences: a value of each family, vectors that know it."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    Path("files").mkdir()
    whole = bundled("1A19_A").protein.alpha_carbons()
    family = np.arange(36) // 3
    ancestors = random.integers(20, size=(12, whole.num_residues))
    for i in range(36):
        changed = random.random(whole.num_residues) < 0.35
        types = np.where(changed, random.integers(20, size=whole.num_residues), ancestors[family[i]])
        write_pdb(f"files/p{i}.pdb", replace(whole, residue_type=torch.from_numpy(types)))
    value = random.normal(size=12)[family]
    vectors = random.normal(size=(12, 40))[family] + 0.1 * random.normal(size=(36, 40))
    lines = ["name,value", *(f"p{i},{x}" for i, x in enumerate(value))]
    learn_vectors(lines, vectors, "--folds", 6)
    results = results_of("out")
    beside = results["with_relatives"]
    assert results["counts"]["families"] == 12 and beside["sequences"] == 36 and beside["interval"]["rmse"]
    assert beside["mean"]["spearman"] > 0.9 > 0.6 > results["mean"]["spearman"]
    assert results["decision"]["baseline"] == "untold"
    assert "<th>with relatives" in report.write_page([Path("out")]).read_text()
    said = capsys.readouterr().out
    assert "36 samples of 12 families (relatives count once)" in said and "with relatives" in said

    # Three families: too few for a verdict, and for four folds. Two cannot be scored apart.
    learn_vectors(lines[:10], vectors[:9], "--folds", 4, out="few")
    assert results_of("few")["decision"]["few"] == {"count": 3, "of": "families", "needed": 8}
    assert "3 families are too few for 4 folds that keep relatives together: 3 folds" in capsys.readouterr().out
    learn_vectors(lines[:7], vectors[:6], "--folds", 3, out="two")
    assert "relatives are in other folds, and nothing is said of new families" in capsys.readouterr().out


UNLEARNT = {  # rows of p0, p1, ... with these titles; options; why nothing is learned
    "without a frozen encoder": ("value", str, ["--folds", 4], "--folds 4 needs --freeze"),
    "more folds than structures": (
        "value", str, ["--freeze", "--folds", 13], "there are 12 different structures .*one of 13 folds leaves 0"),
    "two families": (
        "value,family", lambda i: f"{i},{'ab'[i % 2]}", ["--freeze", "--folds", 2],
        r"there are 2 different structures .*one of 2 folds leaves 1 of them"),
    "a property of two": (
        "kd,tm", lambda i: f"{i},{i if i < 2 else ''}", ["--freeze", "--folds", 5, "--value-column", "kd", "tm"],
        "tm was measured for 2 different structures"),
    "a property of one value": (
        "kd,tm", lambda i: f"{i},1", ["--freeze", "--value-column", "kd", "tm"], "all values of tm are the same"),
    "one value": ("value", lambda i: "1", [], "all values are the same: there is nothing to tell apart"),
    "one value, vectors": (
        "value", lambda i: "1", ["--freeze", "--features", "one.npz"], "nothing to tell apart"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNLEARNT)
def test_what_cannot_be_learned_is_named_before_anything_is_embedded(in_lab, case, capsys):
    titles, row, options, reason = UNLEARNT[case]
    table = write_table("un.csv", f"name,{titles}", *(f"p{i},{row(i)}" for i in range(12)))
    np.savez("one.npz", id=[f"p{i}" for i in range(12)], mean=VECTORS)
    tiny = [] if "--features" in options else TINY
    with pytest.raises(ConfigError, match=reason):
        tabled(table, *options, *tiny, "--out", "no")
    assert not Path("no/seed-0/best.pt").exists() and "head " not in capsys.readouterr().out


def test_a_table_may_lack_classes_of_a_model(in_lab, capsys):
    classes = [f"p{i},{'abc'[i % 3]}" for i in range(12)]
    best = learn_vectors(["name,value", *classes], VECTORS, "--folds", 3)
    model = ["--eval-only", best, "--features", "vectors.npz", "--data", "files", "--labels"]
    for lines, absent in (
        (classes[::3], "2 of 3 classes of the model do not occur here: b, c"),
        (classes[:2], "here: c"),
    ):
        finetune(*model, write_table("fewer.csv", "name,value,split", *(f"{line},test" for line in lines)))
        assert absent in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"was trained on other labels than those of fewer\.csv; unknown to it: d$"):
        finetune(*model, write_table("fewer.csv", "name,value", "p0,a", "p1,d"))


# ---- the recipe, as printed ------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="this Python unpacks no archives")
def test_the_recipe_runs_as_printed(tmp_path, monkeypatch, capsys):
    """docs/extending.md; shorter by --max-steps, and with fewer structures."""
    text = (ROOT / "docs" / "extending.md").read_text()
    commands = re.search(r"<!-- run -->\n```bash\n(.*?)```", text, re.S)[1]
    monkeypatch.chdir(tmp_path)
    runpy.run_path(ROOT / "examples" / "own_labels.py")
    for name in ("labels.tsv", "residues.tsv"):
        header, *lines = (tmp_path / name).read_text().splitlines()
        few = sorted({line.split("\t")[0] for line in lines})[:10]
        kept = [line for line in lines if line.split("\t")[0] in few]
        (tmp_path / name).write_text("\n".join([header, *kept]) + "\n")
    said = []
    for command in commands.splitlines()[1:]:
        program, file, *arguments = command.split()
        assert (program, file) == ("python", "finetune.py")
        more = ["--num-workers", "0", "--device", "cpu"] + ([] if "--eval-only" in command else ["--max-steps", "2"])
        assert cli.run("finetune", [*arguments, *more]) == 0
        said.append(capsys.readouterr().out)
    assert "regression on 10 structures" in said[0] and "pearson" in said[0]
    assert re.search(r"regression on \d{3,4} residues of 10 structures", said[1])
    predicted = next(Path("runs/neighbours/seed-0/eval").glob("predicted-1A19_A-*.tsv")).read_text().splitlines()
    assert len(predicted) == 90 and predicted[1].startswith("1A19_A:A:1\t1A19_A\t") and "predicted   1 struc" in said[2]
    model = ["--eval-only", "runs/neighbours/seed-0/best.pt", "--data", "structures", "--device", "cpu"]
    assert cli.run("finetune", [*model, "--labels", "residues.tsv", "--num-workers", "0"]) == 0
    with pytest.raises(ConfigError, match=r"was trained on other labels than those of labels\.tsv"):
        cli.run("finetune", [*model, "--labels", "labels.tsv"])
    with pytest.raises(ConfigError, match="--task table needs --labels, a file, and --data"):
        cli.run("finetune", ["--task", "table", "--labels", "labels.tsv", "--device", "cpu"])
