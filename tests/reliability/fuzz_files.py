"""Small files in every format, cut from one bundled entry (1FFW: two chains), so that to read one takes a millisecond.

The traps of real files are added: altlocs, an insertion code, MSE, water, hydrogens, two models.
"""

import gzip

from siamdiff_min.data.sources import bundle_path, find_structures
from siamdiff_min.protein.constants import ONE_LETTER, RESIDUES


def real_pdb() -> bytes:
    """Six residue numbers of each chain, and the traps."""
    source = next(s for s in find_structures(bundle_path()).sources if s.name == "1FFW")
    with open(source.path, "rb") as file:
        file.seek(source.offset)
        lines = gzip.decompress(file.read(source.size)).splitlines()
    chains = {c: [line for line in lines if line[:4] == b"ATOM" and line[21:22] == c] for c in (b"A", b"B")}
    numbers = {c: list(dict.fromkeys(line[22:26] for line in rows))[:6] for c, rows in chains.items()}
    first, second = ([line for line in rows if line[22:26] in numbers[c]] for c, rows in chains.items())
    altloc = [line[:16] + b"B" + line[17:56] + b"0.30" + line[60:] for line in first[-3:]]
    inserted = [line[:26] + b"A" + line[27:] for line in first[-5:]]
    selenium = [b"HETATM" + line[6:17] + b"MSE" + line[20:] for line in second[-5:]]
    water = [b"HETATM 9001  O   HOH A 301      30.000  30.000  30.000  1.00 30.00           O"]
    hydrogen = [first[1][:12] + b" HA " + first[1][16:76] + b" H" + first[1][78:]]
    model = [*first, *altloc, *inserted, *hydrogen, b"TER", *second[:-5], *selenium, b"TER", *water]
    models = [b"MODEL        1", *model, b"ENDMDL", b"MODEL        2", *first[:5], b"ENDMDL"]
    return b"\n".join([*lines[:2], *models, b"END", b""])


def atoms_of(pdb: bytes) -> list[dict]:
    """The columns of the first model."""
    text = pdb.partition(b"ENDMDL")[0].decode()
    columns = {
        "group": (0, 6), "serial": (6, 11), "atom": (12, 16), "altloc": (16, 17), "residue": (17, 20),
        "chain": (21, 22), "number": (22, 26), "code": (26, 27), "x": (30, 38), "y": (38, 46), "z": (46, 54),
        "occupancy": (54, 60), "element": (76, 78),
    }  # fmt: skip
    atoms = [line for line in text.splitlines() if line.startswith(("ATOM", "HETATM"))]
    return [{name: line[slice(*place)].strip() for name, place in columns.items()} for line in atoms]


def real_mmcif(pdb: bytes) -> bytes:
    names = (
        "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_seq_id "
        "pdbx_PDB_ins_code Cartn_x Cartn_y Cartn_z occupancy auth_seq_id auth_asym_id pdbx_PDB_model_num"
    )
    keys = "group serial element atom altloc residue chain number code x y z occupancy number chain".split()  # noqa: SIM905
    rows = [" ".join([*(a[key] or "?" for key in keys), "1"]) for a in atoms_of(pdb)]
    rows += [rows[0][:-1] + "2"]
    title = ["_struct.title 'it''s; a \"title\" # here'", "_cell.note\n;several\nlines\n;"]
    head = ["data_1FFW", "#", *title, "#", "loop_"]
    return "\n".join([*head, *(f"_atom_site.{name}" for name in names.split()), *rows, "#", ""]).encode()


def frame(atoms: list[dict], subunit="A") -> dict:
    """Atoms as a data frame of ATOM3D."""
    columns = [
        *("subunit", "model", "chain", "residue", "insertion_code", "resname", "name", "altloc"),
        *("x", "y", "z", "occupancy", "element"),
    ]
    rows = [
        [subunit, 1, a["chain"], int(a["number"]), a["code"] or " ", a["residue"], a["atom"], a["altloc"] or " "]
        + [float(a[c]) for c in "xyz"]
        + [1.0, a["element"]]
        for a in atoms
    ]
    return {"columns": columns, "index": [0] * len(rows), "data": rows}


def items(pdb: bytes) -> dict[str, dict]:
    """One small item of every ATOM3D task."""
    atoms = [a for a in atoms_of(pdb) if not a["code"] and a["residue"] != "HOH"]
    chain = {c: [a for a in atoms if a["chain"] == c] for c in "AB"}
    numbers = {c: list(dict.fromkeys(int(a["number"]) for a in rows)) for c, rows in chain.items()}
    place = [a for a in chain["A"] if int(a["number"]) == numbers["A"][2]]
    letter = dict(zip(RESIDUES, ONE_LETTER))[place[0]["residue"]]
    mutated = [
        {**a, "residue": "TRP"} if a in place else a
        for a in chain["A"]
        if a not in place or a["atom"] in ("N", "CA", "C", "O")
    ]
    ends = [f"{name}{end}" for end in (0, 1) for name in ("subunit", "model", "chain", "residue")]
    pairs = [["A", 1, "A", numbers["A"][i], "B", 1, "B", numbers["B"][i], 1] for i in (0, 1)]
    both = frame(chain["A"])["data"] + frame(chain["B"], "B")["data"]
    labels = [f"A_{numbers['A'][2]}_{place[0]['residue']}"]
    return {
        "psr": {"atoms": frame(atoms), "id": "('T0', 'decoy')", "scores": {"gdt_ts": 0.5}},
        "msp": {
            "original_atoms": frame(chain["A"]),
            "mutated_atoms": frame(mutated),
            "id": f"1FFW_A_B_{letter}A{numbers['A'][2]}W",
            "label": "1",
        },
        "pip": {
            "atoms_pairs": {**frame([]), "data": both},
            "atoms_neighbors": {"columns": [*ends, "label"], "index": [0, 0], "data": pairs},
            "id": "1FFW",
        },
        "res": {
            "atoms": frame(atoms),
            "labels": {"columns": ["subunit"], "index": [0], "data": [[name] for name in labels]},
            "subunit_indices": [list(range(8, 30))],
            "id": "1FFW",
        },
    }
