"""`benchmarks.decoys`: what it writes is read back by the task, and the scores are those of what was written."""

from collections import Counter

import numpy as np
import pytest
import torch

from benchmarks import decoys
from benchmarks.superpose import gdt_ts
from siamdiff_min.data import atom3d
from siamdiff_min.data.build import open_origin
from siamdiff_min.data.samples import DATASETS
from siamdiff_min.data.structures import bundle_path, find_structures
from siamdiff_min.files import ConfigError
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.write import write_pdb

pytest.importorskip("lmdb")


def test_the_decoys_are_read_back_with_their_scores(tmp_path, capsys):
    """Two families in testing, one of them with two chains; the first decoy of each is nearly the chain itself."""
    bundled = {source.name: source for source in find_structures(bundle_path()).sources}
    rows = [("1EJG_A", "train", "a"), ("5PTI_A", "val", "b"), ("2GB1_A", "test", "c"), ("4LZT_A", "test", "d")]
    natives = {}
    for name, *_ in rows:
        structure = bundled[name].read()
        natives[name] = structure.protein.pos[structure.protein.atom_name == CA]
        write_pdb(tmp_path / f"{name}.pdb", structure.protein, structure.chain_names)
    lines = [f"{name}.pdb\t{split}\t{family}\t{family}\t" for name, split, family in [*rows, ("1EJG_A", "train", "a")]]
    (tmp_path / "probe.tsv").write_text("\n".join(["file\tsplit\tfamily\tcluster\tpartners", *lines]) + "\n")
    out = tmp_path / "psr"
    decoys.main([str(tmp_path), str(out), "--each", "4"])
    assert capsys.readouterr().out.splitlines()[2] == "test: 8 decoys of 2 families"
    data = atom3d.atom3d_set(out, "psr")
    samples = DATASETS["psr"](open_origin(data.test, workers=1))
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
    rows = ["target\tcomponent", "1EJG_A\ta", "5PTI_A\tb", "2GB1_A\tc", "4LZT_A\td"]
    assert (out / "index.tsv").read_text().splitlines() == rows
    atom3d._environment.cache_clear()
    with pytest.raises(ConfigError, match="is there already"):
        decoys.main([str(tmp_path), str(out)])
