"""The two sides of a Jacobian: which elements of which arrays, and when."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

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

    @cached_property
    def per_step(self) -> int:
        """Elements of the slice at one time step."""
        return prod(self.selection.shape[1:] if self.selection.kept[0] else self.selection.shape) if self.timed else 0

    @cached_property
    def order(self) -> list[str] | None:
        """The range that each of several arrays takes up, such as `lstm.c[3:6]`."""
        if len(self.arrays) == 1:
            return None
        return ranges(self.arrays)

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
        start, stop = (i * self.per_step for i in self._steps(window))
        start = max(start, part[0])
        return (start, min(stop, part[1])) if start < min(stop, part[1]) else (part[0], part[0])

    def during(self, window: Range) -> tuple[Range, slice]:
        """Return the part of the slice, whose times rise, in a window, and its steps counted from the window's first.

        Nothing of a slice that has no time is in any window.
        """
        if not self.timed:
            return (0, 0), slice(0)
        pick, (first, end) = self.selection.picks[0], self._steps(window)
        start = pick.start + first * pick.step - window[0]
        steps = slice(start, start + (end - first) * pick.step, pick.step)
        return (first * self.per_step, end * self.per_step), steps

    def _steps(self, window: Range) -> Range:
        """Return which of the steps of the slice lie in a window."""
        pick = self.selection.picks[0]
        if pick.step < 0:
            first, end = (len(pick) - bisect_left(pick[::-1], t) for t in window)
            return end, first
        return bisect_left(pick, window[0]), bisect_left(pick, window[1])


def split(start: int, stop: int, most: int, multiple: int = 1) -> Iterator[Range]:
    """Cut a range into parts of at most `most`, as equal as can be, at multiples if that is possible."""
    unit = multiple if 1 < multiple <= most else 1
    count = -(-(stop - start) // max(unit, most - most % unit))
    size = -(-(stop - start) // count)
    size += -size % unit
    for a in range(start, stop, size):
        yield a, min(a + size, stop)
