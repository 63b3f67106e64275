"""What several test files share: equality of proteins, archives, listings, the scalar of the golden gradients."""

import io
import tarfile
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from conftest import generator, real_protein

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.protein.constants import CA, RESIDUE_INDEX
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import TENSOR_FIELDS, Protein
from siamdiff_min.reading.sources import Listing, Origin
from siamdiff_min.reading.store import open_store
from siamdiff_min.reading.structure import Structure, join
from siamdiff_min.sets.samples import SAMPLES, pack_lists


def assert_equal(a: Protein, b: Protein, tolerance: float = 0.0) -> None:
    """All fields equal, with their types; coordinates within `tolerance` (angstrom)."""
    for field in TENSOR_FIELDS:
        x, y = getattr(a, field), getattr(b, field)
        assert x.dtype == y.dtype and x.shape == y.shape, field
        assert torch.equal(x, y) or (field == "pos" and (x - y).abs().max() <= tolerance), field
    assert a.num_proteins == b.num_proteins


def wave(x: torch.Tensor) -> torch.Tensor:
    """The scalar whose gradients the golden files hold: cos(0), cos(1), ... as weights, row-major."""
    weight = torch.arange(x.numel(), dtype=torch.float64).cos().to(x.dtype)
    return (x.flatten() * weight).sum()


def tar(members, mode: str = "w") -> bytes:
    """An archive of (name or TarInfo, bytes)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A member that is no plain file: a link to `target`, a device, a FIFO, a folder."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def reasons(listing) -> Counter:
    """How many files a listing skips for each reason."""
    return Counter(reason for _, reason in listing.skipped)


# ---- small structure files from rows, one per atom, as pdb and as mmcif ----------------------------------------------


def atom(
    name, residue, number, chain="A", code=" ", alt=" ", occ=1.0, x=0.0,
    het=False, element=None, model=1, segment="", label=None,
):  # fmt: skip
    """One row of a structure file; y and z follow from x. `segment` is of PDB alone, `label` of mmCIF."""
    element = name[0] if element is None else element
    return {
        "het": het, "name": name, "alt": alt, "residue": residue, "chain": chain, "number": number, "code": code,
        "x": x, "occ": occ, "element": element, "model": model, "segment": segment, "label": label,
    }  # fmt: skip


def residue(kind, number, names=("N", "CA", "C", "O"), **options):
    """Rows of one residue with distinct coordinates."""
    x = options.pop("x") if "x" in options else float(number)
    return [atom(name, kind, number, x=x + i / 8, **options) for i, name in enumerate(names)]


def as_pdb(rows, models=False):
    lines = []
    model = None
    for i, r in enumerate(rows, 1):
        if models and r["model"] != model:
            if model is not None:
                lines.append("ENDMDL")
            model = r["model"]
            lines.append(f"MODEL     {model:4d}")
        name, residue, x = r["name"], r["residue"], r["x"]
        record = "HETATM" if r["het"] else "ATOM  "
        if len(name) < 4:
            name = f" {name:<3}"
        chain = r["chain"].rjust(5 - max(len(residue), 3))  # a longer name of a residue takes its blank
        lines.append(
            f"{record}{i:5d} {name}{r['alt']}{residue:>3}{chain}{r['number']:>4}{r['code']}   "
            f"{x:8.3f}{x + 1:8.3f}{-x:8.3f}{r['occ']:6.2f}  0.00      {r['segment']:<4}{r['element']:>2}"
        )
    return "\n".join([*lines, *["ENDMDL"] * models, "END", ""])


FIELDS = """
    group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_entity_id label_seq_id
    pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy B_iso_or_equiv auth_seq_id auth_asym_id pdbx_PDB_model_num
