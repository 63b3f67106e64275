"""What several test files share: equality of proteins, archives, listings, the scalar of the golden gradients."""

import io
import tarfile
from collections import Counter

import torch

from siamdiff_min.protein.protein import TENSOR_FIELDS, Protein


def assert_equal(a: Protein, b: Protein, tolerance: float = 0.0) -> None:
    """All fields equal, with their types; coordinates within `tolerance` (angstrom)."""
    for field in TENSOR_FIELDS:
        x, y = getattr(a, field), getattr(b, field)
        assert x.dtype == y.dtype and x.shape == y.shape, field
        assert torch.equal(x, y) or (field == "pos" and (x - y).abs().max() <= tolerance), field
    assert a.num_proteins == b.num_proteins


def wave(x: torch.Tensor) -> torch.Tensor:
    """The scalar whose gradients the golden files hold: cos(0), cos(1), ... as weights, row-major."""
    weight = torch.arange(x.numel(), dtype=torch.float64).cos().to(x.dtype)
    return (x.flatten() * weight).sum()


def tar(members, mode: str = "w") -> bytes:
    """An archive of (name or TarInfo, bytes)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A member that is no plain file: a link to `target`, a device, a FIFO, a folder."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def reasons(listing) -> Counter:
    """How many files a listing skips for each reason."""
    return Counter(reason for _, reason in listing.skipped)
