"""Families of damage that know what a structure file means, for PDB and mmCIF, and `gemmi` as a second reader.

`mutations.py` changes bytes; this changes columns, rows and chemistry: digits that move over, stray lines, chains
without ids, molecules that are merged, modified residues, atoms in one place. Whatever we read of it, gemmi reads too.
"""

import math
import re

import numpy as np

from siamdiff_min.protein.constants import ATOM_NAMES, ONE_LETTER, RESIDUES
from siamdiff_min.protein.structure import Structure

PDB = {  # columns of an atom
    "group": (0, 6), "residue": (17, 20), "chain": (21, 22), "number": (22, 26),
    "x": (30, 38), "y": (38, 46), "z": (46, 54),
}  # fmt: skip
MMCIF = {"group": 0, "residue": 5, "label": 6, "x": 9, "y": 10, "z": 11, "number": 13, "chain": 14}  # words of a row
MODIFIED = b"MSE SEP TPO PTR CSO HYP MLY KCX LLP CME DAL UNK ATP ABA HSE SAH GLY LEU".split()
STRAY = [
    *(b"TER", b"END", b"ENDMDL", b"MODEL        9", b"REMARK ATOM", b"data_z", b"_z.a 1", b"_z.a", b"loop_", b"#", b""),
    *(b"'_z' 1", b"_z.a 1 2", b"loop_\n_z.a\n1", b"stop_", b"save_z", b";", b"ATOM", b"HETATM", b"1", b"\xef\xbb\xbf"),
    *(b"ANISOU    1  N   GLY A   1     1000   1000   1000      0      0      0       N", b"TITLE     ATOM  1", b"x"),
]


def _rows(data: bytes) -> tuple[list[bytes], list[int]]:
    """The lines, and which of them are atoms."""
    lines = data.split(b"\n")
    return lines, [i for i, line in enumerate(lines) if line.startswith((b"ATOM  ", b"HETATM", b"ATOM "))]


def _in_columns(line: bytes) -> bool:
    return line[34:35] == line[42:43] == line[50:51] == b"." and len(line.split()) != 16


def _get(line: bytes, field: str) -> bytes:
    if _in_columns(line):
        return line[slice(*PDB[field])].strip()
    words = line.split()
    return words[MMCIF[field]] if len(words) > MMCIF[field] else b""


def _set(line: bytes, **values: bytes) -> bytes:
    """The atom with other values. One that is too long for its columns moves the others, as careless programs do."""
    if not _in_columns(line):
        words = line.split()
        for field, value in values.items():
            if len(words) == 16:
                words[MMCIF[field]] = value or b"."
        return b" ".join(words)
    for field, value in values.items():
        first, last = PDB.get(field, (0, 0))
        value = value.ljust(last - first) if field == "group" else value.rjust(last - first)
        line = line[:first] + value[: 99 * last] + line[last:]
    return line


def _moved(line: bytes, by: float) -> bytes:
    try:
        return _set(line, **{c: b"%.3f" % (float(_get(line, c)) + by) for c in "xyz"})
    except ValueError:  # damaged before
        return line


def _residue_of(lines: list[bytes], atoms: list[int], rng) -> list[int]:
    """The atoms of one residue."""
    place = [(_get(lines[i], "chain"), _get(lines[i], "number")) for i in atoms]
    chosen = place[rng.integers(len(place))]
    return [i for i, key in zip(atoms, place) if key == chosen]


def columns(data, rng):
    """A character too few, too many or another one, in one to three atoms."""
    lines, atoms = _rows(data)
    for i in rng.choice(atoms, size=min(len(atoms), int(rng.choice([1, 1, 3]))), replace=False) if atoms else []:
        at, kind = int(rng.integers(60)), rng.integers(4)
        new = [b"", b" ", b"%d" % rng.integers(10), bytes(rng.choice(list(b"-. A_'#x"), 1).astype(np.uint8))][kind]
        lines[i] = lines[i][:at] + new + lines[i][at + (kind == 0 or int(rng.integers(2))) :]
    return b"\n".join(lines)


