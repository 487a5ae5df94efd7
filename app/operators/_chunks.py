"""The tensor programs of Jacobians: one chunk, forwards or backwards, over the pieces of a window.

A model that runs step by step is run piece by piece, its states handed on. So outputs that nobody asked for are not
computed, and one-hot directions are arrays over the piece that they move.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

import tensorflow as tf

from app.operators import _programs as programs
from app.operators._plan import Piece
from app.operators._sides import Side
from models.model import Model

Tensors = dict[str, tf.Tensor]
Size = int | tf.Tensor


@dataclass(frozen=True)
class Slab:
    """The program of a chunk.

    It takes the window's inputs as `inputs.<name>`, as `directions` the indices of one element of an array each, and as
    `picks.<axis>` the indices along each axis of the other side that is not taken whole. Times count from where the
    window begins; those in `of`, from where the first piece begins that is seen. It returns the `block`, `(batch, rows,
    columns)`, with the axes of the other side still apart.

    Attributes:
        model: what is differentiated.
        of: the side that is differentiated.
        wrt: the side with respect to which.
        pieces: what the window consists of; one, unless the model runs step by step.
        many: about how many directions there are.
    """

    model: Model
    of: Side
    wrt: Side
    pieces: tuple[Piece, ...]
    many: int

    @property
    def key(self) -> Hashable:
        """What the program depends on, besides the shapes of what it takes."""
        # The sizes of a side are part of the program, but for the time of one whose window may have any length.
        sides = [(names(s), s.timed, s.selection.sizes[s.timed :]) for s in (self.of, self.wrt)]
        return (*sides, self.pieces, self.many)

    def forward(self, arrays: Tensors) -> Tensors:
        """Push one-hot tangents of `wrt` forward."""
        directions, inputs = arrays["directions"], programs.primals_of(arrays)
        batch = _batch(inputs)
        states = {n: t for n, t in inputs.items() if n in self._states}
        carried: Tensors = {}
        parts: list[tf.Tensor] = []
        for i, (start, stop) in enumerate(self._bounds(inputs)):
            given = {**self._cut(inputs, start, stop), **states}
            tangents = dict(carried)
            if i == 0 or self._every_piece:
                tangents |= one_hot(directions, self.wrt, batch, stop - start)
            wanted = self._wanted(i)
            outputs = [*wanted, *(n for n in self._handed_on(i) if n not in wanted)]
            found, pushed = self._push(given, tangents, outputs, tf.shape(directions)[0])
            parts += [_join([pushed[n] for n in wanted])] if wanted else []
            states = {n: found[n] for n in self._handed_on(i)}
            carried = {n: pushed[n] for n in self._handed_on(i)}
        block = pick(_along_time(parts, 2), arrays)
        return {"block": tf.transpose(block, [*range(1, block.shape.rank), 0])}

    def reverse(self, arrays: Tensors) -> Tensors:
        """Pull one-hot cotangents of `of` back."""
        directions, inputs = arrays["directions"], programs.primals_of(arrays)
        bounds = self._bounds(inputs)
        initial = {n: t for n, t in inputs.items() if n in self._states}
        sources: Tensors = {}
        for i, (start, stop) in enumerate(bounds):
            given = {**self._cut(inputs, start, stop), **initial}
            for name in names(self.wrt):
                if i == 0 or self._by_step:
                    sources[f"{name}@{i}"] = tf.identity(self._value(name, given))
        seen = [i for i in range(len(self.pieces)) if self._wanted(i)]

        def run(point: Tensors) -> Tensors:
            states = initial
            parts: list[Tensors] = []
            for i, (start, stop) in enumerate(bounds):
                moving = {n: f"{n}@{i if self._by_step else 0}" for n in names(self.wrt)}
                if i and not self._by_step and not self._every_piece:
                    moving = {}
                given = {**self._cut(inputs, start, stop), **states, **{n: point[at] for n, at in moving.items()}}
                wanted = self._wanted(i)
                outputs = [*wanted, *(n for n in self._handed_on(i) if n not in wanted)]
                found = self.model.run(given, outputs, directions=self.many)
                states = {n: found[n] for n in self._handed_on(i)}
                parts += [{n: found[n] for n in wanted}] if wanted else []
            return {n: _along_time([part[n] for part in parts], 1) for n in names(self.of)}

        length = bounds[seen[-1]][1] - bounds[seen[0]][0]
        cotangents = one_hot(directions, self.of, _batch(inputs), length)
        _, pulled = programs.pull(run, sources, cotangents, list(sources), stacked=True)
        columns = []
        for name in names(self.wrt):
            found = [pulled[at] for at in sources if at.rpartition("@")[0] == name]
            # A parameter's cotangent is that of the one sample there is.
            columns.append(_along_time(found, 2) if self.wrt.batched else found[0][:, tf.newaxis])
        block = pick(_join(columns), arrays)
        return {"block": tf.transpose(block, [1, 0, *range(2, block.shape.rank)])}

    @property
    def _by_step(self) -> bool:
        return self.wrt.timed

    @property
    def _every_piece(self) -> bool:
        return not self._by_step and not set(names(self.wrt)) <= set(self._states)

    @property
    def _states(self) -> list[str]:
        return [a.name for a in self.model.signature.states]

    def _handed_on(self, piece: int) -> list[str]:
        return self._states if piece < len(self.pieces) - 1 else []

    def _wanted(self, piece: int) -> list[str]:
        last = piece == len(self.pieces) - 1
        return list(names(self.of)) if self.pieces[piece].seen and (self.of.timed or last) else []

    def _value(self, name: str, given: Tensors) -> tf.Tensor:
        return given[name] if name in given else self.model.default(name, given)

    def _sequences(self) -> list[str]:
        return [a.name for a in self.model.signature.sequences]

    def _bounds(self, inputs: Tensors) -> list[tuple[Size, Size]]:
        if not self._sequences():
            return [(0, 1)]
        x = inputs[self._sequences()[0]]
        length = tf.shape(x)[1] if x.shape[1] is None else x.shape[1]
        rest = length - sum(p.length or 0 for p in self.pieces)
        bounds, start = [], 0
        for piece in self.pieces:
            stop = start + (rest if piece.length is None else piece.length)
            bounds.append((start, stop))
            start = stop
        return bounds

    def _cut(self, inputs: Tensors, start: Size, stop: Size) -> Tensors:
        if len(self.pieces) == 1:
            return inputs
        timed = self._sequences()
        return {n: t[:, start:stop] if n in timed else t for n, t in inputs.items() if n not in self._states}

    def _push(self, given: Tensors, tangents: Tensors, outputs: Sequence[str], alive: Size) -> tuple[Tensors, Tensors]:
        if not outputs:
            return {}, {}
        if not tangents:  # nothing has begun, or nothing is carried on
            found = self.model.run(given, outputs)
            return found, {n: tf.zeros(tf.concat([[alive], tf.shape(t)], 0), t.dtype) for n, t in found.items()}
        point = {n: tf.identity(self._value(n, given)) for n in tangents}

        def run(point: Tensors) -> Tensors:
            return self.model.run({**given, **point}, outputs, directions=self.many)

        return programs.push(run, point, tangents, stacked=True)


def names(side: Side) -> tuple[str, ...]:
    """Return the names of a side's arrays."""
    return tuple(a.name for a in side.arrays)


