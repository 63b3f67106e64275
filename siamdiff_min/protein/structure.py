"""From rows of atoms to a `Structure`: the parsing policy (altlocs, modified residues, what is left out or refused).

Every format ends here: PDB, mmCIF and the data frames of ATOM3D are rows, one per atom. A position is chain, residue
number and insertion code, whatever the type of its records (ATOM, HETATM). No coordinate is ever made up.
"""

import math
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from ..files import StructureError
from .constants import ATOM_ELEMENT, ATOM_INDEX, CA, MODIFIED, PARENT, PARENT_ATOM, RESIDUE_ATOMS, RESIDUE_INDEX, C, N
from .geometry import length
from .neighbors import candidates, histogram, ranges
from .protein import Protein

MAX_COORDINATE = 1e5  # angstrom; float32 still resolves 0.01 angstrom there
MAX_REACH = 12.0  # angstrom from an atom to the CA of its residue; 10.0 in 3,015 real chains
MAX_DENSITY = ((4.5, 100, "atoms"), (10.0, 150, "CA atoms"))  # angstrom, others so near; 39 and 57 in these chains
MAX_ALTERNATIVE = 1.0  # angstrom from CA to CA; beyond it is another residue, unless an altloc says otherwise
MAX_PEPTIDE_BOND, MAX_CA_STEP = 2.5, 4.2  # angstrom, between neighbours in a chain: from C to N, from CA to CA
MIN_CA_STEP, MAX_REAL_BOND = 2.6, 1.8  # angstrom, where alternatives must be told from neighbours: 2.9 (cis) and 1.33
MAX_CHAIN_ID = 32  # characters; the longest of the PDB has four, a table of ids takes the width of the longest
_NUCLEOTIDES = [*"ACGUINT", *(f"D{base}" for base in "ACGUINT"), "ADE", "CYT", "GUA", "URA", "THY"]
_NOT_A_RESIDUE = dict.fromkeys(["HOH", "WAT", "DOD", "H2O", "TIP", "TP3", "SOL", "SPC"], "waters")
_NOT_A_RESIDUE |= dict.fromkeys(_NUCLEOTIDES, "nucleotides")


@dataclass(frozen=True)
class Structure:
    """A protein read from one file, and counts of everything left out."""

    protein: Protein
    chain_names: tuple[str, ...]  # author chain ids, in the order of `protein.chain`
    # reason -> how many atoms or residues were left out or replaced
    dropped: Counter = field(default_factory=Counter)
    labels: dict = field(default_factory=dict)  # kept beside the protein in a store: plain values and tensors

    @property
    def positions(self) -> list[tuple[str, int, str]]:
        """Chain, number and insertion code of every residue."""
        chains = [self.chain_names[chain] for chain in self.protein.chain.tolist()]
        return list(zip(chains, self.protein.residue_number.tolist(), map(chr, self.protein.insertion_code.tolist())))


class AtomRow(NamedTuple):
    """One atom of a file, as it stands there."""

    chain: str
    number: int
    code: str
    residue: str
    atom: str
    altloc: str
    occupancy: float
    xyz: tuple
    element: str
    hetero: bool = False  # of a HETATM record
    marks: tuple = ()  # tell molecules of one chain id apart: segment, number of TER before; or the label column
    lost_code: bool = False  # the code is not in the file: `_with_codes`


def assemble(
    path: str,
    rows: Iterable[AtomRow],
    dropped: Mapping[str, int],
    chain: str | Sequence[str] | None = None,
    restore_codes: bool = True,
) -> Structure:
    """Apply the parsing policy. `dropped` counts what the reader left out; `path` is the file's name in errors.

    With `chain` only these chains: a name, or several as a list. A text that is no name stands for its letters. Lost
    insertion codes are made anew, unless the caller finds residues by their codes.
    """
    rows = list(rows)
    if restore_codes and any(_again(rows, lambda row: row.chain)):
        rows = _with_codes(rows)
    rows = _tell_apart(path, rows, chain)
    if chain is not None:
        names = dict.fromkeys(row.chain for row in rows)
        wanted = {chain} if isinstance(chain, str) and (chain in names or not chain) else set(chain)
        if missing := wanted - names.keys():
            raise StructureError(
                path, "no such chain", f"asked for {', '.join(sorted(missing))}, has {', '.join(names)}"
            )
        rows = [row for row in rows if row.chain in wanted]
    chains, left_out = _apply_policy(rows)
    counts = Counter(dropped)
    counts.update(left_out)
    numbered_twice = sum(row.atom == "CA" and row.lost_code for row in rows)
    counts["numbers already taken (the residue is given an insertion code)"] += numbered_twice
    for name, residues in chains.items():
        chains[name], left_out = _in_chain(residues)
        counts.update(left_out)
    chains, counts = {name: residues for name, residues in chains.items() if residues}, +counts  # without zeros
    if not chains:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
        raise StructureError(path, "no protein in it", f"skipped: {reasons}" if reasons else "")
    longest = max(chains, key=len)
    if len(longest) > MAX_CHAIN_ID:
        raise StructureError(path, "chain id too long", f"{longest[:MAX_CHAIN_ID]}..., {len(longest)} characters")
    return Structure(_protein(path, chains), tuple(chains), counts)


