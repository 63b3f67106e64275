"""What is fuzzed: one target for every reader of the package, and what it may accept.

An input is one file of a target, damaged; the other files stay whole.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grammar
import molecules
import numpy as np
import torch
from fuzz_files import items, real_mmcif, real_pdb
from mutations import BINARY, TEXT, tar_header, tar_repeat

from siamdiff_min.data import atom3d, ec
from siamdiff_min.data.sources import find_structures
from siamdiff_min.data.store import ProteinStore, open_store
from siamdiff_min.encoders.esm import ESM2
from siamdiff_min.encoders.weights import (
    MODEL,
    load_encoder_file,
    load_esm,
    read_weights,
    save_encoder_file,
    write_weights,
)
from siamdiff_min.files import CheckpointError, StoreError
from siamdiff_min.protein.check import MAX_COORDINATE
from siamdiff_min.protein.constants import ATOM_ELEMENT, ATOM_INDEX, CA, RESIDUE_ATOMS, RESIDUES
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.protein.protein import TENSOR_FIELDS, Protein
from siamdiff_min.protein.structure import Structure, StructureError
from siamdiff_min.training import checkpoint

INSIDE = "damaged inside "  # a file that is packed after it was damaged
_KNOWN = [{ATOM_INDEX[name] for name in [*RESIDUE_ATOMS[residue], "OXT"]} for residue in RESIDUES]
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Target:
    """A reader. `read` gives what it makes of one damaged file, `check` fails where that should not be accepted."""

    files: dict[str, bytes]  # name -> whole content
    error: type[Exception] | tuple  # the documented one
    read: Callable[[str, bytes], object]
    check: Callable[[str, bytes, object], None]
    families: tuple = BINARY + TEXT


# ---- what may be accepted --------------------------------------------------------------------------------------------


def check_structure(structure: Structure, joined: bool = False) -> None:
    """Whatever was read: a protein that the rest of the package can work with. Two that were joined share names."""
    p = structure.protein
    field = {name: getattr(p, name).numpy() for name in TENSOR_FIELDS}
    owner, atom, residues = field["atom_residue"], field["atom_name"], p.num_residues
    assert p.num_proteins == 1 and residues >= 1
    assert all(len(field[name]) == p.num_atoms for name in ("pos", "element", "atom_name", "atom_residue"))
    assert np.isfinite(field["pos"]).all() and np.abs(field["pos"]).max() <= MAX_COORDINATE
    assert np.array_equal(np.unique(owner), np.arange(residues)) and (np.diff(owner) >= 0).all()
    assert np.array_equal(owner[atom == CA], np.arange(residues))
    assert np.array_equal(field["element"], np.array(ATOM_ELEMENT)[atom])
    assert len(set(zip(owner.tolist(), atom.tolist()))) == p.num_atoms
    assert all(name in _KNOWN[kind] for name, kind in zip(atom.tolist(), field["residue_type"][owner].tolist()))
    assert not field["masked"].any() and not field["residue_protein"].any()
    assert np.abs(field["residue_number"]).max() < 2**31
    assert field["insertion_code"].min() >= 0 and field["insertion_code"].max() < 128
    chain = field["chain"]
    assert chain[0] == 0 and set(np.diff(chain).tolist()) <= {0, 1}
    assert len(structure.chain_names) == chain[-1] + 1
    assert joined or len(set(structure.chain_names)) == len(structure.chain_names)
    assert min(structure.dropped.values(), default=1) > 0


def check_numbers(data: bytes, structure: Structure) -> None:
    """No coordinate was made up: each stands in the file, those of PDB in their columns."""
    text, words = data.decode("latin-1"), set()
    if "_atom_site" in text:
        words.update(word.strip("'\"") for word in text.split())
        words.update(word for quoted in re.findall(r"'[^'\n]*'|\"[^\"\n]*\"", text) for word in quoted[1:-1].split())
    else:
        for line in re.split(r"\r\n|\r|\n", text):
            words.update(line[start : start + 8].strip() for start in (30, 38, 46))
    with np.errstate(over="ignore"):
        numbers = np.array([float(word) for word in words if _FLOAT.fullmatch(word)]).astype(np.float32)
    assert np.isin(structure.protein.pos.numpy(), numbers).all(), "a coordinate that is not in the file"


def check_note(task: str, structure: Structure) -> None:
    """The labels of an ATOM3D item: rows of the protein, values in range."""
    values = structure.labels
    rows = values.get("pairs", values.get("atoms", torch.zeros(0))).flatten().numpy()
    size, atoms = structure.protein.num_residues, structure.protein.num_atoms
    if task == "psr":
        assert 0 <= values["values"][0] <= 1 and isinstance(values["target"], str)
    elif task == "msp":
        first, (wild, mutant) = values["first"], values["mutated"]
        assert 0 < first < size and values["label"] in (0, 1) and len(wild) == len(mutant) > 0
        assert all(0 <= row < first for row in wild) and all(first <= row < size for row in mutant)
    elif task == "pip":
        pairs, first = rows.reshape(-1, 2), values["first"]
        assert len(pairs) and (pairs[:, 0] < first).all() and (first <= pairs[:, 1]).all()
        assert rows.min() >= 0 and rows.max() < size and all(0 <= row < size for row in values["ambiguous"])
    else:
        assert len(values["residues"]) == len(values["counts"]) > 0 and sum(values["counts"]) == len(rows)
        assert (
            all(0 <= row < size for row in values["residues"])
            and rows.min(initial=0) >= 0
            and rows.max(initial=0) < atoms
        )


def same_structure(a: Structure, b: Structure) -> bool:
    return a.chain_names == b.chain_names and same_protein(a.protein, b.protein)


def same_protein(a: Protein, b: Protein) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in TENSOR_FIELDS)


# ---- the targets -----------------------------------------------------------------------------------------------------


def _text(file: str, data: bytes) -> Target:
    def check(name, damaged, structure):
        check_structure(structure)
        check_numbers(damaged, structure)

    return Target({file: data}, StructureError, lambda name, damaged: read_structure(name, damaged), check)


def pdb(folder: Path) -> Target:
    return _text("1ffw.pdb", real_pdb())


def mmcif(folder: Path) -> Target:
    return _text("1ffw.cif", real_mmcif(real_pdb()))


def _grammar(file: str, data: bytes) -> Target:
    """Damage that knows columns, rows and chemistry; what is accepted is what gemmi reads as well."""

    def check(name, damaged, structure):
        check_structure(structure)
        grammar.check_with_gemmi(name, damaged, structure)

    return Target({file: data}, StructureError, read_structure, check, grammar.FAMILIES)


def pdb_grammar(folder: Path) -> Target:
    return _grammar("1ffw.pdb", real_pdb())


def mmcif_grammar(folder: Path) -> Target:
    return _grammar("1ffw.cif", real_mmcif(real_pdb()))


def _molecules(file: str, data: bytes, families: tuple) -> Target:
    """What other programs write; no residue is lost or mixed, compared with the rows that gemmi reads."""

    def check(name, damaged, structure):
        check_structure(structure)
        molecules.check_molecules(name, damaged, structure)

    return Target({file: data}, StructureError, read_structure, check, families)


def pdb_molecules(folder: Path) -> Target:
    first = real_pdb().partition(b"ENDMDL")[0].replace(b"MODEL        1\n", b"")
    return _molecules("1ffw.pdb", first + b"END\n", molecules.OF_PDB)


def mmcif_molecules(folder: Path) -> Target:
    return _molecules("1ffw.cif", real_mmcif(real_pdb()), molecules.FAMILIES)


def gz(folder: Path) -> Target:
    """What gzip accepts is what was packed: it has a checksum."""
    plain = {"1ffw.pdb": real_pdb(), "1ffw.cif": real_mmcif(real_pdb())}
    packed = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in plain.items()}
    whole = {name: read_structure(name, data) for name, data in packed.items()}

    def check(name, damaged, structure):
        check_structure(structure)
        assert name.startswith(INSIDE) or same_structure(structure, whole[name]), "not what was packed"

    def read(name, damaged):
        return read_structure(name, gzip.compress(damaged, 1) if name.startswith(INSIDE) else damaged)

    return Target(packed | {INSIDE + name: data for name, data in plain.items()}, StructureError, read, check)


def tar(folder: Path) -> Target:
    """Archives of every dialect. Whatever their headers say, nothing but the archive is in the folder afterwards."""
    pdb, files = real_pdb(), {}
    for dialect in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=dialect) as writer:
            long = "x/" * 60 + "b.pdb.gz"
            for name, data in (("a.pdb", pdb), (long, gzip.compress(pdb, mtime=0)), ("é.cif", b"data_")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                writer.addfile(member, io.BytesIO(data))
        files[f"{dialect}.tar"] = archive.getvalue()
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "c.pdb", "GNU.sparse.realsize": "99"}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x"}) as writer:
        member = tarfile.TarInfo("c.pdb")
        member.size, member.pax_headers = 1024, sparse
        writer.addfile(member, io.BytesIO(b"1\n0\n512\n".ljust(1024, b"\0")))
    files["sparse.tar"] = archive.getvalue()
    place = folder / "deep" / "er"
    place.mkdir(parents=True)

    def read(name, damaged):
        (place / "x.tar").write_bytes(damaged)
        read, listing = [], find_structures(place / "x.tar")
        for source in listing.sources:
            try:
                read.append(source.read())
            except StructureError as error:
                assert error.reason
        return listing, read

    def check(name, damaged, result):
        listing, read = result
        for structure in read:
            check_structure(structure)
        assert all(".." not in Path(source.name).parts and source.name[:1] != "/" for source in listing.sources)
        found = [os.listdir(folder), os.listdir(folder / "deep"), os.listdir(place)]
        assert found == [["deep"], ["er"], ["x.tar"]], f"written outside: {found}"
        assert not Path("/tmp/outside.pdb").exists(), "written outside"

    return Target(files, StructureError, read, check, (*BINARY, *[tar_header] * 8, tar_repeat))


def lmdb(folder: Path) -> Target:
    """Items of the four tasks, compressed or damaged inside, and the three entries that describe a set."""
    import lmdb

    files = {}
    for task, item in items(real_pdb()).items():
        files[f"{task} 0"] = gzip.compress(json.dumps(item).encode(), mtime=0)
        files[f"{INSIDE}{task} 0"] = json.dumps(item).encode()
    described = {"num_examples": b"1", "serialization_format": b"json", "id_to_idx": b"{\"('T0', 'decoy')\": 0}"}
    files |= {f"psr {key}": value for key, value in described.items()}
    (folder / "set").mkdir()

    def read(name, damaged):
        task, key = name.removeprefix(INSIDE).split()
        entries = described | {"0": files[f"{task} 0"]}
        entries[key] = gzip.compress(damaged, 1) if name.startswith(INSIDE) else damaged
        with (
            lmdb.open(str(folder / "set"), sync=False, map_size=2**24) as environment,
            environment.begin(write=True) as transaction,
        ):
            for entry, value in entries.items():
                transaction.put(entry.encode(), value)
        try:
            return [source.read() for source in atom3d.list_items(folder / "set", task).sources]
        finally:
            atom3d._environment.cache_clear()

    def check(name, damaged, structures):
        task = name.removeprefix(INSIDE).split()[0]
        for structure in structures:
            check_structure(structure, joined=task in ("msp", "pip"))
            check_note(task, structure)

    return Target(files, StructureError, read, check)


def ec_files(folder: Path) -> Target:
    """The two tables, a list of ids and the zips of the EC set."""
    archive, pdb = io.BytesIO(), real_pdb()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr(zipfile.ZipInfo("test/1FFW-A.pdb"), pdb, zipfile.ZIP_DEFLATED)
        writer.writestr(zipfile.ZipInfo("test/2FFW-B.pdb.gz"), gzip.compress(pdb, mtime=0), zipfile.ZIP_STORED)
    annotation = ["### EC-numbers", "1.1.1.-\t2.7.11.1", "### PDB-chain\tEC-numbers", "1FFW-A\t1.1.1.-"]
    files = {
        "nrPDB-EC_annot.tsv": "\n".join([*annotation, "2FFW-B\t1.1.1.-,2.7.11.1\n"]).encode(),
        "nrPDB-EC_test.csv": b"PDB-chain,<30%,<40%,<50%,<70%,<95%\n1FFW-A,0,0,1,1,1\n2FFW-B,1,1,1,1,1\n",
        "ids.txt": b"1FFW-A\n2FFW-B\n",
        "test.zip": archive.getvalue(),
    }
    whole = read_structure("1FFW-A.pdb", pdb)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for split in ("train", "valid"):
        (folder / split).mkdir()

    def read(name, damaged):
        (folder / name).write_bytes(damaged)
        try:
            data = ec.ec_set(folder, ids=folder / "ids.txt")
            read = []
            for source in data.test.listing().sources:
                try:
                    read.append(source.read())
                except StructureError as error:
                    assert error.reason
            return data, read
        finally:
            (folder / name).write_bytes(files[name])

    def check(name, damaged, result):
        data, read = result
        for structure in read:
            assert same_structure(structure, whole), "not what was packed"
            assert set(structure.labels["values"][0]) <= set(data.classes)
        assert sorted(os.listdir(folder)) == sorted([*files, "train", "valid"]), "written outside"

    return Target(files, StructureError, read, check)


def _store(folder: Path) -> Path:
    """A store of three small structures and a file that cannot be read, the same wherever and whenever it is made."""
    (folder / "data").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (folder / "data" / f"{name}.pdb").write_bytes(real_pdb())
    (folder / "data" / "d.pdb").write_bytes(b"<html>")
    return open_store(folder / "data", folder / "whole", workers=1).path


def store(folder: Path) -> Target:
    """What a store accepts, after `verify`, is what was put into it."""
    path = _store(folder)
    whole = [ProteinStore(path)[i] for i in range(3)]
    files = {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.stat().st_size}
    del files["failures.tsv"]  # for people, nothing reads it

    def read(name, damaged):
        (path / name).write_bytes(damaged)
        try:
            opened = ProteinStore(path)
            opened.verify()
            return list(opened.names), [opened[i] for i in range(len(opened))], opened.meta["seen"]
        finally:
            (path / name).write_bytes(files[name])

    def check(name, damaged, result):
        names, proteins, seen = result
        assert names == ["a", "b", "c"] and seen == 4 and all(map(same_protein, proteins, whole)), "not what was stored"

    return Target(files, StoreError, read, check)


def _read(source):
    try:
        return source.read()
    except StructureError as error:
        return error


def _same(a, b) -> bool:
    """Equality of nested dicts and lists of tensors and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def weights(folder: Path) -> Target:
    """A checkpoint, an encoder file, a fine-tuned model: the same content or refused."""
    few = {f"layers.{i}.weight": torch.linspace(-1, i + 1, 3) for i in range(4)}
    identity = {"encoder": "gearnet", "level": "residue", "size": "tiny", "preset": "paper"}
    module = torch.nn.ParameterDict({name.replace(".", "_"): tensor for name, tensor in few.items()})
    state = {"step": 3, "config": identity, "objective": few, "losses": [0.5, None, 1e-3]}
    loaders = {
        "encoder.pt": load_encoder_file,
        "best.pt": lambda path: read_weights(path, MODEL),
    }
    paths = {"checkpoint": checkpoint.save(folder, 3, state)} | {name: folder / name for name in loaders}
    readers = {"checkpoint": read_weights} | loaders
    save_encoder_file(paths["encoder.pt"], module, *identity.values(), note="x")
    model = {**identity, "task": "psr", "labels": [], "state": module.state_dict()}
    write_weights(paths["best.pt"], MODEL, model)
    files = {name: path.read_bytes() for name, path in paths.items()}
    whole = {name: readers[name](path) for name, path in paths.items()}

    def read(name, damaged):
        paths[name].write_bytes(damaged)
        return readers[name](paths[name])

    def check(name, damaged, content):
        assert _same(content, whole[name]), "not what was saved"

    return Target(files, CheckpointError, read, check, BINARY)


