"""What a task is given: one labelled example, or a batch of them. Where they come from is `sets/samples.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..protein.protein import Protein


@dataclass(frozen=True)
class Sample:
    """One labelled example, or a batch of B. In tasks on two structures they are the proteins 2i and 2i + 1."""

    protein: Protein
    focus: Tensor  # (R,) bool   residues that the prediction is about; all of them in EC and PSR
    target: Tensor  # (B,) or (B, C) float, for RES (B,) long
    names: tuple[str, ...]  # (B,)
    groups: tuple[str, ...]  # (B,)   PSR: the protein that this is a model of; elsewhere the entry it comes from

    def to(self, device, non_blocking: bool = False) -> Sample:
        """The same sample on another device."""
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Sample:
        """Page-locked copy; `torch.utils.data.DataLoader(pin_memory=True)` calls this."""
        return self._map(lambda x: x.pin_memory())

    def _map(self, function) -> Sample:
        moved = {name: function(getattr(self, name)) for name in ("protein", "focus", "target")}
        return replace(self, **moved)


def pack_samples(items: Sequence[Sample]) -> tuple[Sample, list[str]]:
    """A batch of samples, and their names."""
    batch = Sample(
        Protein.pack([item.protein for item in items]),
        torch.cat([item.focus for item in items]),
        torch.cat([item.target for item in items]),
        tuple(name for item in items for name in item.names),
        tuple(group for item in items for group in item.groups),
    )
    return batch, list(batch.names)