def stray(data, rng):
    """A line that does not belong there: another record, a word of mmCIF, an atom not at the start of its line."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    at = int(rng.choice(atoms)) + int(rng.integers(2))
    atom = lines[int(rng.choice(atoms))]
    near = [
        atom.lower(),
        b" " + atom,
        b"\xef\xbb\xbf" + atom,
        b"#" + atom,
        b"AT0M  " + atom[6:],
        atom[:40],
        b"'_" + atom,
    ]
    choice = [*STRAY, *near]
    return b"\n".join([*lines[:at], choice[rng.integers(len(choice))], *lines[at:]]) + bytes(int(rng.choice([0, 0, 9])))


def blank_chains(data, rng):
    """All chains, or one, without an id."""
    lines, atoms = _rows(data)
    one = _get(lines[int(rng.choice(atoms))], "chain") if atoms and rng.integers(2) else None
    for i in atoms:
        if one is None or _get(lines[i], "chain") == one:
            lines[i] = _set(lines[i], chain=b"", label=b"")
    return b"\n".join(lines)


def merged(data, rng):
    """The molecule a second time, elsewhere or not, with the same ids and numbers or others, behind a TER or not."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    by, number, ter = float(rng.choice([0, 0.5, 40])), int(rng.choice([0, 0, 5, 9000, 20000])), rng.integers(2)
    copy = [_moved(lines[i], by) for i in atoms]
    for k, line in enumerate(copy):
        value = _get(line, "number")
        if number and value.lstrip(b"-").isdigit():
            copy[k] = _set(line, number=b"%d" % (int(value) + number))
            if number > 5 and len(_get(copy[k], "x")) < 8:  # five digits reach into the column of the insertion code
                copy[k] = copy[k] if copy[k][27:28] == b" " or b"_atom_site" in data else copy[k][:27] + copy[k][28:]
    end = [b"TER"] if ter and b"_atom_site" not in data else []
    return b"\n".join([*lines[: atoms[-1] + 1], *end, *copy, *lines[atoms[-1] + 1 :]])


def modified(data, rng):
    """A residue of another name, as ATOM or HETATM, in its place, at the end of the atoms, or far away as a ligand."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    name, group = MODIFIED[rng.integers(len(MODIFIED))], [b"ATOM", b"HETATM"][rng.integers(2)]
    chosen, kind = _residue_of(lines, atoms, rng), rng.integers(3)
    new = {i: _set(lines[i], group=group, residue=name) for i in chosen}
    if kind == 0:
        return b"\n".join(new.get(i, line) for i, line in enumerate(lines))
    behind = [_set(_moved(line, 60.0), number=b"901") if kind == 2 else line for line in new.values()]
    kept = [b"" if i in new and kind == 1 else line for i, line in enumerate(lines)]
    kept = (
        [line for i, line in enumerate(kept[: atoms[-1] + 1]) if line or i not in new] + behind + kept[atoms[-1] + 1 :]
    )
    return b"\n".join(kept)


def coincident(data, rng):
    """Atoms at one point: some of them, all of them, or copies of one, up to 3,000."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    point = dict.fromkeys("xyz", b"0.000") if rng.integers(2) else {c: _get(lines[atoms[0]], c) for c in "xyz"}
    if rng.integers(2):
        for i in atoms[: int(rng.integers(2, len(atoms) + 1))]:
            lines[i] = _set(lines[i], **point)
        return b"\n".join(lines)
    copies = [
        _set(lines[atoms[1 % len(atoms)]], number=b"%d" % n, **point)
        for n in range(int(rng.choice([9, 99, 110, 3000])))
    ]
    return b"\n".join([*lines[: atoms[-1] + 1], *copies, *lines[atoms[-1] + 1 :]])


FAMILIES = (columns, columns, stray, stray, blank_chains, merged, modified, modified, coincident)


# ---- what may be accepted --------------------------------------------------------------------------------------------


