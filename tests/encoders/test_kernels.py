"""The door between the published and the fast formulas: the environment and the context choose, nothing else."""

import os
import subprocess
import sys

import pytest
import torch

from siamdiff_min.encoders import kernels
from siamdiff_min.files import ConfigError


def test_the_context_chooses_and_goes_back_after_an_error(monkeypatch):
    for name in kernels.FORMS:
        monkeypatch.setattr(kernels.FORMS[name], "edge_scores", lambda *args, name=name: (name, args))
        monkeypatch.setattr(kernels.FORMS[name], "relational_sum", lambda *args, name=name: (name, args))

    def taken() -> str:
        forms = {form for call in (kernels.edge_scores, kernels.relational_sum) for form, _ in [call(1, 2, 3)]}
        assert len(forms) == 1 and kernels.edge_scores(1, 2, 3)[1] == (1, 2, 3) == kernels.relational_sum(1, 2, 3)[1]
        return forms.pop()

    assert taken() == "fast"
    with pytest.raises(KeyError), kernels.use("plain"):
        assert taken() == "plain"
        with kernels.use("fast"):
            assert taken() == "fast"
        raise KeyError
    assert taken() == "fast"
    message = "SIAMDIFF_KERNELS is 'quick'; there are plain and fast"
    with kernels.use("quick"), pytest.raises(ConfigError, match=message):
        kernels.relational_sum(torch.zeros(0), None, None)


@pytest.mark.repeats
@pytest.mark.parametrize("form", kernels.FORMS)
def test_the_environment_chooses(form):
    code = "from siamdiff_min.encoders import kernels; print(kernels._chosen().__name__)"
    environment = {**os.environ, "SIAMDIFF_KERNELS": form}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"siamdiff_min.encoders.{form}"