def _batch(inputs: Tensors) -> Size:
    first = next(iter(inputs.values()))
    return tf.shape(first)[0] if first.shape[0] is None else first.shape[0]


def one_hot(directions: tf.Tensor, side: Side, batch: Size, length: Size) -> Tensors:
    """Make directions `(K, [batch,] ...)`, each 1 at one element, over `length` steps; elsewhere they are zero."""
    sizes: list[Size] = [length, *side.selection.sizes[1:]] if side.timed else list(side.selection.sizes)
    flat = tf.zeros_like(directions[:, 0]) if directions.shape[1] else tf.zeros(tf.shape(directions)[:1], tf.int32)
    for axis, size in enumerate(sizes):
        flat = flat * size + directions[:, axis]
    dtype = side.arrays[0].dtype
    found = tf.reshape(tf.one_hot(flat, prod(sizes), dtype=dtype), [-1, *sizes])
    if side.batched:
        found = tf.broadcast_to(found[:, tf.newaxis], [tf.shape(directions)[0], batch, *sizes])
    widths = [a.shape[-1] for a in side.arrays]
    parts = tf.split(found, widths, -1) if len(widths) > 1 else [found]
    shapes = [a.shape[1:] if side.batched else a.shape for a in side.arrays]
    for part, shape in zip(parts, shapes, strict=True):
        known = [length if isinstance(length, int) else None, *shape[1:]] if side.timed else list(shape)
        part.set_shape([directions.shape[0], *([batch if isinstance(batch, int) else None] * side.batched), *known])
    return {a.name: part for a, part in zip(side.arrays, parts, strict=True)}


def _join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def _along_time(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis)


def pick(found: tf.Tensor, arrays: Tensors) -> tf.Tensor:
    """Take the elements asked for along each axis after directions and batch."""
    for path, picks in arrays.items():
        field, _, axis = path.partition(".")
        if field == "picks":
            found = tf.gather(found, picks, axis=2 + int(axis))
    return found
