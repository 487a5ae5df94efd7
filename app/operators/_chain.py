"""All of a long causal Jacobian at once: links of a sequence, each linearised on its own, chained by products.

Given the states at which the links begin, the links are independent, so they run as rows of one batch: a few steps,
instead of all, with the directions of one link's inputs and of its initial state. Let a link map a tangent `ds` of its
initial state to `ds P` in the outputs of its steps and `ds Φ` in its final state. What an input of an earlier link does
is then the product of what it does to that link's final state, of the `Φ` between, and of `P`: the chain rule over
links, which Martin and Cundy (2018, arXiv:1709.04057) use for linear recurrences. What a later input does is zero.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

import tensorflow as tf

from app.operators import _programs as programs
from app.operators._chunks import Tensors, names, one_hot, pick
from app.operators._sides import Side
from models.model import Model


@dataclass(frozen=True)
class Chain:
    """The program of a chunk that is a chain.

    It takes the inputs of the links one after another, padded at the end, as `inputs.<name>`; as `directions` the
    indices of the elements of `wrt` within a step, without the time; as `picks.<axis>` the indices along each axis of
    `of` within a step that is not taken whole; and as `rows` and `columns` the steps to return, if not all. It returns
    the `block`, `(batch, rows, columns)`, with its axes still apart.

    Attributes:
        model: what is differentiated.
        of: the side that is differentiated.
        wrt: the side with respect to which.
        links: how many there are.
        size: how many steps each has.
    """

    model: Model
    of: Side
    wrt: Side
    links: int
    size: int

    @property
    def key(self) -> Hashable:
        """What the program depends on, besides the shapes of what it takes."""
        return names(self.of), names(self.wrt), self.links, self.size

    def forward(self, arrays: Tensors) -> Tensors:
        """Linearise the links and chain them."""
        (of,), (wrt,) = names(self.of), names(self.wrt)
        inputs, inner = programs.primals_of(arrays), arrays["directions"]
        point = self._links(inputs)
        rows = tf.shape(next(iter(point.values())))[0]
        states = self._states
        numbers = sum(point[n].shape[-1] for n in states)
        own = self.size * inner.shape[0]
        steps = tf.repeat(tf.range(self.size), inner.shape[0])[:, tf.newaxis]
        moving = one_hot(tf.concat([steps, tf.tile(inner, [self.size, 1])], 1), self.wrt, rows, self.size)
        tangents = {n: tf.pad(t, [[0, numbers], *([[0, 0]] * (t.shape.rank - 1))]) for n, t in moving.items()}
        basis = tf.pad(tf.eye(numbers, dtype=point[states[0]].dtype), [[own, 0], [0, 0]])[:, tf.newaxis]
        for name, part in zip(states, tf.split(basis, [point[n].shape[-1] for n in states], -1), strict=True):
            tangents[name] = tf.broadcast_to(part, [own + numbers, rows, part.shape[-1]])
        if wrt not in point:
            point[wrt] = self.model.default(wrt, point)

        def run(moved: Tensors) -> Tensors:
            outputs = [of, *(n for n in states if n != of)]
            return self.model.run({**point, **moved}, outputs, directions=own + numbers)

        _, pushed = programs.push(run, {n: point[n] for n in tangents}, tangents, stacked=True)
        seen = pick(pushed[of], {p: t for p, t in arrays.items() if p.startswith("picks.")})
        outputs = [int(n) for n in seen.shape[3:]]
        batch = tf.shape(next(iter(inputs.values())))[0]
        y = _last(seen, [batch, self.links, self.size * prod(outputs), own + numbers])
        s = _last(tf.concat([pushed[n] for n in states], -1), [batch, self.links, numbers, own + numbers])
        block = _chained(y, s, own)
        time = self.links * self.size
        block = tf.reshape(block, [-1, time, *outputs, time, inner.shape[0]])
        if "rows" in arrays:
            block = tf.gather(block, arrays["rows"], axis=1)
        if "columns" in arrays:
            block = tf.gather(block, arrays["columns"], axis=block.shape.rank - 2)
        return {"block": block}

    @property
    def _states(self) -> list[str]:
        return [a.name for a in self.model.signature.states]

    def _links(self, inputs: Tensors) -> Tensors:
        """Return the inputs and initial states of every link, as rows."""
        hidden = self.model.signature.after_steps
        found = self.model.run(inputs, list(hidden.values()))
        sequences = [a.name for a in self.model.signature.sequences]
        rows: Tensors = {}
        for name, array in inputs.items():
            if name in sequences:
                rows[name] = tf.reshape(array, [-1, self.size, *array.shape[2:]])
            elif name not in hidden:
                rows[name] = tf.repeat(array, self.links, axis=0)
        for name, after in hidden.items():
            first = inputs[name] if name in inputs else self.model.default(name, inputs)
            ends = found[after][:, self.size - 1 : -1 : self.size]
            starts = tf.concat([first[:, tf.newaxis], ends], 1)
            rows[name] = tf.reshape(starts, [-1, *starts.shape[2:]])
        return rows


def _last(tangents: tf.Tensor, shape: list[int | tf.Tensor]) -> tf.Tensor:
    """Move the directions from the first axis to the last, and split links from batch."""
    return tf.reshape(tf.transpose(tangents, [*range(1, tangents.shape.rank), 0]), shape)


def _chained(y: tf.Tensor, s: tf.Tensor, own: int) -> tf.Tensor:
    """Multiply along the chain.

    Args:
        y: what a link's own inputs and its initial state do to its outputs, `(batch, links, outputs, own + numbers)`.
        s: the same for its final state, `(batch, links, numbers, own + numbers)`.
        own: how many directions are inputs.

    Returns:
        What the inputs of all links do to the outputs of all, `(batch, links, outputs, links * own)`.
    """
    links = y.shape[1]
    block, before = y[:, 0, :, :own], s[:, 0, :, :own]
    rows = [block]
    for i in range(1, links):
        block = tf.concat([_times(y[:, i, :, own:], before), y[:, i, :, :own]], -1)
        before = tf.concat([_times(s[:, i, :, own:], before), s[:, i, :, :own]], -1)
        rows.append(block)
    return tf.stack([tf.pad(r, [[0, 0], [0, 0], [0, (links - 1 - i) * own]]) for i, r in enumerate(rows)], 1)


def _times(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    # As in models.matrices: one product of matrices is faster than a batch of one.
    return tf.matmul(a[0], b[0])[tf.newaxis] if a.shape[0] == 1 else tf.matmul(a, b)
