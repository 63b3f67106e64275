"""Families of damage that are none: what other programs write. Several molecules under one chain id, names of four
letters and of force fields, waters without a number, score tables; and one letter of a record too few or too many.

`gemmi` reads the same text. It merges molecules that only a segment, TER or the label column tells apart, so the groups
of atoms that belong together are made here, of its rows.
"""

import math
import re
from collections import Counter, defaultdict

from grammar import _get, _in_columns, _moved, _residue_of, _rows, _set

from siamdiff_min.protein.constants import ATOM_NAMES, PARENT, RESIDUES, UNMODIFIED
from siamdiff_min.protein.structure import Structure

FOUR = b"NLYS CMET NGLY CHIE NASN CASP LYSH HISB ASPH CYS2 ARGN DPPC POPC NLIG CSEP XALA TIP3 ALAB".split()
FORCE_FIELD = b"HSD HSE HIE HID CYX CYM ASH GLH LYN ILE".split()
AROUND = {  # other names for an atom
    b" CD1": b" CD ", b" O  ": b" OT1", b" OXT": b" OT2", b" CD ": b" OC2", b"CD1": b"CD", b"O": b"OT1", b"OXT": b"OT2",
}  # fmt: skip
NUMBERS = [b"****", b"A000", b"270F", b"ffff", b"    ", b"-  1", b"zzzz", b"  1.", b"1e3 ", b"1_00"]
RECORDS = ("ATOM", "HETATM")


def merged(data, rng):
    """One to three more molecules, elsewhere or nearly in the same place, with a mark that tells them apart or none."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    kind, mark = int(rng.integers(7)), int(rng.integers(4))
    number = int(rng.choice([0, 0, 0, 3]))
    first = [_marked(lines[i], kind, 0, mark) for i in atoms]
    for i, line in zip(atoms, first):
        lines[i] = line
    behind = []
    for copy in range(1, int(rng.integers(2, 5))):
        by = float(rng.choice([0, 0.5, 0.6, 4, 40, 60]))
        kept = [line for line in first if rng.integers(20)] if rng.integers(4) == 0 else first
        rows = [_marked(_renumbered(_moved(line, by * copy), number * copy), kind, copy, mark) for line in kept]
        if rng.integers(3) == 0:
            rows = [_set(line, residue=b"LEU") if _get(line, "residue") == b"GLY" else line for line in rows]
        behind += [b"TER"] * (kind in (0, 4) and _in_columns(first[0])) + rows
    end = atoms[-1] + 1
    return b"\n".join([*lines[:end], *behind, *lines[end:]])


def _renumbered(line: bytes, by: int) -> bytes:
    value = _get(line, "number")
    return _set(line, number=b"%d" % (int(value) + by)) if by and value.lstrip(b"-").isdigit() else line


def _marked(line: bytes, kind: int, copy: int, mark: int) -> bytes:
    """One of the ways to tell molecules apart, for copy 0, 1, ...; one id for all of them in three of four cases."""
    if not _in_columns(line):
        words = line.split()
        if len(words) == 16:
            label = b"PQRS"[copy : copy + 1]
            words[6] = label if kind != 1 else words[6]
            words[14] = [b"A", b".", b"?", words[14]][mark]
            words[7], words[13] = (words[13], b".") if kind == 2 else (words[7], words[13])
        return b" ".join(words)
    line = line.ljust(80)
    line = line[:21] + [b"A", b" ", line[21:22], b"7"][mark] + line[22:]
    if kind in (1, 4):
        line = line[:72] + [b"PROA", b"PROB", b"X   ", b"    "][copy if kind == 1 else copy // 2] + line[76:]
    elif kind == 2:
        line = line[:20] + b"ABC1"[copy : copy + 1] + line[21:]
    elif kind == 3:
        line = line[:72] + [b"    ", b"B   ", b"C   ", b"0.12"][copy] + line[76:]
    return line


def four_letters(data, rng):
    """One to three residues with a name of four letters."""
    lines, atoms = _rows(data)
    for _ in range(int(rng.integers(1, 4)) if atoms else 0):
        name = FOUR[rng.integers(len(FOUR))]
        for i in _residue_of(lines, atoms, rng):
            columns = _in_columns(lines[i])
            lines[i] = lines[i][:17] + name + lines[i][21:] if columns else _set(lines[i], residue=name)
    return b"\n".join(lines)


def force_field(data, rng):
    """Residues and atoms as AMBER, CHARMM and GROMACS call them."""
    lines, atoms = _rows(data)
    for _ in range(int(rng.integers(1, 4)) if atoms else 0):
        name, others = FORCE_FIELD[rng.integers(len(FORCE_FIELD))], rng.integers(2)
        for i in _residue_of(lines, atoms, rng):
            lines[i] = _set(lines[i], residue=name)
            if _in_columns(lines[i]):
                atom = lines[i][12:16]
                lines[i] = lines[i][:12] + (AROUND.get(atom, atom) if others else atom) + lines[i][16:]
            elif len(words := lines[i].split()) == 16:
                words[3] = AROUND.get(words[3], words[3]) if others else words[3]
                lines[i] = b" ".join(words)
    return b"\n".join(lines)


def waters(data, rng):
    """Waters, ions and lipids whose number is none, or is written in another way."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    behind = []
    for _ in range(int(rng.integers(1, 6))):
        name = b"HOH WAT TIP3 SOD POPC DA".split()[rng.integers(6)]
        line = _moved(lines[int(rng.choice(atoms))], float(rng.integers(5, 50)))
        if _in_columns(line):
            number = NUMBERS[rng.integers(len(NUMBERS))]
            line = (
                b"HETATM"
                + line[6:12]
                + b" O  "
                + line[16:17]
                + name.rjust(3).ljust(4)
                + line[21:22]
                + number
                + line[26:]
            )
        else:
            line = _set(line, residue=name, group=b"HETATM", number=[b".", b"?", b"99999", b"-5"][rng.integers(4)])
        behind.append(line)
    at = atoms[-1] + 1 if rng.integers(2) else int(rng.choice(atoms))
    return b"\n".join([*lines[:at], *behind, *lines[at:]])


