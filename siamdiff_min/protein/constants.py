"""Vocabularies and side-chain chemistry of the 20 standard amino acids.

Everything here is data. The residue order and the 18 element channels are those of torchdrug, so that released encoders
can be loaded (App. D). Heavy atoms follow the PDB chemical component dictionary; the chi angles are
the standard side-chain torsions of IUPAC-IUB (1970), Biochemistry 9:3471.
"""

from Bio.Data.PDBData import protein_letters_3to1_extended

RESIDUES = tuple(
    "GLY ALA SER PRO VAL THR CYS ILE LEU ASN ASP GLN LYS GLU MET HIS PHE ARG TYR TRP".split()  # noqa: SIM905
)
RESIDUE_INDEX = {name: i for i, name in enumerate(RESIDUES)}
ONE_LETTER = "GASPVTCILNDQKEMHFRYW"  # same order as RESIDUES
NUM_RESIDUE_TYPES = 20
NUM_RESIDUE_CHANNELS = 21  # one-hot width; channel 20 ("unknown") is never set by this package's readers

_FORCE_FIELD = {  # its names of protonation states and disulphides: AMBER and CHARMM
    "HID": "HIS", "HIE": "HIS", "HIP": "HIS", "HSD": "HIS", "HSE": "HIS", "HSP": "HIS",
    "CYX": "CYS", "CYM": "CYS", "ASH": "ASP", "GLH": "GLU", "LYN": "LYS",
}  # fmt: skip
_INSIDE = {name: name for name in RESIDUES} | _FORCE_FIELD
_AT_ENDS = {f"N{name}": parent for name, parent in _INSIDE.items()}
_AT_ENDS |= {f"C{name}": parent for name, parent in _INSIDE.items()}
_FORCE_FIELD |= _AT_ENDS | {  # NLYS, CMET: the first and the last residue of a chain, in old AMBER and GROMACS
    "HISA": "HIS", "HISB": "HIS", "HISD": "HIS", "HISE": "HIS", "HISH": "HIS", "HIS1": "HIS", "HIS2": "HIS",
    "CYSH": "CYS", "CYS1": "CYS", "CYS2": "CYS", "ASPH": "ASP", "ASPP": "ASP", "GLUH": "GLU", "GLUP": "GLU",
    "LYSH": "LYS", "LYSN": "LYS", "ARGN": "ARG",
}  # fmt: skip
_LISTED = {
    name.strip(): RESIDUES[ONE_LETTER.index(letter)]
    for name, letter in protein_letters_3to1_extended.items()
    if letter in ONE_LETTER  # other versions of Biopython may have X, U or B
}
PARENT = _LISTED | {"SEC": "CYS", "PYL": "LYS"} | _FORCE_FIELD  # every name that is read as one of the 20, and as which
MODIFIED = PARENT.keys() - RESIDUE_INDEX.keys() - _FORCE_FIELD.keys()  # about 1,000: MSE, SEP, TPO, KCX, ...
UNMODIFIED = PARENT.keys() - MODIFIED
PARENT_ATOM = {("MSE", "SE"): "SD", ("SEC", "SE"): "SG"}  # selenium sits where the parent has sulphur
# Force fields name some atoms their own way: CHARMM and GROMACS.
PARENT_ATOM |= {(name, "CD"): "CD1" for name in UNMODIFIED if PARENT[name] == "ILE"}
_TERMINAL = {"OT1": "O", "OT2": "OXT", "OC1": "O", "OC2": "OXT"}
for _atom, _usual in _TERMINAL.items():
    PARENT_ATOM |= {(name, _atom): _usual for name in UNMODIFIED}

# Side-chain heavy atoms beyond CB, in the order of the chain (Greek letters G, D, E, Z, H).
_BEYOND_CB = {
    "GLY": "", "ALA": "", "SER": "OG", "CYS": "SG", "PRO": "CG CD", "VAL": "CG1 CG2", "THR": "OG1 CG2",
    "ILE": "CG1 CG2 CD1", "LEU": "CG CD1 CD2", "ASN": "CG OD1 ND2", "ASP": "CG OD1 OD2",
    "GLN": "CG CD OE1 NE2", "GLU": "CG CD OE1 OE2", "LYS": "CG CD CE NZ", "MET": "CG SD CE",
    "ARG": "CG CD NE CZ NH1 NH2", "HIS": "CG ND1 CD2 CE1 NE2", "PHE": "CG CD1 CD2 CE1 CE2 CZ",
    "TYR": "CG CD1 CD2 CE1 CE2 CZ OH", "TRP": "CG CD1 CD2 NE1 CE2 CE3 CZ2 CZ3 CH2",
}  # fmt: skip
BACKBONE = ("N", "CA", "C", "O")
MAX_MISSING = 0.01  # of the backbone atoms, before a warning: lowest cosine to the whole .997, at .05 it is .974
RESIDUE_ATOMS = {name: [*BACKBONE, "CB", *_BEYOND_CB[name].split()] for name in RESIDUES}
RESIDUE_ATOMS["GLY"].remove("CB")
"""Heavy atoms of every residue; a chain's last residue may also carry OXT."""

