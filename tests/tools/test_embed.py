"""Embeddings depend on the structure alone; files of any kind and quality end in a table or in the list of failures."""

import csv
import gzip
import io
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from multiprocessing import synchronize
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
from Bio.PDB import MMCIFIO, PDBParser
from helpers import as_mmcif, as_pdb, residue

import siamdiff_min
from siamdiff_min import cli, machine
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.weights import save_encoder_file
from siamdiff_min.files import ConfigError, StructureError, checksum, import_plugins
from siamdiff_min.protein.constants import ATOM_NAMES
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import Source, bundle_path
from siamdiff_min.tools.build import chains_of
from siamdiff_min.tools.embed import command as embed
from siamdiff_min.tools.embed.command import Embedder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """The twelve smallest of the bundled chains, as files."""
    folder = tmp_path_factory.mktemp("files")
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        members = sorted((m for m in archive if m.isfile() and m.name.endswith(".gz")), key=lambda m: m.size)[:12]
        for member in members:
            (folder / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    return [folder / Path(member.name).name for member in members]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, Path]:
    """An encoder with random weights at both levels, as files."""
    folder = tmp_path_factory.mktemp("encoders")
    for level in ("atom", "residue"):
        torch.manual_seed(0)
        save_encoder_file(folder / level, ENCODERS["gearnet"](level, "tiny"), "gearnet", level, "tiny", "paper")
    return {level: folder / level for level in ("atom", "residue")}


@pytest.fixture(scope="module", params=["atom", "residue"])
def checkpoint(request, encoders) -> Path:
    return encoders[request.param]


@pytest.fixture(scope="module")
def weights(encoders) -> Path:
    return encoders["residue"]


def stem(file: Path) -> str:
    return file.name.removesuffix(".pdb.gz")


@pytest.mark.repeats
def test_embeddings_are_those_of_the_encoder_whatever_the_order_and_batch(checkpoint, files):
    encoder = siamdiff_min.load_encoder(checkpoint, "cpu")
    structures = [read_structure(file) for file in files[:4]]
    with torch.inference_mode():
        expected = [encoder(structure.protein).residue.numpy() for structure in structures]
    for batch_nodes, order in [(None, range(4)), (10**6, (3, 0, 1, 2)), (200, range(4))]:
        many = encoder.embed(*[files[i] for i in order], batch_nodes=batch_nodes)
        assert [e.id for e in many] == [stem(files[i]) for i in order]
        for i, embedding in zip(order, many):
            structure, vectors = structures[i], expected[i]
            assert embedding.per_residue.shape == (len(embedding.sequence), vectors.shape[1]) == vectors.shape
            assert np.abs(embedding.per_residue - vectors).max() <= 1e-6 * np.abs(vectors).max()
            assert np.allclose(embedding.mean, vectors.mean(0), rtol=1e-5, atol=1e-6)
            assert set(embedding.chain) == set(structure.chain_names)
            assert embedding.residue_number.tolist() == structure.protein.residue_number.tolist()


KINDS = "SER", "VAL", "LYS", "ALA"


def embed_here(*argv) -> int:
    return cli.main(["embed", "--device", "cpu", "--num-workers", "0", *map(str, argv)])


def columns(path: Path) -> dict[str, list]:
    """All of an .npz; None in place of nan, which no other nan equals."""
    with np.load(path, allow_pickle=False) as arrays:
        found = {name: array.tolist() for name, array in arrays.items()}
    for name in {"plddt", "residue_plddt"} & found.keys():
        found[name] = [None if value != value else value for value in found[name]]
    return found


def embedded(out: Path, *argv, status: int = 0) -> dict[str, list]:
    """The table that the command writes."""
    assert embed_here(*argv, "--out", out) == status
    return columns(out)