def scores(data, rng):
    """A table of scores behind the atoms, as Rosetta writes it, with numbers of two to five decimals."""
    lines, atoms = _rows(data)
    if not atoms:
        return data
    table = [b"#BEGIN_POSE_ENERGIES_TABLE x.pdb", b"label fa_atr fa_rep fa_sol total"]
    for i in range(int(rng.integers(1, 60))):
        name = [b"GLY:NtermProteinFull", b"LEU", b"HIS_D", b"pose", b"CYS:disulfide"][rng.integers(5)]
        digits = int(rng.choice([2, 3, 4, 5]))
        numbers = (f"{rng.normal(0, 10 ** rng.integers(3)):.{digits}f}".encode() for _ in range(rng.integers(3, 22)))
        table.append(b" ".join([b"%s_%d" % (name, i + 1), *numbers]))
    at = atoms[-1] + 1 if rng.integers(2) else len(lines)
    return b"\n".join([*lines[:at], *table, b"#END_POSE_ENERGIES_TABLE x.pdb", *lines[at:]])


def letter(data, rng):
    """One letter of the record of one to three atoms deleted or inserted."""
    lines, atoms = _rows(data)
    for i in rng.choice(atoms, size=min(len(atoms), int(rng.choice([1, 1, 3]))), replace=False) if atoms else []:
        at, new = int(rng.integers(6)), [b"", b"", b"A", b"X", b"7"][rng.integers(5)]
        lines[i] = lines[i][:at] + new + lines[i][at + (not new) :]
    return b"\n".join(lines)


