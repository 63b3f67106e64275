"""Embeddings depend on the structure alone; files of any kind and quality end in a table or in the list of failures."""

import gzip
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from Bio.PDB import MMCIFIO, PDBParser
from conftest import move, real_protein

import siamdiff_min
from siamdiff_min.data.structures import bundle_path
from siamdiff_min.embed import Embedder
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import StructureError
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.training.checkpoint import save_encoder_file


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """The twelve smallest of the bundled chains, as files."""
    folder = tmp_path_factory.mktemp("files")
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        members = sorted((m for m in archive if m.isfile() and m.name.endswith(".gz")), key=lambda m: m.size)[:12]
        for member in members:
            (folder / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    return [folder / Path(member.name).name for member in members]


@pytest.fixture(scope="module", params=["atom", "residue"])
def checkpoint(request, tmp_path_factory):
    torch.manual_seed(0)
    encoder = ENCODERS["gearnet"](request.param, "tiny")
    path = tmp_path_factory.mktemp("checkpoint") / "encoder.pt"
    save_encoder_file(path, encoder, "gearnet", request.param, "tiny", "paper")
    return path


def test_embeddings_do_not_depend_on_order_or_batch(checkpoint, files):
    alone = siamdiff_min.load_encoder(checkpoint, "cpu")
    single = [alone.embed(file) for file in files[:6]]
    for batch_nodes, order in [(10**6, range(6)), (10**6, (5, 3, 0, 1, 4, 2)), (500, range(6)), (1, range(6))]:
        many = siamdiff_min.load_encoder(checkpoint, "cpu", batch_nodes).embed(*[files[i] for i in order])
        for i, embedding in zip(order, many):
            assert embedding.id == str(files[i]) and embedding.sequence == single[i].sequence
            for name in ("mean", "per_residue", "per_atom"):
                a, b = getattr(embedding, name), getattr(single[i], name)
                assert a.shape == b.shape and np.abs(a - b).max() <= 1e-6 * np.abs(b).max()


def test_embeddings_are_those_of_the_encoder_and_named_after_the_file(checkpoint, files):
    structure = read_structure(files[0])
    embedder = siamdiff_min.load_encoder(checkpoint, "cpu")
    embedding = embedder.embed(structure)
    with torch.inference_mode():
        encoding = embedder.encoder(structure.protein)
    assert np.array_equal(embedding.per_residue, encoding.residue.numpy())
    assert np.array_equal(embedding.per_atom, encoding.node.numpy())
    assert np.allclose(embedding.mean, embedding.per_residue.mean(0))
    assert len(embedding.sequence) == len(embedding.number) == len(embedding.chain) == structure.protein.num_residues
    assert set(embedding.chain) == set(structure.chain_names)
    assert embedding.number.tolist() == structure.protein.residue_number.tolist()


def test_pdb_and_mmcif_give_the_same(checkpoint, tmp_path, files):
    (tmp_path / "a.pdb").write_bytes(gzip.decompress(files[1].read_bytes()))
    writer = MMCIFIO()
    writer.set_structure(PDBParser(QUIET=True).get_structure("a", tmp_path / "a.pdb"))
    writer.save(str(tmp_path / "b.cif"))
    a, b = siamdiff_min.load_encoder(checkpoint, "cpu").embed(tmp_path / "a.pdb", tmp_path / "b.cif")
    assert np.array_equal(a.per_atom, b.per_atom) and a.chain == b.chain and np.array_equal(a.number, b.number)


def test_embeddings_do_not_depend_on_the_pose(checkpoint):
    protein = real_protein("2BEG")
    protein = replace(protein, chain=protein.chain.unique(return_inverse=True)[1])
    embedder = Embedder(siamdiff_min.load_encoder(checkpoint, "cpu").encoder.double())
    a, b = embedder.embed(protein, move(protein, 3))
    assert np.allclose(a.per_residue, b.per_residue, atol=1e-5)
    assert sorted(set(a.chain)) == ["0", "1", "2", "3", "4"]


def run(*argv, status=0):
    command = [sys.executable, "-m", "siamdiff_min.embed", *map(str, argv), "--device", "cpu", "--num-workers", "0"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_a_folder_a_tar_and_a_file_some_of_them_broken(checkpoint, tmp_path, files):
    folder, out = tmp_path / "mixed", tmp_path / "sub" / "e.npz"
    folder.mkdir()
    for i in range(9):
        shutil.copy(files[i], folder)
    (folder / "broken.pdb").write_text("<html>not found</html>")
    (folder / "notes.txt").write_text("not a structure")
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(files[10], files[10].name)
        archive.add(files[0], "again/" + files[0].name)  # the same name as one in the folder
    said = run(folder, tmp_path / "more.tar", files[11], "--checkpoint", checkpoint, "--out", out, "--include",
               "mean", "per_residue", "per_atom")  # fmt: skip
    assert "seen 14 = embedded 12 + skipped 1 + failed 1" in said
    assert f"failed: {folder / 'broken.pdb'}: an HTML or XML page" in said
    assert "skipped: not a structure file 1" in said
    with np.load(out, allow_pickle=False) as arrays:
        ids = arrays["id"].tolist()
        assert len(set(ids)) == 12 and sum(name.endswith(files[0].name[:6]) for name in ids) == 2
        assert arrays["failed"].tolist() == [str(folder / "broken.pdb")]
        row = ids.index(files[11].name.removesuffix(".pdb.gz"))
        expected = siamdiff_min.load_encoder(checkpoint, "cpu").embed(files[11])
        residues = slice(*arrays["residue_offset"][row : row + 2])
        atoms = slice(*arrays["atom_offset"][row : row + 2])
        for name, rows in [("per_residue", residues), ("per_atom", atoms)]:
            reference = getattr(expected, name)
            assert np.abs(arrays[name][rows] - reference).max() <= 1e-6 * np.abs(reference).max()
        assert np.allclose(arrays["mean"][row], expected.mean, rtol=1e-5, atol=1e-6)
        assert arrays["residue_number"][residues].tolist() == expected.number.tolist()
        assert "".join(arrays["residue_type"][residues]) == expected.sequence
        assert len(arrays["residue_chain"]) == len(arrays["per_residue"])
    assert "broken.pdb" in run(folder, "--checkpoint", checkpoint, "--out", out, "--fail-fast", status=1)


def test_errors_are_clear(checkpoint, tmp_path):
    (tmp_path / "x.pdb").write_text("nothing")
    assert "error: no structure could be read" in run(tmp_path / "x.pdb", "--checkpoint", checkpoint, status=1)
    said = run(tmp_path / "absent", "--checkpoint", checkpoint, status=1)
    assert "no such file or folder" in said and "Traceback" not in said
    said = run(tmp_path / "x.pdb", "--checkpoint", tmp_path / "x.pdb", status=1)
    assert "cannot be read as a torch file" in said and "Traceback" not in said
    said = run(tmp_path / "x.pdb", "--checkpoint", tmp_path / "x.pdb", "--out", tmp_path, status=1)
    assert f"could not write {tmp_path}" in said and "folder" in said and "Traceback" not in said
    said = run(tmp_path / "x.pdb", "--checkpoint", checkpoint, "--batch-nodes", "0", status=2)
    assert "--batch-nodes must be at least 1" in said
    with pytest.raises(StructureError, match=r"x\.pdb"):
        siamdiff_min.load_encoder(checkpoint, "cpu").embed(tmp_path / "x.pdb")