def read_by_gemmi(name: str, data: bytes) -> dict[tuple, list]:
    """(chain, number with insertion code) -> (residue, HETATM?, atom, position) of the first model, as gemmi says.

    Empty if gemmi refuses a value of a column that we do not read. Of PDB it gets the first model only, as we do.
    """
    import gemmi

    text = data.rstrip(b"\0").decode("latin-1")
    if name.endswith(".cif"):
        text = text.replace("\xef\xbb\xbf", "")  # a byte order mark within a word is a part of it to us
        text = re.sub(r"\n(_z\.a( 1 2)?|loop_) *(\n#)?\n*$", "\n", text)  # no atom is lost
        text = re.sub(r"(?<=\S )_(?=\S* )", "-", text)  # so is a _ in a later column; real files have them
        blocks = gemmi.cif.read_string(text)
        found = (gemmi.make_structure_from_block(block) for block in blocks)
    else:
        lines = [line for line in text.splitlines() if not line.startswith("ANISOU")]  # gemmi wants its atom before it
        atoms = [i for i, line in enumerate(lines) if line.startswith(("ATOM", "HETATM"))]
        ends = [i for i in range(atoms[0], len(lines)) if lines[i][:6].rstrip() in ("END", "ENDMDL")]
        found = iter([gemmi.read_pdb_string("\n".join([*lines[: min(ends, default=len(lines)) + 1], ""]))])
    try:
        model = next((structure[0] for structure in found if len(structure)), [])
    except (ValueError, RuntimeError) as error:
        assert re.match("not an integer|Not a single character", str(error)), error
        return {}
    places: dict[tuple, list] = {}
    for chain in model:
        for residue in chain:
            key = chain.name.strip(".?") if name.endswith(".cif") else chain.name[-1:], str(residue.seqid).strip()
            atoms = [(residue.name, residue.het_flag == "H", atom.name, tuple(atom.pos)) for atom in residue]
            places.setdefault(key, []).extend(atoms)
    return places


def check_with_gemmi(name: str, data: bytes, structure: Structure) -> None:
    """Each of our atoms is one of gemmi's, in the same residue; and each residue of gemmi's that we lack is counted."""
    import gemmi

    places, protein = read_by_gemmi(name, data), structure.protein
    if not places:
        return
    chains = [
        re.sub("^_", "-", chain.strip(".?")) if name.endswith(".cif") else chain.partition("_")[0]
        for chain in structure.chain_names
    ]
    if "" in chains:  # gemmi takes the other column where the author's chains are blank
        for chain, number in [key for key in places if key[0] not in chains]:
            places.setdefault(("", number), []).extend(places.pop((chain, number)))
    ours = [
        (chains[k], f"{place[1]}{place[2]}".strip()) for k, place in zip(protein.chain.tolist(), structure.positions)
    ]
    for residue, atom, pos in zip(protein.atom_residue.tolist(), protein.atom_name.tolist(), protein.pos.tolist()):
        same = [a for a in places[ours[residue]] if math.dist(a[3], pos) < 1e-3 * (1 + max(map(abs, pos)) / 1e3)]
        wanted = ATOM_NAMES[atom], ONE_LETTER[protein.residue_type[residue]]
        found = set()
        for theirs, _, atom_name, _ in same:
            letter = gemmi.find_tabulated_residue(theirs).one_letter_code.upper()
            letter = wanted[1] if letter in " X" and theirs not in RESIDUES else letter
            found.add((atom_name, letter))
            found.add(({"SE": {"M": "SD", "C": "SG"}.get(letter)}.get(atom_name, atom_name), letter))
        assert wanted in found, f"{ours[residue]}: {wanted} at {pos} is not in {places[ours[residue]]}"[:400]
    whole = {key for key, atoms in places.items() for a in atoms if a[0] in RESIDUES and a[2] == "CA" and not a[1]}
    missing = whole - set(ours)
    assert not missing or structure.dropped.total() >= len(missing), f"{sorted(missing)[:5]} are lost without a word"
    assert not (missing and not structure.dropped.keys() & {"free amino acids", "alternative residues"}), f"{missing}"
