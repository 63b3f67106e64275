"""Statistics to log beside a loss: a `Mean`, or the loss of the best constant prediction (`Variance`, `Entropy`).

Each holds sums over a batch. The sums of all batches and processes are added up before `value` is taken, so the logged
number is exact, however the data was cut into batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Statistic:
    """Sums over a batch. `value` turns the total over all batches into the number to log.

    If the total is zero, nothing is logged.
    """

    sums: Tensor

    @staticmethod
    def value(sums: list) -> float:
        """The number to log, from the total of all `sums`, as a (nested) list."""
        raise NotImplementedError


class Mean(Statistic):
    """The mean of some values; sums (2,) are their total and number."""

    @classmethod
    def of(cls, x: Tensor) -> Mean:
        x = x.detach().flatten().to(torch.promote_types(x.dtype, torch.float32))  # bool and bfloat16 cannot count
        return cls(torch.stack([x.sum(), x.new_full((), len(x))]))

    @staticmethod
    def value(sums: list[float]) -> float:
        total, count = sums
        return total / count


class Variance(Statistic):
    """The variance of targets: the squared error of their mean. Sums (3,) are total, number, total of squares."""

    @classmethod
    def of(cls, x: Tensor) -> Variance:
        return cls(torch.cat([Mean.of(x).sums, x.detach().square().sum()[None]]))

    @staticmethod
    def value(sums: list[float]) -> float:
        total, count, squares = sums
        return squares / count - (total / count) ** 2


class Entropy(Statistic):
    """The entropy of targets: the cross-entropy of their frequencies. Sums (C, k) count k classes in C columns."""

    @classmethod
    def of(cls, target: Tensor, num_classes: int, weight: Tensor | None = None) -> Entropy:
        """Classes target (M,); `weight` (M,) if they weigh differently in the loss."""
        if weight is None:
            weight = torch.ones_like(target, dtype=torch.float)
        counts = torch.zeros(num_classes, device=target.device).index_add_(0, target, weight)
        return cls(counts[None])

    @staticmethod
    def value(sums: list[list[float]]) -> float:
        """The mean over the columns."""
        entropies = [entropy(counts) for counts in sums]
        return sum(entropies) / len(entropies)


def entropy(counts: list[float]) -> float:
    """-sum p log p of the frequencies p of these counts."""
    total = sum(counts)
    return sum(-count / total * math.log(count / total) for count in counts if count)