_SIDE_CHAIN_NAMES = set(" ".join(_BEYOND_CB.values()).split())
ATOM_NAMES = [*BACKBONE, "CB", *sorted(_SIDE_CHAIN_NAMES), "OXT"]
ATOM_INDEX = {name: i for i, name in enumerate(ATOM_NAMES)}  # N, CA, C, O are 0, 1, 2, 3
N, CA, C, O = range(4)

ELEMENTS = ("?", "H", "HE", "LI", "BE", "B", "C", "N", "O", "F", "NE", "NA", "MG", "AL", "SI", "P", "S", "other")
NUM_ELEMENTS = len(ELEMENTS)  # 18; the index is the atomic number, everything beyond sulphur is the last channel
ATOM_ELEMENT = [ELEMENTS.index(name[0]) for name in ATOM_NAMES]  # C, N, O and S are the only heavy elements here

_GREEK = {"A": 1, "B": 2, "G": 3, "D": 4, "E": 5, "Z": 6, "H": 7}
GREEK_RANK = [_GREEK.get(n[1:2], 0) for n in ATOM_NAMES]
"""Distance from the backbone along the side chain: 0 for N, C, O, OXT; 1 for CA; 2 for CB; 3 for gamma atoms, ..."""

# The four atoms of chi 1..4. Rotating about the middle bond moves all side-chain atoms as remote as the fourth or more.
CHI_ATOMS = {
    "GLY": [], "ALA": [],
    "SER": ["N CA CB OG"], "CYS": ["N CA CB SG"], "VAL": ["N CA CB CG1"], "THR": ["N CA CB OG1"],
    "PRO": ["N CA CB CG", "CA CB CG CD"],
    "ILE": ["N CA CB CG1", "CA CB CG1 CD1"], "LEU": ["N CA CB CG", "CA CB CG CD1"],
    "ASN": ["N CA CB CG", "CA CB CG OD1"], "ASP": ["N CA CB CG", "CA CB CG OD1"],
    "HIS": ["N CA CB CG", "CA CB CG ND1"], "PHE": ["N CA CB CG", "CA CB CG CD1"],
    "TYR": ["N CA CB CG", "CA CB CG CD1"], "TRP": ["N CA CB CG", "CA CB CG CD1"],
    "MET": ["N CA CB CG", "CA CB CG SD", "CB CG SD CE"],
    "GLN": ["N CA CB CG", "CA CB CG CD", "CB CG CD OE1"], "GLU": ["N CA CB CG", "CA CB CG CD", "CB CG CD OE1"],
    "LYS": ["N CA CB CG", "CA CB CG CD", "CB CG CD CE", "CG CD CE NZ"],
    "ARG": ["N CA CB CG", "CA CB CG CD", "CB CG CD NE", "CG CD NE CZ"],
}  # fmt: skip
MAX_CHI = 4


def _chi_rows(residue: str) -> list[list[int]]:
    """Its atoms (4, 4) as indices into ATOM_NAMES."""
    rows = [[ATOM_INDEX[atom] for atom in atoms.split()] for atoms in CHI_ATOMS[residue]]
    missing = MAX_CHI - len(rows)
    return rows + [[-1] * 4] * missing


CHI_ATOM_INDEX = [_chi_rows(residue) for residue in RESIDUES]
"""CHI_ATOMS as a table (20, 4, 4) of indices into ATOM_NAMES, -1 where a residue has no such chi."""

# Bondi (1964), J. Phys. Chem. 68:441: van der Waals radii in angstrom of C, N, O, S, by atomic number.
VDW_RADIUS = {6: 1.70, 7: 1.55, 8: 1.52, 16: 1.80}
ATOM_RADIUS = [VDW_RADIUS[e] for e in ATOM_ELEMENT]