def test_a_folder_a_tar_and_a_file_some_of_them_broken(weights, tmp_path, files, capsys):
    folder, out = tmp_path / "mixed", tmp_path / "sub" / "e.npz"
    folder.mkdir()
    shutil.copy(files[0], folder)
    (folder / "broken.pdb").write_text("<html>not found</html>")
    (folder / "notes.txt").write_text("not a structure")
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(files[10], files[10].name)
        archive.add(files[0], "again/" + files[0].name)  # the same name as one in the folder
    given = folder, tmp_path / "more.tar", files[11]
    found = embedded(out, *given, "--checkpoint", weights, "--include", "mean", "per_residue")
    said = capsys.readouterr()
    assert "seen 6 = embedded 4 + skipped 1 + failed 1" in said.out
    assert f"failed: {folder / 'broken.pdb'}: an HTML or XML page" in said.err
    assert "skipped: not a structure file 1" in said.err
    assert found["failed"] == [str(folder / "broken.pdb")]
    expected = siamdiff_min.load_encoder(weights, "cpu").embed(files[11])
    row = found["id"].index(expected.id)
    residues = slice(*found["residue_offset"][row : row + 2])
    assert np.allclose(found["per_residue"][residues], expected.per_residue, rtol=1e-5, atol=1e-6)
    assert "".join(found["residue_type"][residues]) == expected.sequence


def test_names_do_not_depend_on_how_structures_are_given(weights, tmp_path):
    """As one folder, its files, an archive: two structures P07, another file of one of them, and one elsewhere."""
    data = tmp_path / "data"
    (data / "sub").mkdir(parents=True)
    a, b, c, d = ([row for n in range(5) for row in residue(kind, n, x=2.1 * n + ord(kind[0]))] for kind in KINDS)
    texts = {"P07.pdb": as_pdb(a), "P07.cif": as_mmcif(b), "P08.pdb": as_pdb(b), "sub/P08.pdb": as_pdb(c)}
    for name, text in (texts | {"other.pdb": as_pdb(d), "other.cif": as_mmcif(d)}).items():
        (data / name).write_text(text)
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(data, "")
    inside = sorted(file for file in data.iterdir() if file.is_file())
    vectors = []
    for given in ([data], [*inside, data / "sub"], [data, data / "P07.cif"], [tmp_path / "data.tar"]):
        found = embedded(tmp_path / f"{len(vectors)}.npz", *given, "--checkpoint", weights)
        vectors.append(dict(zip(found["id"], found["mean"])))
        assert found["skipped"][-1].endswith("other.cif")
    assert sorted(vectors[0]) == ["P07", "P07.cif", "P08", "other", "sub/P08"] and vectors == vectors[:1] * 4
    assert vectors[0]["P07.cif"] == vectors[0]["P08"] != vectors[0]["P07"]


def test_whatever_holds_a_structure_is_taken(weights, files, tmp_path):
    """One gives one, many give a list in order: paths, proteins, structures, Biopython's objects, lists."""
    embedder = siamdiff_min.load_encoder(weights, "cpu")
    data = gzip.decompress(files[0].read_bytes()).decode()
    one, structure = embedder.embed(files[0]), read_structure("x", data)
    theirs = PDBParser(QUIET=True).get_structure("1abc", io.StringIO(data))
    (chain,) = theirs[0]
    made = siamdiff_min.Protein.from_ca(structure.protein.alpha_carbons().pos.numpy(), one.sequence)
    writer = MMCIFIO()
    writer.set_structure(theirs)
    other = str(tmp_path / "two.mmcif")
    writer.save(other)

    def same(found):
        return np.abs(found.mean - one.mean).max() < 1e-5 and found.sequence == one.sequence

    many = embedder.embed(structure.protein, made, structure, theirs, theirs[0], chain, tmp_path)
    assert [e.id for e in many] == ["0", "1", "2", "1abc", "1abc", f"1abc_{chain.id}", "two"]
    assert all(map(same, many))
    alone = [embedder.embed(given).id for given in (structure, chain, other)]
    assert alone == ["0", f"1abc_{chain.id}", "two"]
    nested = embedder.embed([files[0], [structure, theirs], (str(files[1]),)])
    assert [e.id for e in nested] == [stem(files[0]), "1", "1abc", stem(files[1])]
    assert embedder.embed([]) == [] and len(embedder.embed(iter([made]))) == 1
    assert [e.id for e in embedder.embed(siamdiff_min.Protein.pack([structure.protein, made]))] == ["0", "1"]
    for wrong in (3, [structure, None], np.zeros((4, 3))):
        with pytest.raises(ConfigError, match=r"embed takes paths, .* it was given (int|NoneType|float64)"):
            embedder.embed(wrong)


