"""The door between the published and the fast formulas: the environment and the context choose, nothing else."""

import os
import subprocess
import sys

import pytest
import torch

from siamdiff_min.encoders import kernels
from siamdiff_min.encoders.ops import Links
from siamdiff_min.files import ConfigError


def test_the_context_chooses_and_goes_back_after_an_error(monkeypatch):
    for name in ("edge_scores", "relational_sum"):
        monkeypatch.setattr(kernels.fast, name, lambda *args: ["fast", *args])
    links = Links(*torch.zeros(3, 0, dtype=torch.long), 0, 0, 1)

    def taken() -> set[str]:
        found = kernels.edge_scores([], 2, 3), kernels.relational_sum(torch.zeros(0, 4), links, torch.nn.Linear(4, 4))
        return {"fast" if "fast" in list(x) else "plain" for x in found}

    assert taken() == {"fast"}
    with pytest.raises(KeyError), kernels.use("plain"):
        assert taken() == {"plain"}
        with kernels.use("fast"):
            assert taken() == {"fast"}
        raise KeyError
    assert taken() == {"fast"}
    message = "SIAMDIFF_KERNELS is 'quick'; there are plain and fast"
    with kernels.use("quick"), pytest.raises(ConfigError, match=message):
        kernels.relational_sum(torch.zeros(0), None, None)


@pytest.mark.repeats
@pytest.mark.parametrize("form", kernels.FORMS)
def test_the_environment_chooses(form):
    code = "from siamdiff_min.encoders import kernels; print(kernels.is_fast())"
    environment = {**os.environ, "SIAMDIFF_KERNELS": form}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(form == "fast")
