"""How works are joined: their rows one after another, shorter sequences padded at the end, and the results cut again.

Rows do not know of each other, so a program gives each of them the same numbers whatever stands beside it. Where step t
knows nothing of what comes later, steps that are added at the end change nothing before them, either; nor do they where
the rows have lengths, since whatever is beyond these is skipped.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Layout:
    """Where a work's arrays have rows and time steps.

    Attributes:
        feeds: the names of the axes of what the program takes, by path; each has one called `batch`.
        results: likewise, of what it returns.
        padded: whether sequences may be padded at the end. All results then belong to single steps, or are exact with
            cotangents of zero at the steps that are added; or the rows have lengths.
        pulled: whether they are found in reverse mode: zeros are multiplied with what the added steps do, so what is
            not finite may come from there.
    """

    feeds: Mapping[str, tuple[str, ...]]
    results: Mapping[str, tuple[str, ...]]
    padded: bool
    pulled: bool = False

    def key(self, feeds: Arrays) -> Hashable:
        """Return what works must have in common to be joined, besides their programs."""
        return tuple(
            (path, array.dtype.char, *map(self._common, self.feeds[path], array.shape)) for path, array in feeds.items()
        )

    def _common(self, axis: str, size: int) -> int:
        if axis == "batch":
            return 0
        return bucket(size) if axis == "time" and self.padded else size


def bucket(size: int) -> int:
    """Round up to a power of two or three times one, so that at most a third is added."""
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


class Group:
    """Works that are run as one.

    Args:
        layout: of each of them; None for a single one that stays as it is.
        members: what each feeds.
    """

    def __init__(self, layout: Layout | None, members: Sequence[Arrays]) -> None:
        self._layout, self._members = layout, members
        self._rows = [self._size(feeds, "batch") for feeds in members]
        self._times = [self._size(feeds, "time") for feeds in members] if layout and layout.padded else []
        self.rows = sum(self._rows)
        """Sequences, all together."""
        self.time = max(self._times, default=0)
        """Steps of the longest that may be padded; 0 if none may be."""

    def sizes(self) -> list[tuple[int, int]]:
        """List the sizes in rows and steps that a program made for them may have, the closest first."""
        if self._layout is None:
            return [(self.rows, self.time)]
        rows = bucket(self.rows)
        return list(dict.fromkeys([(rows, self.time), (rows, bucket(self.time) if self.time else 0)]))

    def shapes(self, rows: int, time: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is fed with these sizes."""
        first = self._members[0]
        if self._layout is None:
            return {path: array.shape for path, array in first.items()}
        sizes: dict[str, int] = {"batch": rows, "time": time} if self._times else {"batch": rows}
        return {path: tuple(map(sizes.get, self._layout.feeds[path], array.shape)) for path, array in first.items()}

    def feeds(self, rows: int, time: int) -> dict[str, np.ndarray]:
        """Join what all feed, with zeros at the end of rows and steps up to these sizes."""
        if self._layout is None or (len(self._members) == 1 and (rows, time) == (self.rows, self.time)):
            return dict(self._members[0])
        shapes = self.shapes(rows, time)
        return {path: self._joined(path, axes, shapes[path]) for path, axes in self._layout.feeds.items()}

    def split(self, results: Arrays) -> list[dict[str, np.ndarray]]:
        """Cut results into those of each member; views of the same memory."""
        if self._layout is None:
            return [dict(results)]
        found: list[dict[str, np.ndarray]] = []
        start = 0
        for i, rows in enumerate(self._rows):
            parts = {}
            for path, axes in self._layout.results.items():
                cuts = {"batch": slice(start, start + rows)}
                if self._times:
                    cuts["time"] = slice(self._times[i])
                parts[path] = results[path][tuple(cuts.get(axis, slice(None)) for axis in axes)]
            found.append(parts)
            start += rows
        return found

    def in_doubt(self, i: int, time: int, found: Arrays) -> bool:
        """Tell whether a member's results may be wrong because it was padded to `time` steps."""
        layout = self._layout
        if layout is None or not layout.pulled or not self._times or self._times[i] == time:
            return False
        return not all(np.isfinite(array).all() for array in found.values())

    def _joined(self, path: str, axes: tuple[str, ...], shape: tuple[int, ...]) -> np.ndarray:
        arrays = [feeds[path] for feeds in self._members]
        at = axes.index("batch")
        if sum(a.shape[at] for a in arrays) == shape[at] and all(
            a.shape[:at] + a.shape[at + 1 :] == shape[:at] + shape[at + 1 :] for a in arrays
        ):
            return np.concatenate(arrays, at)
        joined = np.zeros(shape, arrays[0].dtype)
        start = 0
        for array, n in zip(arrays, self._rows, strict=True):
            place = [slice(size) for size in array.shape]
            place[at] = slice(start, start + n)
            joined[tuple(place)] = array
            start += n
        return joined

    def _size(self, feeds: Arrays, axis: str) -> int:
        for path, axes in (self._layout.feeds if self._layout else {}).items():
            if axis in axes:
                return feeds[path].shape[axes.index(axis)]
        return 0
