"""The two sides of a Jacobian: which elements of which arrays, and when."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from app.operators._slices import Selection
from models.signature import Array

Range = tuple[int, int]
"""The first, and the one to stop before."""


def ranges(arrays: Sequence[Array]) -> list[str]:
    """Tell which range each of several states takes up side by side, such as `lstm.c[64:128]`."""
    found: list[str] = []
    end = 0
    for array in arrays:
        start, end = end, end + (array.shape[-1] or 0)
        found.append(f"{array.name.partition('.')[2]}[{start}:{end}]")
    return found


@dataclass(frozen=True)
class Side:
    """One side of a Jacobian: a slice of one array, or of several states side by side.

    Attributes:
        arrays: the model's arrays; several only for a group of states, joined along their only axis.
        selection: what is taken, along the axes without the batch.
        batched: False for a parameter, which has no batch axis.
        timed: the first axis is the time of a model in which step t knows nothing of what comes later.
    """

    arrays: tuple[Array, ...]
    selection: Selection
    batched: bool
    timed: bool

    @property
    def count(self) -> int:
        """Elements of the slice, which are directions."""
        return self.selection.count

    @property
    def per_step(self) -> int:
        """Elements of the slice at one time step."""
        return prod(self.selection.shape[1:] if self.selection.kept[0] else self.selection.shape) if self.timed else 0

    @cached_property
    def order(self) -> list[str] | None:
        """The range that each of several arrays takes up, such as `lstm.c[3:6]`."""
        if len(self.arrays) == 1:
            return None
        return ranges(self.arrays)

    def times(self, part: Range) -> np.ndarray:
        """Return the time step of each element in a part of the slice."""
        pick = self.selection.picks[0]
        return pick.start + pick.step * (np.arange(*part) // self.per_step)

    def span(self, part: Range) -> Range:
        """Return the first time step in a part of the slice, and the one after the last."""
        pick = self.selection.picks[0]
        ends = [pick.start + pick.step * (i // self.per_step) for i in (part[0], part[1] - 1)]
        return min(ends), max(ends) + 1

    def cover(self, part: Range) -> Range:
        """Widen a part of the slice to whole time steps, or to everything if there are none."""
        step = self.per_step or self.count
        return part[0] // step * step, -(-part[1] // step) * step

    def within(self, part: Range, window: Range) -> Range:
        """Return those of a part of the slice whose time lies in a window; times rise or fall, so it is a range."""
        if not self.timed:
            return part
        times = self.times(part)
        inside = np.flatnonzero((times >= window[0]) & (times < window[1]))
        return (part[0] + int(inside[0]), part[0] + int(inside[-1]) + 1) if inside.size else (part[0], part[0])