FAMILIES = (merged, merged, merged, four_letters, force_field, waters)
OF_PDB = (*FAMILIES, scores, letter)  # to mmCIF a record's name is a value like any other


# ---- what may be accepted --------------------------------------------------------------------------------------------


def _kinds(name: str, fourth: str | None) -> set[str | None]:
    """The residues that a name may be, None for no amino acid; `fourth` is column 21 of PDB, if that is known."""
    whole = name.rjust(3) + fourth if fourth else name
    if len(whole) < 4:
        return {PARENT.get(whole)}
    if whole[0] in "NC" and whole[1:] in UNMODIFIED and len(whole) == 4:
        return {PARENT[whole[1:]]}
    if len(whole) == 4 and whole[:3] in UNMODIFIED:  # LYSH, or a chain of two letters, of which mmCIF has none here
        return {PARENT[whole[:3]]} if fourth else {PARENT.get(whole)}
    return {None, PARENT.get(whole[:3])} if fourth and whole[:3] in PARENT and fourth in "ABC1" else {None}


def groups_of(name: str, data: bytes) -> dict[tuple, dict[str, list]]:
    """What gemmi reads of the first model: (chain, mark, number, residue) -> atom -> [(altloc, position, HETATM)]."""
    import gemmi

    text, groups = data.rstrip(b"\0").decode("latin-1"), defaultdict(lambda: defaultdict(list))
    if name.endswith(".cif"):
        tags = (
            "group_PDB label_atom_id label_alt_id label_comp_id label_asym_id label_seq_id pdbx_PDB_ins_code Cartn_x "
        )
        tags += "Cartn_y Cartn_z auth_seq_id auth_asym_id pdbx_PDB_model_num"
        rows = list(gemmi.cif.read_string(text)[0].find("_atom_site.", tags.split()))
        for group, atom, altloc, residue, label, seq, code, x, y, z, number, chain, model in rows:
            if model == rows[0][12]:
                place = f"{seq if number in '.?' else number}{code.strip('.?')}"
                key = label if chain in ".?" else chain, label, place, (residue, None, None)
                groups[key][atom].append((altloc.strip(".?"), (float(x), float(y), float(z)), group == "HETATM"))
        return groups
    lines, marks, ends, last = [], {}, Counter(), ""
    for line in text.splitlines():
        if line[:6].rstrip() in ("END", "ENDMDL") and lines:
            break
        if line.startswith(RECORDS):  # segment and TER become one mark, as to gemmi another chain between counts as TER
            last = line[20:22]
            mark = marks.setdefault((line[72:76], ends[last]), len(marks))
            lines.append(f"{line[:72]:72}{mark:04d}{line[76:]}")
        ends[last] += line[:6].rstrip() == "TER"
    for chain in gemmi.read_pdb_string("\n".join([*lines, "END", ""]))[0]:
        for residue in chain:
            fourth = chain.name[0] if len(chain.name) == 2 else ""
            key = chain.name, residue.segment, str(residue.seqid).strip(), (residue.name, fourth, chain.name)
            for atom in residue:
                place = atom.altloc.strip("\0 "), tuple(atom.pos), residue.het_flag == "H"
                groups[key][atom.name].append(place)
    return groups


def _amino(residue) -> set[str | None]:
    name, fourth, chain = residue
    if fourth or chain is None:
        return _kinds(name, fourth)
    return _kinds(name, "") | (_kinds(name, chain) if len(chain) == 1 else set())  # in column 21 or 22


def _usual(atom: str, kind: str) -> set[str]:
    names = {"OT1": "O", "OC1": "O", "OT2": "OXT", "OC2": "OXT", "SE": {"MET": "SD", "CYS": "SG"}.get(kind, "SE")}
    return {atom, names.get(atom, atom), "CD1" if (kind, atom) == ("ILE", "CD") else atom}


def near(a, b, limit=1e-3) -> bool:
    return math.dist(a, b) <= limit * (1 + max(map(abs, a)) / 1e3)