def test_what_cannot_be_embedded_is_an_error_that_names_it(weights, tmp_path, files):
    embedder = siamdiff_min.load_encoder(weights, "cpu")
    bad, absent, empty = (tmp_path / name for name in ("x.pdb", "absent.pdb", "empty"))
    bad.write_text("nothing")
    empty.mkdir()
    for given, options, kind, message in [
        (absent, {}, StructureError, "absent.pdb: cannot be opened"),
        ([bad], {}, StructureError, "x.pdb: no atoms in it"),
        (empty, {}, StructureError, "empty: no structure in it"),
        (files[0], {"include": ["atom"]}, ConfigError, "include has atom"),
    ]:
        with pytest.raises(kind, match=message):
            embedder.embed(files[1], given, **options)


@pytest.mark.parametrize("include", [["per_atom"], ["per_atom", "mean", "per_residue", "mean"]])
def test_vectors_of_atoms(include, checkpoint, files, tmp_path):
    """Each is of the atom that is named beside it; their means over a residue are the residue's vectors."""
    embedder = siamdiff_min.load_encoder(checkpoint, "cpu")
    path = files[0]
    e = embedder.embed(path, include=["per_atom", "per_residue"])
    view = embedder.builder.select_nodes(read_structure(path).protein)
    assert e.per_atom.shape == (view.num_atoms, len(e.mean))
    assert (len(e.per_atom) == len(e.sequence)) is (checkpoint.name == "residue")
    assert e.atom_name == [ATOM_NAMES[name] for name in view.atom_name]
    assert e.atom_residue.tolist() == view.atom_residue.tolist()
    assert np.allclose(e.per_atom[e.atom_residue == 3].mean(0), e.per_residue[3], rtol=1e-5, atol=1e-6)
    assert embedder.embed(path).per_atom.shape == (0, len(e.mean))
    found = embedded(tmp_path / "e.npz", files[1], path, "--checkpoint", checkpoint, "--include", *include)
    row = found["id"].index(e.id)
    atoms = slice(*found["atom_offset"][row : row + 2])
    residues = slice(*found["residue_offset"][row : row + 2])
    assert np.abs(found["per_atom"][atoms] - e.per_atom).max() <= 1e-5 * np.abs(e.per_atom).max()
    assert found["atom_name"][atoms] == e.atom_name
    assert found["atom_residue"][atoms] == e.atom_residue.tolist()
    assert found["residue_number"][residues] == e.residue_number.tolist()


def test_what_holds_no_vectors_of_ours_is_never_replaced(weights, tmp_path, files):
    np.savez(other := io.BytesIO(), x=np.zeros(3), id=np.zeros(2))
    contents = b"my notes", b"PK, and then text", other.getvalue(), b"name,x,y\n"
    for name, content in itertools.product(("mine.npz", "mine.csv"), contents):
        out = tmp_path / name
        out.write_bytes(content)
        before = out.read_bytes()
        with pytest.raises(SystemExit, match="exists and holds no vectors of siamdiff embed, so it is not replaced"):
            embed_here(files[0], "--checkpoint", weights, "--out", out)
        assert out.read_bytes() == before and os.listdir(tmp_path) == [name]
        out.unlink()


def csv_and_npz(tmp_path: Path, *argv) -> tuple[list[str], list[list[str]], dict[str, list]]:
    """Titles and rows of the .csv, which is written over itself, and the .npz of the same vectors."""
    for _ in range(2):
        assert embed_here(*argv, "--out", tmp_path / "e.csv") == 0
    head, *rows = csv.reader((tmp_path / "e.csv").read_text().splitlines())
    return head, rows, embedded(tmp_path / "e.npz", *argv)


