"""The door between the published and the fast formulas: the environment and the context choose, nothing else."""

import os
import subprocess
import sys

import pytest

from siamdiff_min.encoders import kernels
from siamdiff_min.files import ConfigError


def test_the_context_chooses_and_goes_back_after_an_error():
    assert kernels.edge_scores is kernels.fast.edge_scores
    with pytest.raises(KeyError), kernels.use("plain"):
        assert kernels.edge_scores is kernels.plain.edge_scores
        with kernels.use("fast"):
            assert kernels.edge_scores is kernels.fast.edge_scores
        raise KeyError
    assert kernels.edge_scores is kernels.fast.edge_scores
    with (
        kernels.use("quick"),
        pytest.raises(ConfigError, match="SIAMDIFF_KERNELS is 'quick'; there are plain and fast"),
    ):
        _ = kernels.edge_scores


@pytest.mark.repeats
@pytest.mark.parametrize("form", kernels.FORMS)
def test_the_environment_chooses(form):
    code = "from siamdiff_min.encoders import kernels; print(kernels.edge_scores.__module__)"
    environment = {**os.environ, "SIAMDIFF_KERNELS": form}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"siamdiff_min.encoders.{form}"
