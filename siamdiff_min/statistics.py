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
    """Sums over a batch. `value` turns the total over all batches, unless it is zero, into the number to log."""

    sums: Tensor

    @staticmethod
    def value(sums: list) -> float:
        """The number to log, from the total of all `sums`, as a (nested) list."""
        raise NotImplementedError

    @classmethod
    def share(cls, sums: list, total: list) -> float:
        """The same number for one part of the data, with the best constant of all data: nan if nothing was counted."""
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

    @classmethod
    def share(cls, sums: list[float], total: list[float]) -> float:
        return cls.value(sums) if sums[1] else math.nan


class Variance(Statistic):
    """The variance of targets: the squared error of their mean. Sums (3,) are total, number, total of squares."""

    @classmethod
    def of(cls, x: Tensor) -> Variance:
        return cls(torch.cat([Mean.of(x).sums, x.detach().square().sum()[None]]))

    @staticmethod
    def value(sums: list[float]) -> float:
        total, count, squares = sums
        return squares / count - (total / count) ** 2

    @staticmethod
    def share(sums: list[float], total: list[float]) -> float:
        """The squared error of the mean of all data."""
        own, count, squares = sums
        mean = total[0] / total[1]
        return (squares - 2 * mean * own) / count + mean**2 if count else math.nan


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
        entropies = [cross_entropy(counts, counts) for counts in sums]
        return sum(entropies) / len(entropies)

    @staticmethod
    def share(sums: list[list[float]], total: list[list[float]]) -> float:
        """The cross-entropy of the frequencies of all data, a mean over the columns that counted something."""
        entropies = [cross_entropy(own, of_all) for own, of_all in zip(sums, total) if sum(own)]
        return sum(entropies) / len(entropies) if entropies else math.nan


def cross_entropy(counts: list[float], predicted: list[float]) -> float:
    """-sum p log q: p and q are the frequencies of `counts` and `predicted`. Of one thing twice, its entropy."""
    total, of_predicted = sum(counts), sum(predicted)
    return sum(-n / total * math.log(m / of_predicted) for n, m in zip(counts, predicted) if n)