def test_a_csv_has_a_row_for_every_structure(weights, tmp_path, files):
    shutil.copy(files[1], tmp_path / "with, comma.pdb.gz")
    given = files[0], tmp_path / "with, comma.pdb.gz", "--checkpoint", weights
    head, rows, found = csv_and_npz(tmp_path, *given)
    assert found["encoder"] == [str(weights), checksum(weights), siamdiff_min.__version__]
    assert [*head[:3], head[-1]] == ["name", "v1", "v2", "encoder"]
    assert [row[0] for row in rows] == found["id"] == [stem(files[0]), "with, comma"]
    assert {row[-1] for row in rows} == {" ".join(found["encoder"])}
    vectors = np.array([row[1:-1] for row in rows], np.float32)
    assert np.array_equal(vectors, np.array(found["mean"], np.float32))
    with pytest.raises(SystemExit, match=r"a \.csv holds the mean of every structure, all else an \.npz"):
        embed_here(*given, "--out", tmp_path / "e.csv", "--include", "mean", "per_residue")


def test_the_confidence_of_a_predicted_structure_is_a_column(weights, tmp_path, files):
    """With a pLDDT in the B factors of its atoms alone; an experiment has none."""
    lines = gzip.decompress(files[0].read_bytes()).decode().splitlines()
    lines = [f"{x[:60]}{50 + int(x[25]):6.2f}{x[66:]}\n" for x in lines if x.startswith("ATOM")]
    model = tmp_path / "model.pdb"
    model.write_text("".join(lines))
    found = embedded(tmp_path / "e.npz", files[0], model, "--checkpoint", weights, "--include", "per_residue")
    mean = dict(zip(found["id"], found["plddt"]))
    assert mean[stem(files[0])] is None
    assert 50 < mean["model"] < 59
    row = found["id"].index("model")
    residues = slice(*found["residue_offset"][row : row + 2])
    expected = [50 + number % 10 for number in found["residue_number"][residues]]
    assert found["residue_plddt"][residues] == expected


def test_every_chain_alone(weights, tmp_path, capsys):
    rows = []
    for chain, x in (("A", 0), ("B", 60)):
        for number in range(1, 6):
            rows += residue("SER", number, chain=chain, x=x + 2.1 * number)
    (tmp_path / "two.pdb").write_text(as_pdb(rows))
    (tmp_path / "bad.pdb").write_text("nothing")
    options = "--checkpoint", weights, "--include", "mean", "per_residue", "--each-chain"
    found = embedded(tmp_path / "e.npz", tmp_path / "two.pdb", tmp_path / "bad.pdb", *options, status=1)
    assert "seen 3 = embedded 2 + skipped 0 + failed 1" in capsys.readouterr().out
    parts = chains_of(read_structure(tmp_path / "two.pdb"))
    assert found["id"] == ["two_A", "two_B"]
    assert [*parts] == ["A", "B"] == [*dict.fromkeys(found["residue_chain"])]
    expected = siamdiff_min.load_encoder(weights, "cpu").embed(*parts.values())
    assert np.array_equal(np.array(found["mean"], np.float32), [e.mean for e in expected])


def test_where_memory_runs_out_the_batch_is_halved_and_one_structure_fails(weights, files, monkeypatch):
    """As in a graph of one large complex: the others keep their vectors."""
    encoder = siamdiff_min.load_encoder(weights, "cpu")
    found = encoder.embed(*files[:6])
    largest = max(len(e.sequence) for e in found)
    encode, sizes = encoder.forward, []

    def forward(protein):
        sizes.append(protein.num_residues)
        if protein.num_residues >= largest:
            raise RuntimeError("[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory")
        return encode(protein)

    monkeypatch.setattr(encoder, "forward", forward)
    structures = [(stem(file), read_structure(file)) for file in files[:6]]
    results = Embedder(encoder, batch_nodes=10**6).embed_group(structures, ["mean"])
    rest = [result for result in results if not isinstance(result, StructureError)]
    (error,) = [str(result) for result in results if isinstance(result, StructureError)]
    assert f"no memory left for it ({largest} residues)" in error
    assert sizes[0] == sum(len(e.sequence) for e in found) and len(sizes) > 3
    expected = [e for e in found if len(e.sequence) < largest]
    assert [e.id for e in rest] == [e.id for e in expected] and len(rest) == 5
    assert all(np.allclose(a.mean, b.mean, rtol=1e-5, atol=1e-6) for a, b in zip(rest, expected))


