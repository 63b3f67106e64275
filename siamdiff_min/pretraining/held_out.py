"""The noise of validation: the same for every run, so that losses can be compared protein by protein."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor


class HeldOutNoise(torch.Generator):
    """The random numbers of one held-out protein: a pure function of its name, and of which `draw` of `draws` this is.

    t, mask, coordinate noise and second view have a stream each (`stream`). So two methods that have one of them in
    common see the same one, whatever else they draw. What else a method draws comes from the generator itself.
    """

    def __new__(cls, device: torch.device | str, *_, **__) -> HeldOutNoise:
        return super().__new__(cls, device)  # type: ignore[call-arg]

    def __init__(self, device: torch.device | str, name: str, draw: int = 0, draws: int = 1, made: list | None = None):
        self.name = name
        self.draw = draw
        self.draws = draws
        self.streams: dict[str, torch.Generator] = {}
        self.made = made or []  # by the methods that are `drawn_once`, in their order
        self.replayed = iter([*self.made])
        self.manual_seed(self.seed_of(""))

    def seed_of(self, stream: str) -> int:
        """A seed for a stream of this protein and draw."""
        key = f"held out\0{self.name}\0{self.draw} of {self.draws}\0{stream}"
        return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8], "little") >> 1

    def shares(self, num: int) -> Tensor:
        """Numbers in [0, 1), (num,): in draw k of n from k / n to (k + 1) / n, so that all draws together cover it."""
        u = torch.rand(num, generator=stream(self, "t"), device=self.device)
        return (self.draw + u) / self.draws


def stream(generator: torch.Generator, name: str) -> torch.Generator:
    """The stream of this name: "t", "mask", "noise" or "second view". In training all come from the one generator."""
    if not isinstance(generator, HeldOutNoise):
        return generator
    if name not in generator.streams:
        own = torch.Generator(generator.device)
        generator.streams[name] = own.manual_seed(generator.seed_of(name))
    return generator.streams[name]


def drawn_once(method: Callable) -> Callable:
    """A method (..., generator) whose result depends on no weights: a validation takes that of the one before.

    Everything that draws from one stream must be such a method, or nothing.
    """

    @wraps(method)
    def draw(self, *arguments):
        generator = arguments[-1]
        if not isinstance(generator, HeldOutNoise):
            return method(self, *arguments)
        for known in generator.replayed:
            return known
        generator.made.append(method(self, *arguments))
        return generator.made[-1]

    return draw
