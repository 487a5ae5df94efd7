"""The grammar of `of` and `wrt`: an array's name, then NumPy's basic indexing over its axes without the batch axis.

It is read by hand: the text comes from strangers, so nothing evaluates it, and a refusal names the very character.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pushforward.errors import InvalidSlice

LONGEST = 200
DIGITS = 19

_INDEX = "an integer, start:stop:step or : for each axis"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_HINTS = (
    (r"\.\.\.|…|Ellipsis", "an ellipsis is not supported, but axes at the end may be left out"),
    (
        r"^(None|null|(np\.|numpy\.)?newaxis)$",
        "None is not supported: no axis is added, and a missing bound is empty",
    ),
    (r"^(?i:true|false)$", "a bool is not supported"),
    (r"^[\[({]", "lists, tuples and masks are not supported, but a slice may have a step"),
    (r"[<>~&|]|==|!=", "masks are not supported"),
    (r"\[", "brackets can't be nested"),
    (r"\d", "a number is an optional sign and the digits 0 to 9"),
)


@dataclass(frozen=True)
class Slice:
    """An array's name and what is taken of it, as written.

    Attributes:
        name: the array's name, which may not exist.
        items: an integer or a slice for each axis that is written; what is missing at the end is taken whole.
        text: all of it, as it was written.
        positions: where in `text` each item starts.
    """

    name: str
    items: tuple[int | slice, ...]
    text: str
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Selection:
    """A slice applied to an array of known sizes.

    Attributes:
        name: the array's name.
        sizes: the array's own sizes, without a batch axis.
        picks: the indices along each axis, in the order asked for; a single one for an integer.
        kept: False for each axis that an integer dropped.
        axes: the names of all axes, dropped or not.
    """

    name: str
    sizes: tuple[int, ...]
    picks: tuple[range, ...]
    kept: tuple[bool, ...]
    axes: tuple[str, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes that are kept."""
        return tuple(len(pick) for pick, kept in zip(self.picks, self.kept, strict=True) if kept)

    @property
    def labels(self) -> list[str]:
        """The names of the axes that are kept, such as `y.time`."""
        return [f"{self.name}.{axis}" for axis, kept in zip(self.axes, self.kept, strict=True) if kept]

    @cached_property
    def count(self) -> int:
        """How many elements are selected."""
        return math.prod(self.shape)

    def elements(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """List selected elements by their indices in the whole array, in row-major order of the slice.

        Args:
            start: the first one to list.
            stop: the one to stop before; None lists all from `start` on.

        Returns:
            Integers of shape `(stop - start, rank)`. Time and memory depend on `stop - start`, not on `count`.

        Raises:
            ValueError: if `start` or `stop` lies outside the selection.
        """
        numbers = np.arange(start, self.count if stop is None else stop, dtype=np.int64)
        table = np.empty((numbers.size, len(self.picks)), np.int64)
        # The axis of size 1 in front is for arrays without any axis, which unravel_index does not take.
        _, *places = np.unravel_index(numbers, (1, *map(len, self.picks)))
        for axis, (pick, place) in enumerate(zip(self.picks, places, strict=True)):
            table[:, axis] = pick.start + pick.step * place
        return table


def parse(text: object, path: str) -> Slice:
    """Read a slice such as `y[-1, :]`.

    Args:
        text: what the request holds.
        path: `of` or `wrt`, for messages.

    Raises:
        InvalidSlice: if it is no text or can't be read, with the position, what was expected, what came and an example.
    """
    if not isinstance(text, str):
        example, kind = _example("", 2, path), type(text).__name__
        detail = f"expected an array's name and a slice, as text, got {kind}; write it like {example}"
        raise InvalidSlice(detail, path=path, expected=example, received=kind)
    name, bracket, inside = text.partition("[")
    name, opening = name.strip(), len(name)
    blame = _Blame(path, _example(name, 2 if not bracket or "," in inside or "][" in inside else 1, path))
    if len(text) > LONGEST:
        raise blame.at(LONGEST, f"the end after at most {LONGEST} characters", text[LONGEST:])
    if not text.strip():
        raise blame.at(0, "an array's name, and a slice if not all of it is wanted", text)
    if not name:
        raise blame.at(opening, "an array's name before the bracket", bracket)
    if not bracket:
        return Slice(name, (), text, ())
    inside, closed, after = inside.partition("]")
    closing = opening + 1 + len(inside)
    if not closed:
        raise blame.at(closing, "a closing bracket ]", "")
    items: list[int | slice] = []
    positions: list[int] = []
    for piece, position in _split(inside, ",", opening + 1):
        if not piece:
            raise blame.at(position, _INDEX, text[position], "an index must not be empty, but : takes a whole axis")
        items.append(_item(piece, position, blame))
        positions.append(position)
    if rest := after.strip():
        position = closing + 1 + after.index(rest)
        if rest.startswith("["):
            raise blame.at(position, "one pair of brackets that holds all indices", rest, "separate them by commas")
        raise blame.at(position, "nothing after the closing bracket", rest)
    return Slice(name, tuple(items), text, tuple(positions))


def select(part: Slice, axes: Sequence[str], sizes: Sequence[int], path: str) -> Selection:
    """Apply a slice to an array.

    Args:
        part: what `parse` read.
        axes: the names of the array's axes, without the batch axis.
        sizes: their sizes.
        path: `of` or `wrt`, for messages.

    Raises:
        InvalidSlice: if there are more indices than axes, an integer is out of range, or nothing is selected.
    """
    rank = len(sizes)
    blame = _Blame(path, _example(part.name, rank, path))
    if len(part.items) > rank:
        most = f"at most {rank} {'index' if rank == 1 else 'indices'}, for {', '.join(axes)}" if rank else "no index"
        hint = "the batch axis is never written" if rank else "it is a single number, without any axis"
        raise blame.at(part.positions[rank], most, _written(part, rank), hint)
    picks: list[range] = []
    for i, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        item = part.items[i] if i < len(part.items) else slice(None)
        if size == 0:
            raise InvalidSlice(f"expected at least one element, got none: axis {axis} has size 0", path=path)
        if isinstance(item, int) and not -size <= item < size:
            expected = f"an index from {-size} to {size - 1} along axis {axis}, which has size {size}"
            raise blame.at(part.positions[i], expected, _written(part, i))
        pick = range(size)[item] if isinstance(item, slice) else range(item % size, item % size + 1)
        if not pick:
            expected = f"a slice that takes something of axis {axis}, which has size {size}"
            raise blame.at(part.positions[i], expected, _written(part, i), _emptiness(part.items[i]))
        # A single index may come with a step beyond 64 bits, which `elements` could not multiply by.
        picks.append(pick if len(pick) > 1 else range(pick[0], pick[0] + 1))
    kept = tuple(i >= len(part.items) or isinstance(part.items[i], slice) for i in range(rank))
    return Selection(part.name, tuple(sizes), tuple(picks), kept, tuple(axes))


@dataclass(frozen=True)
class _Blame:
    """Words the errors about one text."""

    path: str
    example: str

    def at(self, position: int, expected: str, piece: str, hint: str = "") -> InvalidSlice:
        """Make the error about the piece at a position; an empty piece is the end of the text."""
        cut = piece if len(piece) <= 20 else f"{piece[:20]}…"
        # As repr shows it, since half a surrogate pair has no JSON form.
        received = repr(cut) if cut else "the end of the text"
        advice = "; ".join(filter(None, (hint, f"write it like {self.example}")))
        detail = f"at character {position} expected {expected}, got {received}; {advice}"
        return InvalidSlice(detail, path=self.path, expected=self.example, received=received)


def _example(name: str, rank: int, path: str) -> str:
    """Write a slice that can be read, of the caller's array if its name can be repeated."""
    if not name or len(name) > LONGEST or not name.isprintable():
        name, rank = "x" if path == "wrt" else "y", 2
    indexed = f"{name}[{', '.join(['-1', *[':'] * (rank - 1)])}]"
    return indexed if rank and len(indexed) <= LONGEST else name


def _split(text: str, separator: str, start: int) -> list[tuple[str, int]]:
    """Split into stripped pieces, each with its position; an empty piece has that of the separator after it."""
    pieces: list[tuple[str, int]] = []
    for piece in text.split(separator):
        pieces.append((piece.strip(), start + len(piece) - len(piece.lstrip())))
        start += len(piece) + 1
    return pieces


def _item(piece: str, position: int, blame: _Blame) -> int | slice:
    tokens = _split(piece, ":", position)
    if len(tokens) == 1:
        return _integer(piece, position, blame)
    if len(tokens) > 3:
        raise blame.at(position, "at most two colons, as in start:stop:step", piece)
    bounds = [_integer(*token, blame) if token[0] else None for token in tokens]
    if bounds[2:] == [0]:
        raise blame.at(tokens[2][1], "a step other than 0", tokens[2][0])
    return slice(*bounds)


def _integer(token: str, position: int, blame: _Blame) -> int:
    if not _INTEGER.fullmatch(token):
        hint = next((hint for pattern, hint in _HINTS if re.search(pattern, token)), "")
        raise blame.at(position, _INDEX, token, hint)
    if len(token.lstrip("+-")) > DIGITS:
        raise blame.at(position, f"a number of at most {DIGITS} digits", token)
    return int(token)


def _written(part: Slice, i: int) -> str:
    return re.split(r"[,\]]", part.text[part.positions[i] :], maxsplit=1)[0].rstrip()


def _emptiness(item: int | slice) -> str:
    if isinstance(item, slice) and (item.step or 1) < 0:
        return "a negative step counts down from start to stop, without stop"
    return "start must lie below stop, which is not taken itself, and below the size"