""".split()  # noqa: SIM905


def as_mmcif(rows, models=False):
    lines = ["data_TEST", "#", "_struct.title 'a title with #, 5'-quotes and _atom_site.id'", "#", "loop_"]
    lines += [f"_atom_site.{field}" for field in FIELDS]
    for i, r in enumerate(rows, 1):
        record = "HETATM" if r["het"] else "ATOM"
        element = r["element"] or "?"
        name, chain, x = r["name"], r["chain"], r["x"]
        if "'" in name:
            name = f'"{name}"'
        alt = r["alt"].strip() or "."
        label = r["label"] or f"L{ord(chain[0]) % 7}"
        code = r["code"].strip() or "?"
        lines.append(
            f"{record} {i} {element} {name} {alt} {r['residue']} {label} 1 {i} {code} "
            f"{x:.3f} {x + 1:.3f} {-x:.3f} {r['occ']:.2f} 0.00 {r['number']} {chain} {r['model']}"
        )
    return "\n".join([*lines, "#", ""])


# ---- small labelled sets from two real structures --------------------------------------------------------------------


CLASSES = ("1", "2", "3")


@dataclass(frozen=True)
class Given:
    """A structure that has been read already, in the place of a `Source`."""

    name: str
    structure: Structure
    path: str = "given"

    def read(self) -> Structure:
        return self.structure


def structure(name="1LCD_A", noise=0.0, seed=0, **labels) -> Structure:
    """A real structure, moved by some noise (angstrom)."""
    protein = real_protein(name, torch.float32)
    chains, chain = protein.chain.unique(return_inverse=True)
    pos = protein.pos + noise * torch.randn(protein.pos.shape, generator=generator(seed))
    protein = replace(protein, pos=pos, chain=chain)
    return Structure(protein, tuple("ABCDE"[: len(chains)]), Counter(), labels)


def surroundings(protein, centre: int) -> list[int]:
    ca = protein.pos[(protein.atom_residue == centre) & (protein.atom_name == CA)]
    near = (length(protein.pos - ca) < 10) & (protein.atom_residue != centre)
    return near.nonzero().squeeze(1).tolist()


def entries(task: str, num: int) -> list[Given]:
    """`num` samples of a task; for PIP and RES as many as there are in two entries."""
    if task == "ec":
        labels = [{"kind": "labels", "values": [[CLASSES[i % 3]]]} for i in range(num)]
        return [Given(f"e{i}", structure(noise=i % 3 / 4, seed=i, **found)) for i, found in enumerate(labels)]
    if task == "psr":
        scores = [round(1 - 0.8 * i / max(num - 1, 1), 3) for i in range(num)]
        labels = [{"kind": "regression", "values": [s], "target": f"t{i % 2}"} for i, s in enumerate(scores)]
        return [Given(f"m{i}", structure(noise=0.5 * i / num, seed=i, **found)) for i, found in enumerate(labels)]
    if task == "table":
        labels = [{"kind": "regression", "values": [round(1 - 0.8 * i / num, 3)]} for i in range(num)]
        return [Given(f"v{i}", structure(noise=0.5 * i / num, seed=i, **found)) for i, found in enumerate(labels)]
    if task == "msp":
        made = []
        for i in range(num):
            wild = structure(noise=0.1, seed=i)
            types = wild.protein.residue_type.clone()
            types[7 + i % 9] = RESIDUE_INDEX["TRP" if i % 2 else "GLY"]
            mutant = replace(wild, protein=replace(wild.protein, residue_type=types))
            size = wild.protein.num_residues
            mutated = [[7 + i % 9], [size + 7 + i % 9]]
            made.append(Given(f"x{i}", join([wild, mutant], first=size, mutated=mutated, label=i % 2)))
        return made
    if task == "pip":
        one, two = structure(), structure("2BEG")
        first = one.protein.num_residues
        pairs = [(i, first + 3 * i) for i in range(2, 2 + num // 2)]
        return [Given("c", join([one, two], first=first, ambiguous=[0, first], pairs=torch.tensor(pairs)))]
    whole = structure("2BEG")
    centres = list(range(5, 5 + num))
    around = [surroundings(whole.protein, centre) for centre in centres]
    labels = {"residues": centres, **pack_lists([*map(np.array, around)])}
    return [Given("r", replace(whole, labels=labels))]


def dataset(task: str, folder, num: int = 4, **options):
    """`num` samples of a task from a store in `folder`."""
    origin = Origin(folder / task, "given", lambda: Listing(entries(task, num), []))
    store = open_store(origin, store=folder / f"{task}-{num}.store")
    return SAMPLES[task](store, classes=CLASSES if task == "ec" else (), **options)


def encoder(task: str, level: str | None = None):
    torch.manual_seed(0)
    return ENCODERS["gearnet"](level or ("residue" if task == "ec" else "atom"), "tiny")
