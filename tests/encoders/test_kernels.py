"""The door between the published and the fast formulas: the environment chooses, nothing else."""

import os
import subprocess
import sys

import pytest
import torch

from siamdiff_min.encoders import kernels
from siamdiff_min.encoders.ops import Links
from siamdiff_min.files import ConfigError


def test_the_form_chooses(monkeypatch):
    for name in ("edge_scores", "relational_sum"):
        monkeypatch.setattr(kernels.fast, name, lambda *args: ["fast", *args])
    links = Links(*torch.zeros(3, 0, dtype=torch.long), 0, 0, 1)

    def taken() -> set[str]:
        found = kernels.edge_scores([], 2, 3), kernels.relational_sum(torch.zeros(0, 4), links, torch.nn.Linear(4, 4))
        return {"fast" if "fast" in list(x) else "plain" for x in found}

    for form in kernels.FORMS:
        monkeypatch.setattr(kernels, "form", form)
        assert taken() == {form}
    monkeypatch.setattr(kernels, "form", "quick")
    with pytest.raises(ConfigError, match="SIAMDIFF_KERNELS is 'quick'; there are plain and fast"):
        kernels.relational_sum(torch.zeros(0), None, None)


@pytest.mark.repeats
@pytest.mark.parametrize("form", kernels.FORMS)
def test_the_environment_chooses(form):
    code = "from siamdiff_min.encoders import kernels; print(kernels.is_fast())"
    environment = {**os.environ, "SIAMDIFF_KERNELS": form}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(form == "fast")