def test_an_encoder_of_a_plugin(tmp_path, files):
    plugin, out = tmp_path / "slim_plugin.py", tmp_path / "e.npz"
    plugin.write_text(
        "from siamdiff_min.encoders import ENCODERS, RESIDUE_GRAPH\n"
        "from siamdiff_min.encoders.gearnet import GearNet\n"
        "ENCODERS['slim'] = lambda level, size, preset: GearNet(RESIDUE_GRAPH, [8, 8])\n"
    )
    try:
        import_plugins([plugin])
        ENCODERS["slim"]("residue").save(tmp_path / "slim.pt")
        with pytest.raises(ConfigError, match="encoder slim builds graphs of residue level, but --level is atom"):
            ENCODERS["slim"]("atom")
        del ENCODERS["slim"], sys.modules[plugin.stem]
        command = [files[0], "--checkpoint", tmp_path / "slim.pt", "--out", out]
        with pytest.raises(SystemExit, match="'slim', which is not known here: import the file that adds it first"):
            embed_here(*command)
        assert embed_here(*command, "--plugin", plugin) == 0 and np.load(out)["mean"].shape == (1, 16)
    finally:
        ENCODERS.pop("slim", None)


def test_a_gpu_takes_batches_and_gives_the_same_in_order(weights, files, tmp_path, monkeypatch):
    """The processes read, and a structure that fails keeps its place."""
    (tmp_path / "bad.pdb").write_text("nothing")
    given = [*files[:3], tmp_path / "bad.pdb", *files[3:5]]
    sources = [Source(path.name, str(path)) for path in given]
    encoder, sizes = siamdiff_min.load_encoder(weights, "cpu"), []
    monkeypatch.setattr(embed, "ready_encoder", lambda *_: Embedder(encoder, batch_nodes=10**6))
    monkeypatch.setattr(embed, "GROUP", 4)
    encode = encoder.forward
    monkeypatch.setattr(encoder, "forward", lambda x: (sizes.append(x.num_proteins), encode(x))[1])
    job = embed.Job(weights, (), "cuda", None, "off", ("mean",), False)
    found = [*embed.embed_sources(job, sources, 2)]
    assert sizes == [3, 2] and isinstance(found[3][0], StructureError)
    for path, (x,) in zip(given, found):
        if path != given[3]:
            assert x.id == path.name and np.allclose(x.mean, encoder.embed(path).mean, rtol=1e-5, atol=1e-6)


def test_bfloat16_changes_vectors_by_little(checkpoint, files, tmp_path):
    found = {}
    for amp in ("off", "bf16"):
        table = embedded(tmp_path / "e.npz", files[0], "--checkpoint", checkpoint, "--amp", amp)
        found[amp] = np.array(table["mean"])
    difference = np.linalg.norm(found["bf16"] - found["off"]) / np.linalg.norm(found["off"])
    assert 0 < difference < 0.02


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_ends_at_once_and_leaves_nothing(number, weights, tmp_path, files):
    (tmp_path / "many").mkdir()
    for i in range(400):
        os.link(files[0], tmp_path / "many" / f"{i}.pdb.gz")
    log, out = tmp_path / "log", tmp_path / "e.npz"
    command = [tmp_path / "many", "--checkpoint", weights, "--out", out, "--device", "cpu", "--num-workers", "2"]
    (child,) = processes.start(log, 1, "embed", *command)
    processes.until(lambda: len(processes.descendants(child.pid)) == 2 or not child.is_alive(), log)
    time.sleep(0.5)
    workers = processes.descendants(child.pid)
    os.kill(child.pid, number)
    assert processes.finish([child]) == [130 if number == signal.SIGINT else -number]
    processes.until(lambda: not any(map(processes.running, workers)), log)
    assert "Traceback" not in log.read_text() and sorted(os.listdir(tmp_path)) == ["log", "many"]


def stripped(source: Path, target: Path, keep) -> Path:
    lines = gzip.decompress(source.read_bytes()).decode().splitlines(keepends=True)
    target.write_text("".join(line for line in lines if line[:4] != "ATOM" or keep(line)))
    return target


