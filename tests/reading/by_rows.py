"""The parsing policy row by row, by plain loops: an oracle for the reader, which works on columns."""

import math
import string
from collections import Counter, defaultdict
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from siamdiff_min.files import StructureError
from siamdiff_min.protein.constants import CA, MODIFIED, PARENT, C, N
from siamdiff_min.reading.policy import _ATOMS, _NOT_A_RESIDUE, MAX_ALTERNATIVE
from siamdiff_min.reading.residues import MAX_CA_STEP, MAX_PEPTIDE_BOND
from siamdiff_min.tools.formats.repair import MAX_BOND, MIN_CA_STEP


class Row(NamedTuple):
    chain: str
    number: int
    code: str
    residue: str
    atom: str
    altloc: str
    occupancy: float
    xyz: tuple
    element: str
    hetero: bool
    marks: tuple
    lost_code: bool = False


def residues_of(rows, chain=None):
    """The residues of each chain as {atom: row}, and the counts in their order. Raises StructureError."""
    rows = with_last_oxygens(rows)
    if any(again(rows, lambda row: row.chain)):
        kept = [k for k in range(len(rows[0].marks)) if not cuts_a_bond(rows, k)]
        rows = [row._replace(marks=tuple(row.marks[k] for k in kept)) for row in rows]
        rows = tell_apart(with_codes(rows), chain)
    if chain is not None:
        rows = [row for row in rows if row.chain in chain]
    counts = Counter({"numbers already taken (the residue is given an insertion code)": 0})
    for row in rows:
        counts["numbers already taken (the residue is given an insertion code)"] += row.atom == "CA" and row.lost_code
    chains = {name: in_chain(residues, counts) for name, residues in policy(rows, counts).items()}
    return {name: residues for name, residues in chains.items() if residues}, +counts


def with_last_oxygens(rows):
    rows = list(rows)
    found = list(rows)
    for i, row in enumerate(rows):
        alone = i > 0 and rows[i - 1][:3] != row[:3] and (i + 1 == len(rows) or rows[i + 1][:3] != row[:3])
        if row.atom == "OXT" and alone and rows[i - 1].chain == row.chain:
            carbons = [r for r in rows[:i] if r[:3] == rows[i - 1][:3] and r.atom == "C"]
            if any(math.dist(r.xyz, row.xyz) < MAX_BOND for r in carbons):
                found[i] = row._replace(number=rows[i - 1].number, code=rows[i - 1].code, residue=rows[i - 1].residue)
    return found


def cuts_a_bond(rows, k):
    runs = [list(run) for _, run in groupby(rows, key=lambda row: (row[:4], row.marks[k]))]
    for a, b in pairwise(runs):
        carbon = next((row.xyz for row in a if row.atom == "C"), None)
        nitrogen = next((row.xyz for row in b if row.atom == "N"), None)
        other = a[0].marks[k] != b[0].marks[k] and a[0].chain == b[0].chain
        if other and carbon and nitrogen and math.dist(carbon, nitrogen) < MAX_BOND:
            return True
    return False


def again(rows, molecule):
    first = {}
    for row in rows:
        if row.atom == "CA" and row.residue in PARENT:
            xyz = first.setdefault((molecule(row), row.number, row.code, row.altloc), row.xyz)
            if math.dist(xyz, row.xyz) > MAX_ALTERNATIVE:
                yield row


def tell_apart(rows, chain):
    twice = {}
    for row in again(rows, lambda row: row.chain):
        twice.setdefault(row.chain, row)
    parts = defaultdict(list)
    for row in rows if twice else ():
        parts[row.chain].append(row)
    taken, names = set(parts), {}
    for mixed, (_, number, code, *_) in twice.items():
        for k in [*range(len(parts[mixed][0].marks)), slice(None)]:
            if not any(again(parts[mixed], lambda row, k=k: row.marks[k])):
                break
        else:
            if chain is None or mixed in chain:
                raise StructureError("x", "the same residue twice", f"chain {mixed} {number}{code.strip()}")
            continue
        taken.remove(mixed)
        name_of = dict.fromkeys(row.marks[k] for row in parts[mixed])
        for i, mark in enumerate(name_of, 1):
            if isinstance(mark, str):
                name = mixed if mark in ("", mixed) else f"{mixed}_{mark}" if mixed else mark
            else:
                name = mixed if i == 1 else f"{mixed}_{i}"
            while name in taken:
                name += "_"
            taken.add(name)
            name_of[mark] = name
        names |= {(mixed, row.marks): name_of[row.marks[k]] for row in parts[mixed]}
    return [row._replace(chain=names.get((row.chain, row.marks), row.chain)) for row in rows]