def join(structures: list[Structure], **labels) -> Structure:
    """Several structures as one protein, in order; their chains stay apart. `labels` become its labels."""
    packed = Protein.pack([structure.protein for structure in structures])
    first_chain = torch.tensor([0, *(len(structure.chain_names) for structure in structures)]).cumsum(0)
    chain = packed.chain + first_chain[packed.residue_protein]
    protein = replace(packed, chain=chain, residue_protein=torch.zeros_like(packed.residue_protein), num_proteins=1)
    names = tuple(name for structure in structures for name in structure.chain_names)
    return Structure(protein, names, sum((structure.dropped for structure in structures), Counter()), labels)


def _tell_apart(path: str, rows: list[AtomRow], chain: str | Sequence[str] | None) -> list[AtomRow]:
    """The rows, with one molecule in each chain. If a chain has a residue twice, a mark of its rows splits it.

    That is the first mark that tells all its residues apart, or else all marks together. Raises StructureError if no
    mark does, but only for chains that are asked for.
    """
    twice: dict[str, AtomRow] = {}
    for row in _again(rows, lambda row: row.chain):
        twice.setdefault(row.chain, row)
    parts: dict[str, list[AtomRow]] = defaultdict(list)
    for row in rows if twice else ():
        parts[row.chain].append(row)
    taken, names = set(parts), {}
    for mixed, (_, number, code, *_) in twice.items():
        for k in [*range(len(parts[mixed][0].marks)), slice(None)]:
            if not any(_again(parts[mixed], lambda row, k=k: row.marks[k])):
                break
        else:
            if chain is None or mixed in [chain, *chain]:
                raise StructureError(path, "the same residue twice", f"chain {mixed} {number}{code.strip()}")
            continue
        taken.remove(mixed)
        name_of: dict = dict.fromkeys(row.marks[k] for row in parts[mixed])
        for i, mark in enumerate(name_of, 1):
            if isinstance(mark, str):  # a name: a segment's, or the label column's
                name = mixed if mark in ("", mixed) else f"{mixed}_{mark}" if mixed else mark
            else:
                name = mixed if i == 1 else f"{mixed}_{i}"
            while name in taken:
                name += "_"
            taken.add(name)
            name_of[mark] = name
        names |= {(mixed, row.marks): name_of[row.marks[k]] for row in parts[mixed]}
    return [row._replace(chain=names.get((row.chain, row.marks), row.chain)) for row in rows] if names else rows


def _with_codes(rows: list[AtomRow]) -> list[AtomRow]:
    """The rows, with free codes for residues that share a number because their insertion codes were lost.

    Programs that drop the codes write 27, 27A, 27B as 27, 27, 27 (5 of 204 structures of a published set).
    """
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: (row[:3], row.marks))]
    often = Counter((block[0][:3], block[0].marks) for block in blocks if any(row.residue in PARENT for row in block))
    taken, found = {(row[:3], row.marks) for row in rows}, []
    for block in blocks:
        (chain, number, code, *_), marks = block[0], block[0].marks
        alone = not code.strip() and often[block[0][:3], marks] == 1
        first, *others = _bonded_parts(block) if alone else [block]
        letters = [c for c in string.ascii_uppercase if ((chain, number, c), marks) not in taken]
        if len(others) > len(letters):
            first, others = block, []
        found += first
        for part, letter in zip(others, letters):
            found += [row._replace(code=letter, lost_code=True) for row in part]
    return found


def _bonded_parts(block: list[AtomRow]) -> list[list[AtomRow]]:
    """The residues of a block, each a whole one that begins with N and is bonded to the next; else the block alone."""
    parts: list[list[AtomRow]] = []
    for row in block:
        again = parts and (row.residue != parts[-1][0].residue or row.atom == parts[-1][0].atom == "N")
        if not parts or again:
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
        if not (bond < MAX_REAL_BOND and MIN_CA_STEP < step < MAX_CA_STEP):
            return [block]
    return parts