def test_incomplete_structures_are_named(checkpoint, files, tmp_path, capsys):
    """At atom level without side chains; at both levels without some of the residues."""
    bare = stripped(files[0], tmp_path / "bare.pdb", lambda line: line[12:16].strip() in ("N", "CA", "C", "O"))
    trace = stripped(files[0], tmp_path / "trace.pdb", lambda line: line[12:16].strip() == "CA")
    number = gzip.decompress(files[0].read_bytes()).decode().split("ATOM")[1][18:23]
    broken = stripped(files[0], tmp_path / "broken.pdb", lambda x: x[12:16].strip() != "CA" or x[22:27] != number)
    size = siamdiff_min.read_structure(trace).protein.num_residues
    expected = {"bare": "", "trace": "", "broken": "left out: residues without CA 1", stem(files[0]): ""}
    if checkpoint.name == "atom":
        expected["bare"] = "100% of the side-chain atoms are missing, so use --checkpoint siamdiff-residue"
        lacking = f"{3 * size} of {4 * size} backbone atoms are missing (N {size}, C {size}, O {size})"
        expected["trace"] = f"{expected['bare']}; {lacking}"
    found = embedded(tmp_path / "e.npz", bare, trace, broken, files[0], "--checkpoint", checkpoint)
    printed, said = capsys.readouterr()
    assert "left out or replaced 1 (residues without CA 1)" in printed.splitlines()
    warned = sorted(line for line in said.splitlines() if line.startswith("warning"))
    wanted = sorted(f"warning: {name}: {reason}" for name, reason in expected.items() if reason)
    assert warned == wanted
    found_of = dict(zip(found["id"], found["incomplete"], strict=True))
    assert found_of == expected


def test_numbers_that_are_not_finite_are_never_handed_out(weights, files, tmp_path, monkeypatch, capsys):
    encoder = siamdiff_min.load_encoder(weights, "cpu")
    encode, large = encoder.forward, len(encoder.embed(files[1]).sequence)

    def overflow(protein):
        encoding = encode(protein)
        encoding.residue[0] *= torch.inf if protein.num_residues == large else 1
        return encoding

    monkeypatch.setattr(encoder, "forward", overflow)
    with pytest.raises(StructureError, match="0: no finite representation"):
        encoder.embed(read_structure(files[1]))
    monkeypatch.setattr(embed, "ready_encoder", lambda *_: Embedder(encoder))
    found = embedded(tmp_path / "e.npz", *files[:2], "--checkpoint", weights, status=1)
    assert f"failed: {files[1]}: no finite" in capsys.readouterr().err
    assert found["id"] == [stem(files[0])] and found["failed"] == [str(files[1])]


def test_errors_are_clear(weights, tmp_path):
    (tmp_path / "x.pdb").write_text("nothing")
    (tmp_path / "d.npz").mkdir()
    x, options = tmp_path / "x.pdb", ["--checkpoint", weights, "--out", tmp_path / "e.npz"]
    for argv, said in (
        ([x, *options], "no structure could be read"),
        ([x, *options[:3], tmp_path / "d.npz"], "d.npz is not the name of an .npz or .csv file"),
    ):
        with pytest.raises(SystemExit, match=f"^error: .*{re.escape(said)}"):
            embed_here(*argv)
    assert not (tmp_path / "e.npz").exists()
    with pytest.raises(StructureError, match=r"x\.pdb"):
        siamdiff_min.load_encoder(weights, "cpu").embed(x)


