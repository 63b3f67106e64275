"""Layers that see one number, such as a distance, as a table.

Linear layers with ReLU between them bend only where a unit turns on or off, at a *knot*, and are a straight line
between two knots. So offset and slope of every piece are written down, and each number is looked up. Nothing is
approximated. By hand: relu(x - 2) + relu(6 - 2 x) has knots at 2 and 3. Left of 2 the second unit alone is on: 6 - 2 x.
At 2 the first joins and adds x - 2: 4 - x. At 3 the second leaves, which adds 2 x - 6: x - 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .rowsum import RowSum

ROWS = 16  # of a table that one product adds up


@dataclass(frozen=True, eq=False)
class Piecewise:
    """Linear layers of one number x with ReLU between them: a function that is linear between its knots.

    f(x) = start[0] + start[1] x, and for every knot k below x also (change[k, 0] + change[k, 1] x) rows[k]. The latter
    is 0 at the knot: f does not jump. So no knot needs a gradient: if it moved a little, f would stay the same.
    """

    start: Tensor  # (2, d)
    knot: Tensor  # (K,) ascending
    change: Tensor  # (K, 2)
    rows: Tensor  # (K, d)

    @staticmethod
    def line(layer: nn.Linear) -> Piecewise:
        """A layer of one number: no knot yet."""
        start = torch.stack([layer.bias, layer.weight[:, 0]])
        return Piecewise(start, start.new_zeros(0), start.new_zeros(0, 2), start[:0])

    @cached_property
    def table(self) -> Tensor:
        """Offset and slope of every piece (K + 1, 2, d): the running sum of all changes.

        Products with a triangle of ones add up ROWS changes at a time. `cumsum` takes 2.2 times as long (3,000 knots
        and d = 3,072, forward and backward), and on a GPU it has no fixed order.
        """
        # The first piece has no change; zeros fill the last block.
        pieces = len(self.knot) + 1
        padding = (0, 0, 1, -pieces % ROWS)
        change = F.pad(self.change, padding).unflatten(0, (-1, ROWS))
        rows = F.pad(self.rows, padding).unflatten(0, (-1, ROWS))
        triangle = rows.new_ones(ROWS, ROWS).tril()[:, None]
        factors = triangle * change.mT[:, None]  # (K / ROWS, ROWS, 2, ROWS)

        # Sums within each block, and the sum of all before it.
        with torch.autocast(rows.device.type, enabled=False):
            sums = factors.flatten(1, 2) @ rows
            sums = sums.unflatten(1, (ROWS, 2))
            blocks = torch.cat([self.start[None], sums[:-1, -1]])
            triangle = rows.new_ones(len(blocks), len(blocks)).tril()
            before = triangle @ blocks.flatten(1)
        before = before.view_as(sums[:, :1])
        return sums.add_(before).flatten(0, 1)[:pieces]

    def __call__(self, x: Tensor) -> Tensor:
        """f of numbers x (P,) that need no gradient: (P, d). Row 2 k of the table, and x times row 2 k + 1."""
        row = 2 * torch.searchsorted(self.knot, x, out_int32=True)
        source = torch.stack([row, row + 1], dim=1)
        weight = torch.stack([torch.ones_like(x), x], dim=1)
        offsets = torch.arange(0, 2 * len(x) + 1, 2, dtype=torch.int32, device=x.device)
        look_up = RowSum(source.flatten(), offsets, 2 * len(self.table), weight.flatten())
        return look_up(self.table.flatten(0, 1))

    def crossings(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numbers between `low` and `high` at which a unit of f becomes 0 (C,), with their pieces and units (C,).

        And the units above 0 at both ends of every piece (K + 2, d). All comes from these signs: no crossing is missed
        or found twice.
        """
        ends = torch.cat([low[None], self.knot, high[None]])
        value = self(ends).detach()
        on = value > 0
        piece, unit = (on[1:] != on[:-1]).nonzero(as_tuple=True)
        before = value[piece, unit]
        after = value[piece + 1, unit]
        share = before / (before - after)  # of the piece, up to the crossing
        return torch.lerp(ends[piece], ends[piece + 1], share), piece, unit, on

    def relu_linear(self, weight: Tensor, bias: Tensor, low: Tensor, high: Tensor) -> Piecewise:
        """W relu(f) + b between `low` and `high`; weight W (out, d) in the type of its products, bias b (out,)."""
        crossing, piece, unit, on = self.crossings(low, high)
        dtype = self.start.dtype

        # Before the first knot, and at the knots of f: the units above 0, mapped.
        with torch.autocast(weight.device.type, enabled=False):
            start = (self.start * on[0]) @ weight.t().to(dtype)
            rows_on = (self.rows * on[1:-1]).to(weight.dtype)
            mapped = (rows_on @ weight.t()).to(dtype)
        start = torch.stack([start[0] + bias, start[1]])

        # At a crossing one unit joins, or leaves with all it has.
        sign = torch.where(on[piece, unit], -1, 1)[:, None]
        offset = 2 * piece * rows_on.shape[1] + unit  # places in the table; a slope lies a row below its offset
        place = torch.cat([offset, offset + rows_on.shape[1]])
        line = self.table.flatten().index_select(0, place)
        turned = sign * line.view(2, -1).mT
        column = weight.t().index_select(0, unit).to(dtype)

        # Both kinds of knots in their order.
        knot, order = torch.cat([self.knot, crossing]).sort()
        change = torch.cat([self.change, turned]).index_select(0, order)
        rows = torch.cat([mapped, column]).index_select(0, order)
        return Piecewise(start, knot, change, rows)


def scalar_layers(x: Tensor, first: nn.Linear, second: nn.Linear, weight: Tensor, bias: Tensor) -> Callable:
    """W relu(second(relu(first(x)))) + b as a function of the numbers x (P,), which need no gradient.

    It is a table, if there are more numbers than knots; else the table ends before W. About half of all units have a
    knot among the lengths of edges.
    """
    low, high = F.pad(x, (0, 1)).aminmax()  # 0 is among them, so no numbers have a range too
    hidden = Piecewise.line(first).relu_linear(second.weight, second.bias, low, high)
    if len(hidden.knot) < len(x):
        whole = hidden.relu_linear(weight, bias, low, high)
        if len(whole.knot) < len(x):
            return whole
    return lambda x: F.linear(F.relu(hidden(x)), weight, bias)
