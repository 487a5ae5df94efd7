"""A sequence that is cut in time: sliced where it lies, or made or read piece by piece."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pushforward._layout import Spec
from pushforward.errors import InvalidArray, InvalidRequest
from pushforward.wire._arrays import Array, portable

Source = npt.ArrayLike | Iterator[npt.ArrayLike] | Callable[[int], npt.ArrayLike]
"""A sequence: an array or what can be sliced like one, an iterator over its pieces, or a function giving piece i."""

Sources = Source | Mapping[str, Source]
"""Sequences and other arrays by name, or the sequence alone."""


class Cut:
    """One sequence, whatever its pieces come from.

    Attributes:
        length: Steps of all of it; None if only its end will tell.
        read_once: Whether its pieces are gone once they are read.
    """

    def __init__(self, path: str, spec: Spec, source: Source, *, pieces: int | None) -> None:
        """Look at the source; nothing is read yet.

        Args:
            path: What errors call it.
            spec: The array that it is, or, if the path is not that of an input, is a direction of.
            source: Where the pieces come from.
            pieces: How many there are, if they come from a function.

        Raises:
            InvalidArray: if it is an array of another rank.
        """
        self._path, self._spec, self._pieces = path, spec, pieces
        self._source: Any = source
        self._next = 0
        self.read_once = isinstance(source, Iterator)
        self.length: int | None = None
        if not self.read_once and not callable(source):
            # What has a shape stays where it is until it is sliced, on a disk perhaps.
            self._source = source if hasattr(source, "shape") else portable(cast("npt.ArrayLike", source), path)
            shape = self._source.shape
            self.length = shape[self._axis(len(shape))]

    def get(self, index: int, start: int, stop: int) -> Array | None:
        """Piece `index`, of an array the steps from `start` to `stop` at most; None after the end.

        Raises:
            InvalidArray: if it is of another rank.
            InvalidRequest: if the pieces of an iterator are not asked for in their order.
        """
        if self.length is not None:
            axis = self._axis(len(self._source.shape))
            some = (*(slice(None),) * axis, slice(start, min(stop, self.length)))
            return portable(np.asarray(self._source[some]), self._path) if start < self.length else None
        if not self.read_once:
            return None if index == self._pieces else portable(self._source(index), self._path)
        if index != self._next:
            raise InvalidRequest(
                "an iterator is read once, and another sweep begins here; give an array, a memory map or a function of "
                "the piece's number",
                path=self._path,
            )
        self._next += 1
        piece = next(self._source, None)
        return None if piece is None else portable(piece, self._path)

    def like(self, index: int, steps: slice) -> Array:
        """Piece `index` of a sequence that is cut like the inputs.

        Raises:
            InvalidArray: if it does not have these steps.
        """
        piece = self.get(index, steps.start, steps.stop)
        found = 0 if piece is None else self.steps_of(piece)
        if piece is None or found != steps.stop - steps.start:
            raise self._misfit(f"{steps.stop - steps.start} steps in piece {index}", found)
        return piece

    def check_length(self, length: int | None) -> None:
        """Refuse a sequence that is known to have another length than the inputs, before anything is computed."""
        if None not in (length, self.length) and length != self.length:
            raise self._misfit(f"{length} steps", self.length)

    def check_end(self, index: int, stop: int) -> None:
        """Refuse a sequence that goes on after the inputs' last step."""
        endless = self.length is None and not self.read_once and self._pieces is None
        if not endless and self.get(index, stop, stop + 1) is not None:
            raise self._misfit(f"{stop} steps", "more")

    def steps_of(self, piece: Array) -> int:
        """Count the steps of a piece."""
        return piece.shape[self._axis(piece.ndim)]

    def _misfit(self, expected: str, found: object) -> InvalidArray:
        return InvalidArray(f"expected {expected}, as the inputs have, got {found}", path=self._path)

    def _axis(self, rank: int) -> int:
        stackable = not self._path.startswith("inputs.")
        if not 0 <= rank - self._spec.rank <= stackable:
            stacked = " or, for stacked directions, one more" if stackable else ""
            raise InvalidArray(f"expected {self._spec.rank} axes{stacked}, got {rank}", path=self._path)
        return self._spec.axis(rank)


def by_name(given: Any, name: str) -> dict[str, Any]:
    """What is given by name, or one sequence that goes by this name."""
    return dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {name: given}