def test_what_is_skipped_is_named(weights, tmp_path, files, capsys):
    """The first three names of every reason, and all of them in the file."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(files[0], folder / "good.pdb.gz")
    unread = ["1abcA00", "a.txt", "b.txt", "c.txt", "x.mmtf", "y.pdb.bz2"]
    for name in unread:
        (folder / name).write_text("")
    found = embedded(tmp_path / "e.npz", folder, "--checkpoint", weights)
    said = capsys.readouterr().err
    assert "skipped: not a structure file 4 (1abcA00, a.txt, b.txt, ...)\n" in said
    assert "skipped: .mmtf is not read: unpack or convert it to PDB or mmCIF, plain or .gz 1 (x.mmtf)\n" in said
    assert [*map(os.path.basename, found["skipped"])] == unread
    assert found["skipped_reason"][-1] == ".bz2 is not read: unpack or convert it to PDB or mmCIF, plain or .gz"
    with pytest.warns(UserWarning, match="^left out: ") as warned:
        siamdiff_min.load_encoder(weights, "cpu").embed(folder)
    assert str(warned[1].message).startswith("left out: .mmtf is not read: unpack or convert it") and len(warned) == 2


def test_parts_of_an_array_of_jobs_are_all_of_it_once(weights, tmp_path, files, capsys):
    """A file of its own for each part; names decide, so others may come and go."""
    folder = tmp_path / "data"
    folder.mkdir()
    for file in files[:6]:
        shutil.copy(file, folder)
    (folder / "notes.txt").write_text("")
    command = folder, "--checkpoint", weights, "--out", tmp_path / "e.npz"
    whole = embedded(tmp_path / "e.npz", folder, "--checkpoint", weights)

    def parts() -> list[dict]:
        for k in range(1, 4):
            assert embed_here(*command, "--part", f"{k}/3") == 0
        return [columns(file) for file in sorted(tmp_path.glob("e-*-of-3.npz"))]

    found = parts()
    assert len(found) > 1
    joined = {name: x for part in found for name, x in zip(part["id"], part["mean"], strict=True)}
    assert joined == dict(zip(whole["id"], whole["mean"])) and sum(len(part["id"]) for part in found) == len(joined)
    assert [file for part in found for file in part["skipped"]] == whole["skipped"]
    gone = max(found, key=lambda part: len(part["id"]))["id"][0]
    (folder / f"{gone}.pdb.gz").unlink()
    assert [part["id"] for part in parts()] == [[name for name in part["id"] if name != gone] for part in found]
    for wrong in ("4/3", "0/3", "a/b"):
        with pytest.raises(SystemExit):
            embed_here(*command, f"--part={wrong}")
    assert "'4/3' is not K/N with K from 1 to N, such as 3/16" in capsys.readouterr().err


def no_semaphores(*_, **__):
    raise FileNotFoundError(2, "No such file or directory")


def test_without_semaphores_one_process_does_it(weights, tmp_path, files, monkeypatch, capsys):
    """As in a container without a /dev/shm that can be written. The vectors are the same to the last bit."""
    command = [*files[:3], "--checkpoint", weights, "--num-workers", 2]
    before = embedded(tmp_path / "before.npz", *command)
    monkeypatch.setattr(synchronize._multiprocessing, "SemLock", no_semaphores)
    machine.warn_once.cache_clear()
    assert embedded(tmp_path / "e.npz", *command) == before
    said = "warning: one process reads, no others can be started here (/dev/shm: No such file or directory)"
    assert said in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.slow
def test_ray_gives_the_vectors_of_the_command(tmp_path, files):
    """On two structures and a file that is none."""
    pytest.importorskip("ray")
    from pyarrow import parquet

    folder = tmp_path / "data"
    folder.mkdir()
    for file in files[:2]:
        shutil.copy(file, folder)
    (folder / "bad.pdb").write_text("<html>")
    script = Path(__file__).parents[2] / "examples" / "ray_embed.py"
    subprocess.run([sys.executable, script, folder, tmp_path / "out", "--actors", "1"], check=True, timeout=300)
    rows = {row["name"]: row for row in parquet.read_table(tmp_path / "out").to_pylist()}
    assert rows.pop("bad")["error"].endswith("bad.pdb: an HTML or XML page, not a PDB or mmCIF file")
    expected = siamdiff_min.load_encoder("siamdiff-residue", "cpu").embed(*files[:2])
    assert rows.keys() == {e.id for e in expected}
    for e in expected:
        row = rows[e.id]
        assert np.allclose(row["mean"], e.mean, rtol=1e-5, atol=1e-6)
        assert (row["residues"], row["encoder"], row["error"]) == (len(e.sequence), "siamdiff-residue", "")