def _again(rows: list[AtomRow], molecule: Callable[[AtomRow], object]) -> Iterator[AtomRow]:
    """CA rows whose residue came before in the same molecule, at another place: not an alternative location."""
    first: dict[tuple, tuple] = {}
    for row in rows:
        if row.atom == "CA" and row.residue in PARENT:
            xyz = first.setdefault((molecule(row), row.number, row.code, row.altloc), row.xyz)
            if xyz is not row.xyz and math.dist(xyz, row.xyz) > MAX_ALTERNATIVE:
                yield row


_ATOMS = {name: {a: ATOM_INDEX[a] for a in [*RESIDUE_ATOMS[parent], "OXT"]} for name, parent in PARENT.items()}
for (_name, _atom), _parent_atom in PARENT_ATOM.items():
    _ATOMS[_name][_atom] = ATOM_INDEX[_parent_atom]
Residue = dict[int, AtomRow]  # index into ATOM_NAMES -> atom; each atom has the residue's name and position


def _apply_policy(rows: Iterable[AtomRow]) -> tuple[dict[str, list[Residue]], Counter]:
    """The residues of every chain, in file order; and counts of what is left out.

    All rows with the same chain, number and insertion code are one position, wherever they stand in the file and
    whatever their record type: alternative residues at one position cannot become two residues.
    """
    dropped = Counter()
    positions: dict[tuple, dict[str, list[AtomRow]]] = {}  # chain, number, code -> name of the residue -> its rows
    for (*position, residue), group in groupby(rows, key=itemgetter(0, 1, 2, 3)):
        positions.setdefault(tuple(position), {}).setdefault(residue, []).extend(group)

    chains: dict[str, list[Residue]] = {chain: [] for chain, _, _ in positions}
    for (chain, _, _), names in positions.items():
        options = []
        for name, group in names.items():
            if name in PARENT:
                atoms, reasons = _one_conformation(group, _ATOMS[name])
                options.append(atoms)
                if reasons:  # most residues have none
                    dropped.update(reasons)
            elif {"N", "CA", "C"} <= {row.atom for row in group} and name.isalnum() and len(name) < 6:
                dropped[f"residues of unknown parent ({name})"] += 1
            else:
                dropped[_NOT_A_RESIDUE.get(name, "ligands and unknown residues")] += 1
        with_ca = [atoms for atoms in options if CA in atoms]
        dropped["residues without CA"] += len(options) - len(with_ca)
        if with_ca:
            chains[chain].append(max(with_ca, key=lambda atoms: _number(atoms[CA].occupancy)))  # the first of equals
            dropped["alternative residues"] += len(with_ca) - 1
    return chains, dropped


def _in_chain(residues: list[Residue]) -> tuple[list[Residue], Counter]:
    """The residues without free amino acids, and counts of what is left out or replaced.

    A HETATM or a modified residue must be bonded to a residue next to it, in the file or by number.
    """
    by_number, kept, dropped = {residue[CA].number: residue for residue in residues}, [], Counter()
    for i, residue in enumerate(residues):
        number, name, hetero = residue[CA].number, residue[CA].residue, residue[CA].hetero
        beside = [*residues[max(i - 1, 0) : i + 2], by_number.get(number - 1), by_number.get(number + 1)]
        if not (hetero or name in MODIFIED) or any(_bonded(residue, b) for b in beside if b not in (None, residue)):
            dropped["modified residues (read as their parent)"] += name in MODIFIED
            kept.append(residue)
        else:
            dropped["free amino acids"] += 1
    return kept, dropped


def _bonded(a: Residue, b: Residue) -> bool:
    """Whether a peptide bond joins two residues. If N or C is missing, the distance of their CA decides."""
    if {N, C} <= a.keys() & b.keys():
        return min(math.dist(a[C].xyz, b[N].xyz), math.dist(b[C].xyz, a[N].xyz)) < MAX_PEPTIDE_BOND
    return math.dist(a[CA].xyz, b[CA].xyz) < MAX_CA_STEP


