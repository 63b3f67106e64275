"""The one door to the formulas that cost most: `kernels.edge_scores` and `kernels.relational_sum`.

By default they are those of `fast.py`. SIAMDIFF_KERNELS=plain in the environment, or `with kernels.use("plain"):` in
Python, takes those of `plain.py`, as published.
"""

import os
from contextlib import contextmanager

from ..files import ConfigError
from . import fast, plain

FORMS = {"plain": plain, "fast": fast}
_form = os.environ.get("SIAMDIFF_KERNELS", "fast")


@contextmanager
def use(form: str):
    """Take all formulas in this form, `plain` or `fast`, within the context."""
    global _form
    before, _form = _form, form
    try:
        yield
    finally:
        _form = before


def __getattr__(name: str):
    if _form not in FORMS:
        raise ConfigError(f"SIAMDIFF_KERNELS is {_form!r}; there are {' and '.join(FORMS)}")
    return getattr(FORMS[_form], name)
