"""The names that the package hands out, and that importing it is enough to use them."""

import inspect
import subprocess
import sys

import pytest

import siamdiff_min
from siamdiff_min import files


def test_what_a_user_calls_is_there():
    called = {"load_encoder", "read_structure", "Protein", "SiamDiff", "ENCODERS", "OBJECTIVES", "TASKS", "SCHEDULES"}
    assert called <= set(siamdiff_min.__all__)
    assert all(hasattr(siamdiff_min, name) for name in siamdiff_min.__all__)
    assert set(siamdiff_min.__all__) <= set(dir(siamdiff_min))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        siamdiff_min.nothing  # noqa: B018


def test_errors_are_at_the_top():
    names = {name for name in dir(files) if isinstance(getattr(files, name), type) and name.endswith("Error")}
    assert "StructureError" in names and names <= set(siamdiff_min.__all__)
    assert all(getattr(siamdiff_min, name) is getattr(files, name) for name in names)


def test_the_types_that_these_return_are_there():
    made = [
        build("atom" if name.startswith("gvp") else "residue", "tiny")
        for name, build in siamdiff_min.ENCODERS.items()
        if "-gearnet-" not in name
    ]
    returned = {type(encoder).__name__ for encoder in made}
    returned |= {type(schedule).__name__ for stages in siamdiff_min.SCHEDULES.values() for schedule in stages.values()}
    functions = siamdiff_min.load_encoder, siamdiff_min.read_structure
    returned |= {inspect.signature(function).return_annotation.__name__ for function in functions}
    tasks = [task(made[0], 3) for task in siamdiff_min.TASKS.values()]
    assert all(isinstance(task, siamdiff_min.Task) for task in tasks)
    assert returned <= set(siamdiff_min.__all__), returned - set(siamdiff_min.__all__)


def test_the_package_loads_without_what_only_some_need():
    script = "import sys, siamdiff_min; print(*{'sklearn', 'siamdiff_min.embed'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "\n"