def with_codes(rows):
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: (row[:3], row.marks))]
    often = Counter((block[0][:3], block[0].marks) for block in blocks if any(row.residue in PARENT for row in block))
    taken, found = {(row[:3], row.marks) for row in rows}, []
    for block in blocks:
        (chain, number, code, *_), marks = block[0], block[0].marks
        alone = not code.strip() and often[block[0][:3], marks] == 1
        first, *others = bonded_parts(block) if alone else [block]
        letters = [c for c in string.ascii_uppercase if ((chain, number, c), marks) not in taken]
        if len(others) > len(letters):
            first, others = block, []
        found += first
        for part, letter in zip(others, letters):
            found += [row._replace(code=letter, lost_code=True) for row in part]
    return found


def bonded_parts(block):
    parts = []
    for row in block:
        if not parts or row.residue != parts[-1][0].residue or row.atom == parts[-1][0].atom == "N":
            parts.append([])
        parts[-1].append(row)
    backbones = [{row.atom: row for row in part if row.atom in ("N", "CA", "C")} for part in parts]
    for part, backbone in zip(parts, backbones):
        atoms = [(row.atom, row.altloc) for row in part]
        whole = len(backbone) == 3 == sum(row.atom in backbone for row in part) and part[0].atom == "N"
        plain = not any(row.altloc.strip() for row in backbone.values()) and part[0].residue in PARENT
        if not (whole and plain and len(set(atoms)) == len(atoms)):
            return [block]
    for a, b in pairwise(backbones):
        bond, step = math.dist(a["C"].xyz, b["N"].xyz), math.dist(a["CA"].xyz, b["CA"].xyz)
        if not (bond < MAX_BOND and MIN_CA_STEP < step < MAX_CA_STEP):
            return [block]
    return parts


def policy(rows, dropped):
    positions = {}
    for (*position, residue), group in groupby(rows, key=itemgetter(0, 1, 2, 3)):
        positions.setdefault(tuple(position), {}).setdefault(residue, []).extend(group)
    chains = {chain: [] for chain, _, _ in positions}
    for (chain, _, _), names in positions.items():
        options = []
        for name, group in names.items():
            if name in PARENT:
                atoms, reasons = one_conformation(group, _ATOMS[name])
                options.append(atoms)
                dropped.update(reasons)
            elif {"N", "CA", "C"} <= {row.atom for row in group} and name.isalnum() and len(name) < 6:
                dropped[f"residues of unknown parent ({name})"] += 1
            else:
                dropped[_NOT_A_RESIDUE.get(name, "ligands and unknown residues")] += 1
        with_ca = [atoms for atoms in options if CA in atoms]
        heavy = sum(name in PARENT and any(not is_hydrogen(row) for row in group) for name, group in names.items())
        dropped["residues without CA"] += heavy - len(with_ca)
        if with_ca:
            chains[chain].append(max(with_ca, key=lambda atoms: atoms[CA].occupancy))
            dropped["alternative residues"] += len(with_ca) - 1
    return chains


def in_chain(residues, dropped):
    by_number, kept = {residue[CA].number: residue for residue in residues}, []
    for i, residue in enumerate(residues):
        number, name, hetero = residue[CA].number, residue[CA].residue, residue[CA].hetero
        beside = [*residues[max(i - 1, 0) : i + 2], by_number.get(number - 1), by_number.get(number + 1)]
        if not (hetero or name in MODIFIED) or any(bonded(residue, b) for b in beside if b not in (None, residue)):
            dropped["modified residues (read as their parent)"] += name in MODIFIED
            kept.append(residue)
        else:
            dropped["free amino acids"] += 1
    return kept


def bonded(a, b):
    if {N, C} <= a.keys() & b.keys():
        return min(math.dist(a[C].xyz, b[N].xyz), math.dist(b[C].xyz, a[N].xyz)) < MAX_PEPTIDE_BOND
    return math.dist(a[CA].xyz, b[CA].xyz) < MAX_CA_STEP


def is_hydrogen(row):
    unknown = row.atom not in _ATOMS[row.residue]
    return unknown and (row.element in ("H", "D") or row.atom.lstrip(string.digits)[:1] in ("H", "D"))


def one_conformation(group, known):
    options, reasons = {}, []
    for row in group:
        index = known.get(row.atom)
        if index is None:
            reasons.append("hydrogens" if is_hydrogen(row) else "unknown atom names")
        elif row.altloc in options.setdefault(index, {}):
            reasons.append("duplicate atoms")
        else:
            options[index][row.altloc] = row
    occupancies = {}
    for rows in options.values():
        if len(rows) > 1:
            reasons += ["alternative locations"] * (len(rows) - 1)
            for altloc, row in rows.items():
                occupancies.setdefault(altloc, []).append(row.occupancy)
    best = max(occupancies, key=lambda a: round(sum(occupancies[a]) / len(occupancies[a]), 6), default="")
    chosen = {
        index: rows[best] if best in rows else max(rows.values(), key=lambda row: row.occupancy)
        for index, rows in options.items()
    }
    return chosen, reasons
