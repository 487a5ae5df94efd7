"""Through a long sequence from its last piece to its first, the cotangents of the states pulled back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from pushforward._forward import Walk
from pushforward._layout import Layout
from pushforward._pieces import Piece
from pushforward._results import Answer, Arrays
from pushforward._sources import Cut, Source, Sources, by_name
from pushforward.errors import InvalidRequest
from pushforward.wire._arrays import Array

Weigh = Callable[[Piece], Mapping[str, Any]]
"""A piece's outputs to their cotangents."""
Cotangents = Weigh | Sources


class Weights:
    """The cotangents that are asked about, piece by piece."""

    def __init__(self, walk: Walk, given: Cotangents) -> None:
        """Read them.

        Raises:
            InvalidRequest: if there is none, a name is unknown, or a length is not that of the inputs.
        """
        self._layout, self.function = walk.layout, cast("Weigh", given) if callable(given) else None
        named = {} if self.function else by_name(given, walk.layout.outputs[0])
        if not named and not self.function:
            raise InvalidRequest(f"expected at least one, such as {walk.layout.outputs[0]}", path="cotangents")
        self._sequences: dict[str, Cut] = {}
        self._final: dict[str, Any] = {}
        for name, array in named.items():
            spec = walk.layout.target(name, f"cotangents.{name}")
            if spec.time is None:
                self._final[name] = array
                continue
            sequence = Cut(f"cotangents.{name}", spec, cast("Source", array), pieces=walk.pieces)
            if sequence.read_once:
                raise InvalidRequest(
                    "an iterator gives the first piece first, and the last is needed first; give an array, a memory "
                    "map or a function of the piece's number",
                    path=f"cotangents.{name}",
                )
            sequence.check_length(walk.sequence.length)
            self._sequences[name] = sequence

    def check_end(self, pieces: int, steps: int) -> None:
        """Refuse sequences that go on after the inputs' end."""
        for sequence in self._sequences.values():
            sequence.check_end(pieces, steps)

    def of(self, index: int, steps: slice, *, last: bool, piece: Piece | None) -> dict[str, Any]:
        """The cotangents that enter at one piece; what has no time axis enters at the last."""
        if self.function and piece:
            found = dict(self.function(piece))
            specs = {name: self._layout.target(name, f"cotangents.{name}") for name in found}
            return {name: array for name, array in found.items() if last or specs[name].time is not None}
        return {n: s.like(index, steps) for n, s in self._sequences.items()} | (self._final if last else {})


class Pulled:
    """The cotangents that come of it: of sequences put together, of states handed on, of all else summed.

    Attributes:
        steps: How many steps the whole sequence has; to be set before a piece comes.
        states: The cotangents of the states before the last piece that came.
        cotangents: What there is so far.
    """

    def __init__(self, layout: Layout, wrt: Sequence[str] | None, out: Mapping[str, Array]) -> None:
        """Choose the names.

        Raises:
            InvalidRequest: if one is unknown, or there is none.
        """
        self._layout, self._out = layout, out
        self.steps = 0
        default = [name for name in layout.inputs if layout.sources[name].differentiable]
        self._wrt = list(dict.fromkeys(default if wrt is None else wrt))
        if not self._wrt:
            raise InvalidRequest("expected names of states or parameters: no input has cotangents", path="wrt")
        for i, name in enumerate(self._wrt):
            layout.source(name, f"wrt[{i}]")
        cut = [name for name in self._wrt if layout.sources[name].time is not None]
        if strange := [name for name in out if name not in cut]:
            raise InvalidRequest(f"expected names of sequences among wrt, {cut}; got {strange}", path="out")
        self.states: Arrays = {}
        self.cotangents: dict[str, Array] = {}

    def wrt(self, index: int) -> list[str]:
        """With respect to what a piece is differentiated: also to the states that the piece before it leaves."""
        if not index:
            return self._wrt
        return [*(n for n in self._wrt if not n.startswith("state.")), *self._layout.moving_states]

    def take(self, index: int, steps: slice, answer: Answer) -> None:
        """Put a piece's cotangents where they belong."""
        found = answer.named("cotangents")
        self.states = {n: found[n] for n in self._layout.moving_states} if index else {}
        for name in self._wrt:
            spec = self._layout.sources[name]
            if spec.time is not None:
                axis = spec.axis(found[name].ndim)
                self._whole(name, found[name], axis)[(*(slice(None),) * axis, steps)] = found[name]
            elif not name.startswith("state."):
                self.cotangents[name] = found[name] + self.cotangents[name] if name in self.cotangents else found[name]
            elif not index:
                self.cotangents[name] = found[name]

    def skip(self, steps: slice) -> None:
        """Leave zeros for a piece that no cotangent enters."""
        for name, whole in self._out.items():
            whole[(*(slice(None),) * self._layout.sources[name].axis(whole.ndim), steps)] = 0

    def check(self) -> None:
        """Refuse to give back nothing."""
        if len(self.cotangents) < len(self._wrt):
            raise InvalidRequest("expected at least one, for one of the pieces at least", path="cotangents")

    def _whole(self, name: str, piece: Array, axis: int) -> Array:
        if name not in self.cotangents:
            shape = (*piece.shape[:axis], self.steps, *piece.shape[axis + 1 :])
            whole = self._out[name] if name in self._out else np.zeros(shape, piece.dtype)
            if (whole.shape, whole.dtype) != (shape, piece.dtype):
                raise ValueError(
                    f"out.{name}: expected shape {shape} of {piece.dtype}, got shape {whole.shape} of {whole.dtype}"
                )
            self.cotangents[name] = whole
        return self.cotangents[name]


def pull(
    walk: Walk,
    weights: Weights,
    pulled: Pulled,
    marks: list[tuple[slice, Arrays]],
    tick: Callable[[], None],
    **options: Any,
) -> None:
    """Go back through the pieces, whose steps and initial states are `marks`."""
    names, count = [*walk.layout.outputs], len(marks)
    for index in reversed(range(count)):
        steps, states = marks.pop()
        where, piece = (index, steps, walk.sequence.like(index, steps)), None
        if weights.function:
            answer = walk.ask("evaluate", where, states, {}, outputs=names, timeout_s=options.get("timeout_s"))
            piece = Piece.of(walk.layout, answer, index, steps, names)
        given = {**weights.of(index, steps, last=index + 1 == count, piece=piece), **pulled.states}
        if given:
            fields = {"cotangents": given}
            pulled.take(index, steps, walk.ask("vjp", where, states, fields, wrt=pulled.wrt(index), **options))
        else:
            pulled.skip(steps)
        tick()
    pulled.check()
