"""The matrices of single steps: which programs compute them, for one batch whose rows are all steps of a trajectory.

Once the states before every step are known, the steps are independent of each other. The directions are those of one
layer's state, or of the input, at a time: what they don't reach is zero and is not computed.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from app.operators import _check as checks
from app.operators import _layouts as layouts
from app.operators import _programs as programs
from app.operators import _reading as reading
from app.operators._lengths import own_steps
from app.operators._operator import Arrays, Item, Shape, Tensors, Work
from app.operators._sides import Side
from app.operators._slices import Slice, select
from models.model import Model
from models.signature import Array

# Copies of a direction's numbers that a step holds at once.
_COPIES = 2


def sequence(model: Model) -> Array:
    """Return the one input with a time axis, which every model has that works step by step."""
    return model.signature.sequences[0]


def _side(*arrays: Array) -> Side:
    """Return all of some arrays, side by side, at one time step."""
    sizes = [1 if axis == "time" else n or 0 for n, axis in zip(arrays[0].shape, arrays[0].axes, strict=True)][1:]
    sizes[-1] = sum(a.shape[-1] or 0 for a in arrays)
    whole = Slice(arrays[0].name, (), arrays[0].name, ())
    return Side(arrays, select(whole, arrays[0].axes[1:], sizes, "parts"), batched=True, timed=False)


@dataclass(frozen=True)
class Steps:
    """A checked call for the matrices of all steps of a trajectory.

    Attributes:
        model: what is linearised.
        parts: which matrices, of `A`, `B`, `C` and `D`.
        feeds: the call's arrays by path.
        casts: notes on arrays that were converted.
        budget: bytes that a chunk may hold.
        lengths: how many steps of each trajectory are its own; None for all.
    """

    model: Model
    parts: Sequence[str]
    feeds: reading.Feeds
    casts: Sequence[str]
    budget: int
    lengths: np.ndarray | None = None

    @property
    def batch(self) -> int:
        """How many trajectories."""
        return self.feeds[f"inputs.{self._x.name}"].shape[0]

    @property
    def length(self) -> int:
        """How many steps each has."""
        return self.feeds[f"inputs.{self._x.name}"].shape[1]

    @property
    def count(self) -> int:
        """How many steps in all."""
        return self.batch * self.length

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Ranges of steps that are computed at once; in order, sample by sample."""
        s, itemsize = self.model.signature, np.dtype(self.model.dtype).itemsize
        width = sum(prod(n for n in a.shape[1:] if n is not None) for a in (*s.inputs, *s.hidden, *s.outputs))
        ways = [sum(a.shape[-1] or 0 for a in arrays) for arrays in self._ways()]
        own = sum(self.nbytes(part) for part in self.parts) // self.count
        most = max(1, self.budget // (_COPIES * (own + max(ways) * width * itemsize)))
        # All but the last are alike, so that there are no more than two programs.
        return [(start, min(start + most, self.count)) for start in range(0, self.count, most)]

    def nbytes(self, part: str) -> int:
        """Return the size of the matrices of all steps."""
        return self.count * prod(self._matrix(part)) * np.dtype(self.model.dtype).itemsize

    def run(self) -> Generator[Item, Arrays, None]:
        """Yield the works to be done, then the answer's arrays by path."""
        chunks = self.chunks
        if len(chunks) == 1:
            found = yield self._work("all", self._all, self.feeds, compile=True)
            yield {part: self._shaped(part, found[part]) for part in self.parts}
            return
        before: Arrays = {}
        if self.length > 1:
            before = yield self._work("states", self._states, self.feeds, compile=False)
        whole: dict[str, np.ndarray] = {}
        for start, stop in chunks:
            rows = {p: self._rows(p, a)[start:stop] for p, a in {**self.feeds, **before}.items()}
            found = yield self._work("rows", self._matrices, rows, compile=True)
            for part, array in found.items():
                if part not in whole:
                    whole[part] = np.empty((self.count, *array.shape[1:]), array.dtype)
                whole[part][start:stop] = array
        yield {part: self._shaped(part, whole[part]) for part in self.parts}

    def check(self, answer: Arrays) -> Generator[Work, Arrays, dict[str, Any]]:
        """Check the answer's matrices, with all steps as rows of one batch; the state moves, then the input."""
        before: Arrays = {}
        if self.length > 1:
            before = yield self._work("states", self._states, self.feeds, compile=False)
        rows = {path: self._rows(path, array) for path, array in {**self.feeds, **before}.items()}
        if self.lengths is not None:
            own = own_steps(self.lengths, self.length)
            rows = {path: array[own.reshape(-1)] for path, array in rows.items()}
            answer = {part: array[own] for part, array in answer.items()}
        signature = self.model.signature
        state, x, y = (_side(*arrays) for arrays in (signature.states, [self._x], signature.outputs[:1]))
        findings: list[dict[str, Any]] = []
        for column, parts in ((state, "AC"), (x, "BD")):
            blocks = {p: (state if p in "AB" else y, column) for p in parts if p in self.parts}
            if blocks:
                findings.append((yield from checks.of_blocks(self.model, rows, blocks)(answer)))
        return checks.joined(findings)

    @cached_property
    def _x(self) -> Array:
        return sequence(self.model)

    @property
    def _layers(self) -> dict[str, list[Array]]:
        found: dict[str, list[Array]] = {}
        for state in self.model.signature.states:
            found.setdefault(state.name.rpartition(".")[0], []).append(state)
        return found

    def _ways(self) -> list[list[Array]]:
        """List what is moved at once: each layer's state, and the input."""
        states = list(self._layers.values()) if set(self.parts) & {"A", "C"} else []
        return states + ([[self._x]] if set(self.parts) & {"B", "D"} else [])

    def _matrix(self, part: str) -> tuple[int, int]:
        numbers = sum(s.shape[-1] or 0 for s in self.model.signature.states)
        rows = numbers if part in "AB" else self.model.signature.outputs[0].shape[-1] or 0
        return rows, numbers if part in "AC" else self._x.shape[-1] or 0

    def _shaped(self, part: str, array: np.ndarray) -> np.ndarray:
        array = array.reshape(self.batch, self.length, *self._matrix(part))
        if self.lengths is None:
            return array
        still = np.eye(array.shape[-1], dtype=array.dtype) if part == "A" else np.zeros((), array.dtype)
        return np.where(own_steps(self.lengths, self.length)[..., np.newaxis, np.newaxis], array, still)

    def _rows(self, path: str, array: np.ndarray) -> np.ndarray:
        """Let an array of all samples have one row per step."""
        name = path.partition(".")[2]
        if name == self._x.name:
            return array.reshape(self.count, 1, *array.shape[2:])
        if name.startswith("state.") and self.length > 1:
            return array.reshape(self.count, *array.shape[2:])
        return np.repeat(array, self.length, 0)

    def _work(self, kind: str, program: programs.Run, feeds: Arrays, *, compile: bool) -> Work:
        rows = kind == "rows" or self.length == 1
        shapes: dict[str, Shape] = layouts.free_shapes(self.model, dict(feeds))
        if rows:
            path = f"inputs.{self._x.name}"
            shapes[path] = (None, 1, *shapes[path][2:])
        return Work(
            key=(kind, tuple(self.parts), rows),
            build=lambda: program,
            feeds=feeds,
            shapes=shapes,
            rows=next(iter(feeds.values())).shape[0],
            strategy="scan",
            casts=self.casts,
            compile=compile,
        )

    def _all(self, arrays: Tensors) -> Tensors:
        """Compute the states before every step and the matrices in one program."""
        if self.length == 1:
            return self._matrices(arrays)
        inputs = programs.primals_of(arrays)
        x = inputs[self._x.name]
        before = programs.primals_of(self._states(arrays))
        rows: Tensors = {}
        for name, tensor in {**inputs, **before}.items():
            if name == self._x.name:
                rows[name] = tf.reshape(tensor, tf.concat([[-1, 1], tf.shape(tensor)[2:]], 0))
                rows[name].set_shape([None, 1, *tensor.shape[2:]])
            elif name in before:
                rows[name] = tf.reshape(tensor, [-1, tensor.shape[-1]])
            else:
                rows[name] = tf.repeat(tensor, tf.shape(x)[1], 0)
        return self._matrices(programs.by_field(inputs=rows))

    def _states(self, arrays: Tensors) -> Tensors:
        """Compute the states before every step, `(batch, time, units)`."""
        inputs = programs.primals_of(arrays)
        names = self.model.signature.after_steps
        after = self.model.run(inputs, list(names.values()))
        first = programs.point_of(self.model, inputs, list(names))
        before = {s: tf.concat([first[s][:, tf.newaxis], after[h][:, :-1]], 1) for s, h in names.items()}
        return programs.by_field(inputs=before)

    def _matrices(self, arrays: Tensors) -> Tensors:
        """Compute the matrices of single steps, `(rows, out, in)`."""
        inputs = programs.primals_of(arrays)
        point = {**inputs, **programs.point_of(self.model, inputs, [s.name for s in self.model.signature.states])}
        found: Tensors = {}
        for state, output, ways in (("A", "C", list(self._layers.values())), ("B", "D", [[self._x]])):
            wanted = [part for part in (state, output) if part in self.parts]
            if wanted:
                pushed = [self._push(point, way, wanted) for way in ways]
                for part in wanted:
                    # What is pushed has the directions in front; those of all layers stand side by side.
                    found[part] = tf.transpose(tf.concat([p[part] for p in pushed], 0), [1, 2, 0])
        return found

    def _push(self, point: Tensors, way: list[Array], wanted: list[str]) -> Tensors:
        """Push all directions of one layer's state, or of the input; return `(directions, rows, out)` by part."""
        names = [a.name for a in way]
        units = [a.shape[-1] or 0 for a in way]
        states = [s.name for s in self.model.signature.states] if {"A", "B"} & set(wanted) else []
        outputs = [y.name for y in self.model.signature.outputs] if {"C", "D"} & set(wanted) else []
        moved = {n: tf.identity(point[n]) for n in names}
        eye = tf.split(tf.eye(sum(units), dtype=moved[names[0]].dtype), units, 1)
        tangents: Tensors = {}
        for part, (name, tensor) in zip(eye, moved.items(), strict=True):
            middle = [1] * (tensor.shape.rank - 1)
            spread = tf.reshape(part, [part.shape[0], *middle, part.shape[1]])
            tangents[name] = tf.broadcast_to(spread, tf.concat([part.shape[:1], tf.shape(tensor)], 0))
            tangents[name].set_shape([part.shape[0], *tensor.shape])

        def run(moved: Tensors) -> Tensors:
            return self.model.run({**point, **moved}, [*states, *outputs], basis=names)

        _, pushed = programs.push(run, moved, tangents, stacked=True)
        found: Tensors = {}
        for part in wanted:
            sides = [pushed[n] for n in (states if part in "AB" else outputs)]
            sides = [tf.squeeze(t, 2) if t.shape.rank == 4 else t for t in sides]
            found[part] = sides[0] if len(sides) == 1 else tf.concat(sides, -1)
        return found
