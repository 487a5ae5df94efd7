"""The links of a chain, each linearised on its own and all at once, which products then join to a long causal Jacobian.

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
    """The program of a run of links.

    It takes the inputs of the links one after another, padded at the end, as `inputs.<name>`; as `directions` the
    indices of the elements of `wrt` within a step, without the time, if `wrt` has one; and as `picks.<axis>` the
    indices along each axis of `of` within a step that is not taken whole. It returns what the elements of `wrt` in a
    link and the numbers of its initial states, the columns, do to `of`, `(batch, links, size, rows of a step,
    columns)`, and to the `states` after it, `(batch, links, numbers, columns)`; and the states after the last link, by
    the names of the states that they are.

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
        """Linearise the links."""
        (of,), inputs = names(self.of), programs.primals_of(arrays)
        point, after = self._links(inputs)
        rows = tf.shape(next(iter(point.values())))[0]
        states = self._states
        widths = [point[n].shape[-1] for n in states]
        numbers, own = sum(widths), 0
        tangents: Tensors = {}
        if self.wrt.timed:
            (wrt,), inner = names(self.wrt), arrays["directions"]
            own = self.size * inner.shape[0]
            steps = tf.repeat(tf.range(self.size), inner.shape[0])[:, tf.newaxis]
            moving = one_hot(tf.concat([steps, tf.tile(inner, [self.size, 1])], 1), self.wrt, rows, self.size)
            tangents = {n: tf.pad(t, [[0, numbers], *([[0, 0]] * (t.shape.rank - 1))]) for n, t in moving.items()}
            if wrt not in point:
                point[wrt] = self.model.default(wrt, point)
        basis = tf.pad(tf.eye(numbers, dtype=point[states[0]].dtype), [[own, 0], [0, 0]])[:, tf.newaxis]
        for name, part in zip(states, tf.split(basis, widths, -1), strict=True):
            tangents[name] = tf.broadcast_to(part, [own + numbers, rows, part.shape[-1]])

        def run(moved: Tensors) -> Tensors:
            return self.model.run({**point, **moved}, [of, *states], directions=own + numbers)

        _, pushed = programs.push(run, {n: point[n] for n in tangents}, tangents, stacked=True)
        seen = pick(pushed[of], arrays)
        batch = tf.shape(next(iter(inputs.values())))[0]
        y = [batch, self.links, self.size, prod(int(n) for n in seen.shape[3:]), own + numbers]
        s = [batch, self.links, numbers, own + numbers]
        return {"of": _last(seen, y), "states": _last(tf.concat([pushed[n] for n in states], -1), s), **after}

    @property
    def _states(self) -> list[str]:
        return [a.name for a in self.model.signature.states]

    def _links(self, inputs: Tensors) -> tuple[Tensors, Tensors]:
        """Return the inputs and initial states of every link, as rows, and the states after the last."""
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
        return rows, {name: found[after][:, -1] for name, after in hidden.items()}


def _last(tangents: tf.Tensor, shape: list[int | tf.Tensor]) -> tf.Tensor:
    """Move the directions from the first axis to the last, and split links from batch."""
    return tf.reshape(tf.transpose(tangents, [*range(1, tangents.shape.rank), 0]), shape)
