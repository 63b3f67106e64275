"""`benchmarks.make_sets decoys` and `environments`: what they write is read back by the task, with its labels."""

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks import make_sets
from benchmarks.pdb import write_pdb
from benchmarks.superpose import gdt_ts
from siamdiff_min.data import atom3d
from siamdiff_min.data.samples import SAMPLES
from siamdiff_min.data.sources import bundle_path, find_structures
from siamdiff_min.data.store import open_store
from siamdiff_min.files import ConfigError
from siamdiff_min.protein.constants import CA

pytest.importorskip("lmdb")


INDEX = ["1EJG_A\ta", "5PTI_A\tb", "2GB1_A\tc", "4LZT_A\td"]


@pytest.fixture
def natives(tmp_path):
    """probe.tsv with two families in testing, and the proteins by name."""
    bundled = {source.name: source for source in find_structures(bundle_path()).sources}
    rows = [("1EJG_A", "train", "a"), ("5PTI_A", "val", "b"), ("2GB1_A", "test", "c"), ("4LZT_A", "test", "d")]
    proteins = {}
    for name, *_ in rows:
        structure = bundled[name].read()
        proteins[name] = structure.protein
        write_pdb(tmp_path / f"{name}.pdb", structure.protein, structure.chain_names)
    lines = [f"{name}.pdb\t{split}\t{family}\t{family}\t" for name, split, family in [*rows, ("1EJG_A", "train", "a")]]
    (tmp_path / "probe.tsv").write_text("\n".join(["file\tsplit\tfamily\tcluster\tpartners", *lines]) + "\n")
    yield proteins
    atom3d._environment.cache_clear()


def test_the_decoys_are_read_back_with_their_scores(tmp_path, natives, capsys):
    """The first decoy of a chain is nearly the chain itself."""
    natives = {name: protein.pos[protein.atom_name == CA] for name, protein in natives.items()}
    out = tmp_path / "psr"
    make_sets.main(["decoys", str(tmp_path), str(out), "--each", "4"])
    assert capsys.readouterr().out.splitlines()[2] == "test: 8 items of 2 families"
    data = atom3d.atom3d_set(out, "psr")
    samples = SAMPLES["psr"](open_store(data.test, workers=1))
    read = [samples[0, i] for i in range(len(samples))]
    assert Counter(sample.groups[0] for sample in read) == {"2GB1_A": 4, "4LZT_A": 4}
    for sample in read:
        found = gdt_ts(sample.protein.pos[sample.protein.atom_name == CA], natives[sample.groups[0]])
        assert abs(found - float(sample.target[0])) < 0.01  # coordinates are written with three decimals
    scores = np.array([float(sample.target[0]) for sample in read]).reshape(2, 4)
    assert (scores[:, 0] > 0.99).all() and (scores[:, 1:] <= scores[:, :1]).all() and scores.min() < 0.9
    first = torch.stack(
        [(sample.protein.pos[sample.protein.atom_name == CA] - natives["2GB1_A"]).std() for sample in read[:1]]
    )
    assert 0.15 < float(first) < 0.25
    assert (out / "index.tsv").read_text().splitlines() == ["target\tcomponent", *INDEX]
    with pytest.raises(ConfigError, match="is there already"):
        make_sets.main(["decoys", str(tmp_path), str(out)])


def test_the_environments_are_read_back_with_their_types(tmp_path, natives, capsys):
    """Every residue once, of its type; of its own atoms the backbone alone, and around it what is near its CA."""
    out = tmp_path / "res"
    make_sets.main(["environments", str(tmp_path), str(out), "--each", "5", "3", "7"])
    lines = ["train: 1 items of 1 families", "val: 1 items of 1 families", "test: 2 items of 2 families"]
    assert capsys.readouterr().out.splitlines() == lines
    data = atom3d.atom3d_set(out, "res")
    sizes = [len(SAMPLES["res"](open_store(x, workers=1))) for x in (data.train, data.valid, data.test)]
    assert sizes == [5, 3, 14]
    samples = SAMPLES["res"](open_store(data.test, workers=1))
    read = [samples[0, i] for i in range(len(samples))]
    assert len({name for sample in read for name in sample.names}) == 14
    for sample in read:
        native, shown = natives[sample.groups[0]], sample.protein
        number = int(sample.names[0].split(":")[2])
        (centre,) = (native.residue_number == number).nonzero().flatten().tolist()
        assert int(sample.target) == int(native.residue_type[centre])
        focus = sample.focus.nonzero().item()
        assert set(shown.atom_name[shown.atom_residue == focus].tolist()) == {0, 1, 2, 3}  # N, CA, C, O
        ca = native.pos[(native.atom_residue == centre) & (native.atom_name == CA)]
        distance = (native.pos - ca).norm(dim=1)[(native.atom_residue != centre) | (native.atom_name < 4)]
        assert shown.num_atoms == int((distance <= 10 * 3**0.5).sum())
    assert (out / "index.tsv").read_text().splitlines() == ["id\tcomponent", *INDEX]
