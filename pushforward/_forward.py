"""Through a long sequence from its first piece to its last, the states and their tangents handed on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pushforward._layout import Layout
from pushforward._pieces import Piece
from pushforward._results import Answer, Arrays
from pushforward._sources import Cut, Sources, by_name
from pushforward.errors import InvalidArray, InvalidRequest
from pushforward.wire._arrays import Array

Call = Callable[..., Answer]
"""`Client.call`."""


class Walk:
    """A long sequence, the other inputs, and the model that they go through.

    Attributes:
        layout: Where time is in the model's arrays.
        sequence: The input that is cut.
        pieces: How many pieces there are; None if only the end will tell.
        initial: The initial states that are given.
    """

    def __init__(self, call: Call, layout: Layout, inputs: Sources, size: int | None, pieces: int | None) -> None:
        """Read the arguments of `Client.chunked`.

        Raises:
            InvalidRequest: if the sequence, its pieces' size or their number is missing, or not to be given.
        """
        given = by_name(inputs, layout.sequence.name)
        path = f"inputs.{layout.sequence.name}"
        if layout.sequence.name not in given:
            raise InvalidArray("expected the sequence, got none", path=path)
        source = given.pop(layout.sequence.name)
        self.layout, self._call, self._size = layout, call, size
        self.sequence = Cut(path, layout.sequence, source, pieces=pieces)
        whole, made = self.sequence.length is not None, callable(source)
        _check("size", size, whole, "steps in a piece, which an array needs and pieces have by themselves")
        _check("pieces", pieces, made, "how many pieces there are, which a function needs and nothing else does")
        self.pieces = pieces
        if self.sequence.length is not None and size is not None:
            self.pieces = -(-self.sequence.length // size)
        self.initial = {name: array for name, array in given.items() if name.startswith("state.")}
        self._constant = {name: array for name, array in given.items() if not name.startswith("state.")}

    def __iter__(self) -> Iterator[tuple[int, slice, Array]]:
        """Cut the sequence: number, steps and array of each piece."""
        index = start = 0
        while (piece := self.sequence.get(index, start, start + (self._size or 0))) is not None:
            stop = start + self.sequence.steps_of(piece)
            yield index, slice(start, stop), piece
            index, start = index + 1, stop
        if not index:
            raise InvalidArray("expected a sequence of one step or more, got none", path="inputs")

    def ask(
        self,
        operator: str,
        where: tuple[int, slice, Array],
        states: Arrays,
        fields: Mapping[str, Arrays],
        **options: Any,
    ) -> Answer:
        """Send one piece; an error tells which it was."""
        index, steps, piece = where
        inputs = {**self._constant, self.layout.sequence.name: piece, **states}
        try:
            return self._call(operator, self.layout.model, {"inputs": inputs, **fields}, **options)
        except Exception as error:
            error.add_note(f"in piece {index}, steps {steps.start} to {steps.stop}")
            raise


def push(walk: Walk, tangents: Mapping[str, Any], outputs: Sequence[str] | None, **options: Any) -> Iterator[Piece]:
    """Compute outputs and, if there are tangents, theirs; the names are known to the model."""
    layout = walk.layout
    names = [*(layout.outputs if outputs is None else outputs)]
    asked = [*names, *(s for s in layout.states if s not in names)]
    moving = {n: Cut(f"tangents.{n}", s, tangents[n], pieces=walk.pieces) for n, s in _cut(layout, tangents).items()}
    for sequence in moving.values():
        sequence.check_length(walk.sequence.length)
    states: Arrays = walk.initial
    pushed: Arrays = {n: t for n, t in tangents.items() if n.startswith("state.")}
    rest = {n: t for n, t in tangents.items() if n not in moving and n not in pushed}
    index, steps = 0, slice(0, 0)
    for index, steps, piece in walk:
        fields: dict[str, Arrays] = {}
        if tangents:
            along = {n: sequence.like(index, steps) for n, sequence in moving.items()}
            fields = {"tangents": {**rest, **along, **pushed}}
        operator = "jvp" if tangents else "evaluate"
        answer = walk.ask(operator, (index, steps, piece), states, fields, outputs=asked, **options)
        states = {n: answer.named("outputs")[n] for n in layout.states}
        if tangents:
            pushed = {n: answer.named("tangents")[n] for n in layout.moving_states}
        yield Piece.of(layout, answer, index, steps, names)
    for sequence in moving.values():
        sequence.check_end(index + 1, steps.stop)


def boundaries(walk: Walk, tick: Callable[[], None], **options: Any) -> list[tuple[slice, Arrays]]:
    """Find the steps of each piece and the states before it; all that a reverse sweep needs of a forward one."""
    states: Arrays = walk.initial
    found: list[tuple[slice, Arrays]] = []
    for index, steps, piece in walk:
        found.append((steps, states))
        # Nobody asks for the states after the last piece.
        if walk.layout.states and index + 1 != walk.pieces:
            answer = walk.ask("evaluate", (index, steps, piece), states, {}, outputs=[*walk.layout.states], **options)
            states = {n: answer.named("outputs")[n] for n in walk.layout.states}
        tick()
    return found


def _cut(layout: Layout, tangents: Mapping[str, Any]) -> dict[str, Any]:
    return {n: layout.sources[n] for n in tangents if layout.sources[n].time is not None}


def _check(name: str, value: int | None, wanted: bool, what: str) -> None:
    if (value is not None) != wanted or (value is not None and value < 1):
        got = "nothing" if value is None else value
        raise InvalidRequest(f"expected {'a positive number' if wanted else 'nothing'}: {what}; got {got}", path=name)
