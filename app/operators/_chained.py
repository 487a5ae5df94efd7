"""Computes a Jacobian that is a chain, in order of time: a run of links is linearised, then multiplied.

The products are NumPy's, which writes them where the answer wants them; see `_chain` for what is multiplied.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from app.operators import _reading as reading
from app.operators._chain import Chain
from app.operators._links import Links
from app.operators._operator import Arrays, Item, Work
from app.operators._sides import Range, split
from app.operators._task import Task
from app.operators._works import Works
from models.model import Model


@dataclass(frozen=True)
class Chained:
    """Computes a Jacobian that is a chain: yields the works to be done, and each block when it is complete.

    Attributes:
        model: what is differentiated.
        feeds: the request's arrays.
        task: what is asked for.
        links: how it is cut.
        compile: whether XLA may compile the program.
    """

    model: Model
    feeds: reading.Feeds
    task: Task
    links: Links
    compile: bool

    def steps(self) -> Generator[Item, Arrays, None]:
        for start in range(0, self.task.batch, self.links.samples):
            yield from self._samples((start, min(start + self.links.samples, self.task.batch)))

    def _samples(self, samples: Range) -> Generator[Item, Arrays, None]:
        task, (begin, end), size = self.task, self.links.window, self.links.size
        works = Works(self.model, self.feeds)
        states: Arrays = works.given(samples)
        if begin > 0:
            states = works.after((yield works.states(samples, begin)), begin - 1)
        blocks = _Blocks(task, samples[1] - samples[0])
        carry = _Carry(task, self._before(samples))
        # Outputs before the first input are zero: no column does anything to them yet.
        early = task.of.during((0, begin))[0]
        nothing = np.broadcast_to(
            np.zeros((), task.dtype), (samples[1] - samples[0], early[1] - early[0], task.numbers)
        )
        yield from blocks.fill(early, carry.array, nothing[..., :0], nothing)
        for start in range(begin, end, self.links.length):
            found = yield self._work(works, samples, start, states)
            states = {f"inputs.{s}": found[s] for s in self.model.signature.after_steps}
            for i, first in enumerate(range(start, min(start + self.links.length, end), size)):
                link = first, min(first + size, end)
                (rows, of_steps), (columns, wrt_steps) = task.of.during(link), task.wrt.during(link)
                own, through = self._apart(found["of"][:, i, of_steps], wrt_steps)
                shape = len(own), rows[1] - rows[0], columns[1] - columns[0]
                through = through.reshape(*shape[:2], task.numbers)
                yield from blocks.fill(rows, carry.array, own.reshape(shape), through)
                if first + size >= end:
                    break
                own, through = self._apart(found["states"][:, i], wrt_steps)
                carry.advance(own.reshape(len(own), task.numbers, shape[2]), through)

    def _apart(self, found: np.ndarray, steps: slice) -> tuple[np.ndarray, np.ndarray]:
        """Split directions into those of a link's own steps, of which some are taken, and those of its states."""
        size, per_step = self.links.size, self.task.wrt.per_step
        own, through = found[..., : size * per_step], found[..., size * per_step :]
        return own.reshape(*own.shape[:-1], size, per_step)[..., steps, :], through

    def _before(self, samples: Range) -> np.ndarray:
        """Return what the columns do to the states before the first step, `(samples, numbers, columns)`."""
        task = self.task
        found = np.zeros((samples[1] - samples[0], task.numbers, task.wrt.count if task.initial else 0), task.dtype)
        if task.initial:
            starts, end = {}, 0
            for array in self.model.signature.states:
                starts[array.name] = end
                end += array.shape[-1] or 0
            places = np.concatenate([starts[a.name] + np.arange(a.shape[-1] or 0) for a in task.wrt.arrays])
            elements = task.wrt.selection.elements()[:, 0]
            found[:, places[elements], np.arange(len(elements))] = 1
        return found

    def _work(self, works: Works, samples: Range, start: int, states: Arrays) -> Work:
        task, links = self.task, self.links
        stop = min(start + links.length, links.window[1])
        feeds = {p: a for p, a in works.samples(samples).items() if not p.startswith("inputs.state.")}
        padding = [(0, 0), (0, links.length - (stop - start))]
        arrays = dict(states)
        for path, array in works.cut(feeds, start, stop).items():
            pads = [*padding, *[(0, 0)] * (array.ndim - 2)]
            arrays[path] = np.pad(array, pads) if path in works.timed and padding[1][1] else array
        if task.wrt.timed:
            arrays["directions"] = task.wrt.selection.elements(0, task.wrt.per_step)[:, 1:].astype(np.int32)
        within = zip(task.of.selection.picks[1:], task.of.selection.sizes[1:], strict=True)
        for axis, (pick, size) in enumerate(within, 1):
            if pick != range(size):
                arrays[f"picks.{axis}"] = np.array(pick, np.int32)
        program = Chain(self.model, task.of, task.wrt, links.count, links.size)
        shapes = {path: array.shape for path, array in arrays.items()}
        return works.work(("chain", program.key), program.forward, arrays, shapes, self.compile)


class _Carry:
    """What the columns so far do to the states that a link begins with."""

    def __init__(self, task: Task, before: np.ndarray) -> None:
        self._all = np.empty((*before.shape[:2], task.wrt.count), task.dtype)
        self._done = before.shape[2]
        self._all[..., : self._done] = before

    @property
    def array(self) -> np.ndarray:
        """An array of `(samples, numbers, columns so far)`."""
        return self._all[..., : self._done]

    def advance(self, own: np.ndarray, through: np.ndarray) -> None:
        """Carry on past a link: what its own columns do to the states after it, and what those before it do."""
        self._all[..., : self._done] = np.matmul(through, self.array)
        end = self._done + own.shape[-1]
        self._all[..., self._done : end] = own
        self._done = end


class _Blocks:
    """Fills the blocks of an answer, row by row.

    Args:
        task: what is asked for.
        samples: how many a block holds.
    """

    def __init__(self, task: Task, samples: int) -> None:
        self._task, self._samples = task, samples
        self._parts = split(0, task.of.count, task.block_rows, task.of.per_step)
        self._part = next(self._parts)
        self._block: np.ndarray | None = None

    def fill(self, rows: Range, carry: np.ndarray, own: np.ndarray, through: np.ndarray) -> Iterator[np.ndarray]:
        """Write the next rows, and yield each block that they complete.

        Args:
            rows: the first, and the one to stop before.
            carry: what columns do to the states that the rows begin with, `(samples, numbers, columns)`.
            own: what further columns do to the rows, `(samples, rows, columns)`.
            through: what those states do to the rows, `(samples, rows, numbers)`.
        """
        at, before = rows[0], carry.shape[-1]
        done = before + own.shape[-1]
        while at < rows[1]:
            start, stop = self._part
            if self._block is None:
                self._block = np.empty((self._samples, stop - start, self._task.wrt.count), self._task.dtype)
            end = min(stop, rows[1])
            here, there = self._block[:, at - start : end - start], slice(at - rows[0], end - rows[0])
            np.matmul(through[:, there], carry, out=here[..., :before])
            here[..., before:done] = own[:, there]
            here[..., done:] = 0
            at = end
            if at == stop:
                block, self._block = self._block, None
                self._part = next(self._parts, self._part)
                yield block