def _one_conformation(group: list[AtomRow], known: dict[str, int]) -> tuple[dict[int, AtomRow], list[str]]:
    """One row for every known atom of a residue, and a reason for every row that is left out.

    The altloc with the highest occupancy is taken, the first of equals. It is chosen once for the residue, by the mean
    over the atoms that have several. An atom that lacks it takes its own highest.
    """
    options: dict[int, dict[str, AtomRow]] = {}
    reasons: list[str] = []
    for row in group:
        index = known.get(row.atom)
        if index is None:
            hydrogen = row.element in ("H", "D") or row.atom.lstrip(string.digits)[:1] in ("H", "D")
            reasons.append("hydrogens" if hydrogen else "unknown atom names")
        elif row.altloc in options.setdefault(index, {}):
            reasons.append("duplicate atoms")
        else:
            options[index][row.altloc] = row
    occupancies: dict[str, list[float]] = {}
    for rows in options.values():
        if len(rows) > 1:
            reasons += ["alternative locations"] * (len(rows) - 1)
            for altloc, row in rows.items():
                occupancies.setdefault(altloc, []).append(_number(row.occupancy))
    best = max(occupancies, key=lambda a: round(sum(occupancies[a]) / len(occupancies[a]), 6), default="")
    chosen = {
        index: rows[best] if best in rows else max(rows.values(), key=lambda row: _number(row.occupancy))
        for index, rows in options.items()
    }
    return chosen, reasons


def _number(occupancy: float) -> float:
    """Occupancies that cannot be compared or rounded count as zero."""
    return occupancy if abs(occupancy) < 1e6 else 0.0


def _protein(path: str, chains: dict[str, list[Residue]]) -> Protein:
    """All chains as one `Protein`. Raises StructureError if no real protein looks like that."""
    residues = [residue for chain in chains.values() for residue in chain]
    _, numbers, codes, names, *_ = zip(*(residue[CA] for residue in residues))
    if max(map(abs, numbers)) >= 2**31:
        raise StructureError(path, "residue number out of range", str(max(numbers, key=abs)))
    if any(len(code) != 1 or ord(code) > 126 for code in codes):
        raise StructureError(path, "unreadable", "insertion code of more than one ASCII character")
    pos = np.array([row.xyz for residue in residues for row in residue.values()], dtype=np.float64)
    check_coordinates(path, pos)
    name = np.array([index for residue in residues for index in residue])
    atom_residue = np.repeat(np.arange(len(residues)), list(map(len, residues)))
    alpha = pos[name == CA]
    reach = np.linalg.norm(pos - alpha[atom_residue], axis=1)
    if reach.max() > MAX_REACH:
        chain, number, _, residue, *_ = residues[atom_residue[reach.argmax()]][CA]
        detail = f"{residue} {number} of chain {chain!r}, {reach.max():.0f} angstrom from an atom to its CA"
        raise StructureError(path, "torn residue", detail)
    for points, (radius, most, what) in zip((pos, alpha), MAX_DENSITY):
        if _crowded(torch.from_numpy(points), radius, most):
            raise StructureError(path, "denser than matter", f"over {most} {what} within {radius} angstrom of one")
    lengths = [len(chain) for chain in chains.values()]
    return Protein(
        pos=torch.from_numpy(pos.astype(np.float32)),
        element=torch.from_numpy(np.array(ATOM_ELEMENT)[name]),
        atom_name=torch.from_numpy(name),
        atom_residue=torch.from_numpy(atom_residue),
        residue_type=torch.tensor([RESIDUE_INDEX[PARENT[name]] for name in names]),
        masked=torch.zeros(len(residues), dtype=torch.bool),
        residue_number=torch.tensor(numbers),
        insertion_code=torch.tensor([ord(code) for code in codes]),
        residue_index=torch.cat([torch.arange(length) for length in lengths]),
        chain=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        residue_protein=torch.zeros(len(residues), dtype=torch.long),
    )


def check_coordinates(path: str, pos: np.ndarray | torch.Tensor) -> None:
    """Raise StructureError unless all coordinates (N, 3), in angstrom, are finite and within MAX_COORDINATE."""
    if not (abs(pos) <= MAX_COORDINATE).all():  # also False for nan
        raise StructureError(path, "coordinates out of range", f"not finite or beyond {MAX_COORDINATE:.0f} angstrom")


def _crowded(pos: torch.Tensor, radius: float, most: int) -> bool:
    """Whether a point of pos (N, 3) has more than `most` others within `radius`. 500 points are compared at a time.

    If no point has, `radius_pairs` compares at most 20 * most pairs for each point. That bounds its memory.
    """
    order, first, last = candidates(pos, torch.zeros(len(pos), dtype=torch.long), radius)
    if (last - first).sum(1).max() > 20 * most:
        return True
    count = torch.zeros(len(pos), dtype=torch.long)
    for rows in torch.arange(len(pos)).split(500):
        k, j = ranges(first[rows].flatten(), last[rows].flatten())
        i, j = order[rows[k // first.shape[1]]], order[j]
        near = length(pos[i] - pos[j]) < radius
        count += histogram(torch.cat([i[near], j[near]]), len(pos))
    return bool(count.max() > most)
