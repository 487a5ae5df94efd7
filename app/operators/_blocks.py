"""Computes a planned Jacobian block by block: which works, on which part of the arrays, and how they fit together."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from app.operators import _reading as reading
from app.operators._chunks import Slab
from app.operators._operator import Arrays, Item, Work
from app.operators._plan import Block, Chunk, Plan
from app.operators._sides import Side
from app.operators._task import Task
from app.operators._works import Works
from models.model import Model


@dataclass
class Run:
    """Computes a planned Jacobian: yields the works to be done, and each block when it is complete."""

    model: Model
    feeds: reading.Feeds
    task: Task
    plan: Plan
    compile: bool
    states: tuple[tuple[int, int], Arrays] | None = None

    def steps(self) -> Generator[Item, Arrays, None]:
        kinds = self.plan.kinds
        alike = kinds is not None and len({self._size(chunk) for chunk in kinds}) <= 2
        compile = self.compile and alike
        for block in self.plan.blocks:
            yield (yield from self._block(block, compile))

    def _size(self, chunk: Chunk) -> tuple[int, ...]:
        spans = (chunk.samples, chunk.window, chunk.rows if self.plan.mode == "reverse" else chunk.columns)
        return tuple(stop - start for start, stop in spans)

    def _block(self, block: Block, compile: bool) -> Generator[Work, Arrays, np.ndarray]:
        samples, rows, columns = block.samples, block.rows, self.task.wrt.count
        shape = (samples[1] - samples[0], rows[1] - rows[0], columns)
        found = None
        for chunk in block.chunks:
            before = yield from self._before(chunk)
            part = self._trim(chunk, (yield self._work(chunk, before, compile))["block"])
            # Reverse mode finds it in the dtype of `wrt`.
            part = part.astype(self.task.dtype, copy=False)
            if part.shape == shape:
                return part
            found = np.zeros(shape, self.task.dtype) if found is None else found
            at = [(chunk.samples, samples[0]), (chunk.rows, rows[0]), (chunk.columns, 0)]
            found[tuple(slice(start - o, stop - o) for (start, stop), o in at)] = part
        return np.zeros(shape, self.task.dtype) if found is None else found

    def _trim(self, chunk: Chunk, block: np.ndarray) -> np.ndarray:
        """Make a program's result `(samples, rows, columns)`; of the side without directions it holds whole steps."""
        covers = [(chunk.rows, chunk.rows), (chunk.columns, chunk.columns)]
        other = 0 if self.plan.mode == "forward" else 1
        covers[other] = (covers[other][0], (self.task.of, self.task.wrt)[other].cover(covers[other][0]))
        sizes = [stop - start for _, (start, stop) in covers]
        rows, columns = (slice(part[0] - cover[0], part[1] - cover[0]) for part, cover in covers)
        return block.reshape(-1, *sizes)[:, rows, columns]

    def _before(self, chunk: Chunk) -> Generator[Work, Arrays, dict[str, np.ndarray]]:
        """Return the states that a window begins with: those of the request, or those after the steps before."""
        start = chunk.window[0]
        if start == 0 or not self.model.signature.states:
            return self._works.given(chunk.samples)
        if self.states is None or self.states[0] != chunk.samples:
            # For all chunks of these samples, so up to the last beginning of any.
            stop = max((c.window[0] for c in self.plan.kinds or ()), default=self.task.length)
            self.states = chunk.samples, (yield self._works.states(chunk.samples, stop))
        return self._works.after(self.states[1], start - 1)

    def _work(self, chunk: Chunk, before: Arrays, compile: bool) -> Work:
        task, mode = self.task, self.plan.mode
        start, stop = chunk.window
        feeds = {p: a for p, a in self._works.samples(chunk.samples).items() if not p.startswith("inputs.state.")}
        feeds = {**(self._works.cut(feeds, start, stop) if task.causal else feeds), **before}
        many = 1 << (chunk.directions(mode) - 1).bit_length()
        slab = Slab(self.model, task.of, task.wrt, chunk.pieces, many)
        # The first piece that is seen begins the steps of `of`.
        unseen = next(i for i, piece in enumerate(chunk.pieces) if piece.seen)
        lengths = [piece.length for piece in chunk.pieces]
        free = stop - start - sum(n or 0 for n in lengths)
        origin = {"of": start + sum(free if n is None else n for n in lengths[:unseen]), "wrt": start}
        here, other = ("wrt", "of") if mode == "forward" else ("of", "wrt")
        side, parts = {"of": task.of, "wrt": task.wrt}, {"of": chunk.rows, "wrt": chunk.columns}
        directions = side[here].selection.elements(*parts[here])
        if side[here].timed:
            directions[:, 0] -= origin[here]
        arrays = {**feeds, "directions": directions.astype(np.int32)}
        full = side[other].selection.sizes
        for axis, pick in enumerate(_picks(side[other], parts[other], origin[other])):
            size = full[axis]
            if side[other].timed and axis == 0:
                size = stop - start if mode == "reverse" else stop - origin["of"]
            if pick != range(size):
                arrays[f"picks.{axis}"] = np.array(pick, np.int32)
        shapes: dict[str, tuple[int | None, ...]] = {p: a.shape for p, a in arrays.items()}
        shapes |= {p: (None, *a.shape[1:]) for p, a in arrays.items() if p.startswith(("directions", "picks."))}
        shapes |= {p: (arrays[p].shape[0], None, *arrays[p].shape[2:]) for p in self._works.timed}
        program = slab.forward if mode == "forward" else slab.reverse
        return self._works.work((mode, slab.key), program, arrays, shapes, compile)

    @property
    def _works(self) -> Works:
        return Works(self.model, self.feeds)


def _picks(side: Side, part: tuple[int, int], origin: int) -> list[range]:
    """Return the indices along each axis of a part of a slice that is whole but for some of its first axis."""
    picks = list(side.selection.picks)
    if side.timed:
        first, end = (i // side.per_step for i in side.cover(part))
        picks[0] = range(picks[0][first] - origin, picks[0][end - 1] - origin + picks[0].step, picks[0].step)
    return picks
