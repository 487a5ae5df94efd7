"""What comes of a long sequence: pieces, one after the other, or joined."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pushforward._layout import Layout
from pushforward._progress import Progress, bars
from pushforward._results import Answer, Arrays
from pushforward.errors import PushforwardError


@dataclass(frozen=True, eq=False)
class Piece:
    """Outputs, and their tangents, of some steps of a long sequence.

    What has no time axis, such as a last step's output or a state, is what it is after these steps.

    Attributes:
        index: Which piece, from 0.
        steps: Its steps in the whole sequence, `slice(500, 1000)`.
        outputs: By output-side name, `(batch, steps, ...)` or without time.
        tangents: Their tangents, by the same names; with the directions in front if these are stacked. Empty if the
            outputs only were asked for.
        info: How it was computed, as in `Answer`.
    """

    index: int
    steps: slice
    outputs: Arrays
    tangents: Arrays = field(default_factory=dict[str, Any])
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, layout: Layout, answer: Answer, index: int, steps: slice, names: list[str]) -> "Piece":
        """Take these outputs out of an answer.

        Raises:
            PushforwardError: if one that has a time axis has another number of steps.
        """
        found, moved = answer.named("outputs"), answer.named("tangents")
        for name in names:
            spec, array = layout.targets[name], found[name]
            if spec.time is not None and array.shape[spec.time] != steps.stop - steps.start:
                raise PushforwardError(
                    f"outputs.{name}: expected {steps.stop - steps.start} steps, as the inputs have, got "
                    f"{array.shape[spec.time]}; this model can't be computed piece by piece"
                )
        tangents = {name: moved[name] for name in names} if moved else {}
        return cls(index, steps, {name: found[name] for name in names}, tangents, answer.info)


class Pieces(Iterator[Piece]):
    """The pieces of a long sequence, each computed when it is asked for; or `collect` for all of it at once."""

    def __init__(self, layout: Layout, pieces: Iterator[Piece], count: int | None) -> None:
        self._layout, self._pieces, self._count = layout, pieces, count

    def __next__(self) -> Piece:
        """Compute the next piece."""
        return next(self._pieces)

    def collect(self, *, progress: Progress = False) -> Piece:
        """Compute all that is left and join it along time; what has no time axis is the last piece's.

        Args:
            progress: Show a bar of pieces; True needs `pip install "pushforward[progress]"`. Or what makes bars as
                `tqdm.tqdm` does.

        Returns:
            One piece, numbered like the first and with its `info`.

        Raises:
            ValueError: if none is left.
        """
        pieces: list[Piece] = []
        with bars(progress)(total=self._count, desc="pieces", unit="piece") as bar:
            for piece in self:
                pieces.append(piece)
                if bar is not None:
                    bar.update(1)
        if not pieces:
            raise ValueError("there is no piece left to collect")
        first, last = pieces[0], pieces[-1]
        outputs = {name: self._join(name, [p.outputs[name] for p in pieces]) for name in first.outputs}
        tangents = {name: self._join(name, [p.tangents[name] for p in pieces]) for name in first.tangents}
        return Piece(first.index, slice(first.steps.start, last.steps.stop), outputs, tangents, first.info)

    def _join(self, name: str, arrays: list[Any]) -> Any:
        spec = self._layout.targets[name]
        return arrays[-1] if spec.time is None else np.concatenate(arrays, spec.axis(arrays[0].ndim))


@dataclass(frozen=True, eq=False)
class ChunkedVJP:
    """The cotangents of a long sequence.

    Attributes:
        cotangents: By input-side name: of a sequence `(batch, time, ...)`, whole; of an initial state or an input
            without time `(batch, ...)`; of a parameter its shape. With the cotangents' stacking in front, if any.
        steps: How many steps the sequence has.
        pieces: How many pieces it was cut into.
        model: The model's name.
        version: The version that answered.
    """

    cotangents: Arrays
    steps: int
    pieces: int
    model: str
    version: int