def check_molecules(name: str, data: bytes, structure: Structure) -> None:
    """No residue of two molecules, none lost without a word, none twice in a chain, no record overlooked."""
    if not name.endswith(".cif"):
        _check_records(data)
    protein, places = structure.protein, [(n, f"{n}{c}".strip()) for _, n, c in structure.positions]
    assert len(set(structure.positions)) == protein.num_residues, "a residue is twice in its chain"
    groups, by_number, unnumbered = groups_of(name, data), defaultdict(list), False
    for (chain, mark, number, residue), atoms in groups.items():
        if number in (".", "?"):
            unnumbered |= residue[0] in PARENT
        elif _amino(residue) != {None}:
            by_number[number].append((chain, mark, residue, atoms))
    assert not unnumbered or "amino acids: atoms without a residue number" in structure.dropped
    ours: dict[str, list] = defaultdict(list)  # number -> kind, atom -> position
    for index, (_, number) in enumerate(places):
        rows = (protein.atom_residue == index).nonzero().squeeze(1)
        atoms = {ATOM_NAMES[a]: tuple(p) for a, p in zip(protein.atom_name[rows].tolist(), protein.pos[rows].tolist())}
        ours[number].append((RESIDUES[protein.residue_type[index]], atoms))

    for number, residues in ours.items():
        for kind, atoms in residues:
            own = [
                found for _, _, residue, found in by_number[number]
                if kind in _amino(residue) and any(near(p, atoms["CA"], 1.0) for _, p, _ in found.get("CA", []))
            ]  # fmt: skip
            # One without CA belongs to a copy that lies within an angstrom: that copy is taken for the same residue.
            bare = [f for _, _, residue, f in by_number[number] if kind in _amino(residue) and "CA" not in f]
            own += [
                f for f in bare
                if any(near(p, q, 1.0) for g in own for a in f for _, p, _ in f[a] for _, q, _ in g.get(a, []))
            ]  # fmt: skip
            known = defaultdict(list)
            for rows in own:
                for name_of_atom, places in rows.items():
                    for usual in _usual(name_of_atom, kind):
                        known[usual] += [p for _, p, _ in places]
            for atom, pos in atoms.items():
                assert any(near(p, pos) for p in known[atom]), (
                    f"{kind} {number} {atom} at {pos} is of another residue, or of none"
                )

    for number, found in by_number.items():
        alpha = [atoms["CA"] for _, atoms in ours[number]]
        for chain, _, residue, atoms in found:
            for altloc, pos, hetero in atoms.get("CA", []):
                read = any(near(pos, p, 1.0) for p in alpha)
                others = [
                    a
                    for c, _, _, f in found
                    if c == chain
                    for a, p, _ in f.get("CA", [])
                    if any(near(p, q) for q in alpha)
                ]
                free = "free amino acids" in structure.dropped and (hetero or residue[0] not in UNMODIFIED)
                known = None not in _amino(residue)
                assert read or free or not known or any(a != altloc for a in others), (
                    f"{residue} {number} at {pos} is lost"
                )


CHANGED = {record[:i] + record[i + 1 :] for record in RECORDS for i in range(len(record))}
CHANGED |= {record[:i] + new + record[i:] for record in RECORDS for i in range(len(record) + 1) for new in "AX7"}
_COORDINATES = re.compile(r"\S*? *\d+ +\S.{2,30} +-?\d+\.\d{3} *-?\d+\.\d{3} *-?\d+\.\d{3} +\d\.\d\d")


def _check_records(data: bytes) -> None:
    """No line is left that was an atom and is none for a letter."""
    for line in data.split(b"ENDMDL")[0].decode("latin-1").splitlines():
        if not line.startswith(RECORDS) and line.split(" ")[0] in CHANGED:
            assert not _COORDINATES.match(line), f"overlooked: {line}"