def esm(folder: Path) -> Target:
    """A weight file of fair-esm: the same weights or refused."""
    small, file = ESM2(1, 4, 2), folder / "esm.pt"
    for i, parameter in enumerate(small.parameters()):  # not random: an input is to be the same tomorrow
        torch.nn.init.constant_(parameter, i / 8)
    torch.save({"cfg": {"model": None}, "model": small.state_dict()}, file)
    whole = {name: tensor.clone() for name, tensor in small.state_dict().items()}

    def read(name, damaged):
        file.write_bytes(damaged)
        load_esm(small, str(file))
        return small.state_dict()

    def check(name, damaged, state):
        assert _same(dict(state), whole), "not what was saved"

    return Target({file.name: file.read_bytes()}, ValueError, read, check, BINARY)


TARGETS = {
    "pdb": pdb, "mmcif": mmcif, "pdb-grammar": pdb_grammar, "mmcif-grammar": mmcif_grammar,
    "pdb-molecules": pdb_molecules, "mmcif-molecules": mmcif_molecules, "gz": gz, "tar": tar,
    "lmdb": lmdb, "ec": ec_files, "store": store, "weights": weights, "esm": esm,
}  # fmt: skip


def make(reader: str, folder: Path) -> Target:
    """The target of a reader, which works in an empty folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target = TARGETS[reader](folder)
    for name, data in target.files.items():
        target.check(name, data, target.read(name, data.replace(INSIDE.encode(), b"")))
    return target
