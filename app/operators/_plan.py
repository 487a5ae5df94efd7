"""How a Jacobian is computed: forwards or backwards, over which steps, in which pieces. No tensor is touched.

A pass is one direction through the model: forward mode takes one per element of the `wrt` slice, reverse mode one per
element of the `of` slice, and all samples of a batch share it. What a pass costs is the steps it runs, so both modes
are compared by passes times steps; see Griewank and Walther, Evaluating Derivatives (doi:10.1137/1.9780898717761),
ch. 7.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from app.operators._links import Links, cut
from app.operators._sides import Range, split
from app.operators._task import Task

MODES = ("forward", "reverse")

# Of more chunks for a sample each is only cut when it is needed.
_MOST_CUT = 30_000


@dataclass(frozen=True)
class Piece:
    """Consecutive steps of a window that are run alike.

    Attributes:
        length: how many; None for whatever the window has besides the other pieces.
        moving: whether `wrt` has elements in it, or in every step.
        seen: whether `of` has elements in it.
    """

    length: int | None
    moving: bool
    seen: bool


@dataclass(frozen=True)
class Chunk:
    """One run of one program.

    Attributes:
        samples: the first, and the one to stop before.
        rows: likewise, elements of `of`.
        columns: likewise, elements of `wrt`; all others are known to be zero.
        window: the steps that are run.
        pieces: what the window consists of.
    """

    samples: Range
    rows: Range
    columns: Range
    window: Range
    pieces: tuple[Piece, ...]

    def directions(self, mode: str) -> int:
        """How many passes there are per sample."""
        start, stop = self.columns if mode == "forward" else self.rows
        return stop - start


@dataclass(frozen=True)
class Block:
    """A part of the answer that is contiguous in it, and the chunks it is put together from.

    Attributes:
        samples: the first, and the one to stop before.
        rows: likewise, elements of `of`.
        pattern: the chunks, their samples counted from the block's first; blocks of other samples share it.
    """

    samples: Range
    rows: Range
    pattern: tuple[Chunk, ...]

    @property
    def chunks(self) -> Iterator[Chunk]:
        """The chunks, in order."""
        first = self.samples[0]
        for chunk in self.pattern:
            yield replace(chunk, samples=(chunk.samples[0] + first, chunk.samples[1] + first))


@dataclass(frozen=True)
class Plan:
    """A mode, and the blocks in the order of the answer.

    Attributes:
        mode: `forward` or `reverse`.
        passes: directions through the model, per sample.
        steps: steps that all of these run together, per sample.
        why: the reason for the mode.
        count: how many chunks there are.
        blocks: what to compute, unless it is a chain.
        links: how a chain is cut.
    """

    mode: str
    passes: int
    steps: int
    why: str
    count: int
    blocks: Iterable[Block]
    links: Links | None = None

    @property
    def kinds(self) -> list[Chunk] | None:
        """All chunks but for those that differ in their samples only; None if there are too many to look at."""
        if not isinstance(self.blocks, tuple):
            return None
        patterns = {id(block.pattern): block.pattern for block in self.blocks}
        return [chunk for pattern in patterns.values() for chunk in pattern]


@dataclass(frozen=True)
class _Uncut:
    """The blocks of a task, each made when it is needed."""

    task: Task
    mode: str

    def __iter__(self) -> Iterator[Block]:
        return _blocks(self.task, self.mode)


def make_plan(task: Task, mode: str = "auto") -> Plan:
    """Choose a mode, unless it is given, and cut the work into blocks and chunks."""
    modes = MODES if mode == "auto" else (mode,)
    plans = [_cheapest(task, m) for m in modes]
    chosen, *others = sorted(plans, key=lambda plan: plan.steps)  # forward first if they are equal
    if not others:
        return replace(chosen, why=f"{mode} mode was asked for")
    costs = [f"{plan.mode} mode takes {plan.passes} passes over {plan.steps} steps" for plan in (chosen, *others)]
    return replace(chosen, why=f"{costs[0]} per sample, {costs[1]}")


def _cheapest(task: Task, mode: str) -> Plan:
    plan = _estimate(task, mode) if _count(task, mode) > _MOST_CUT else _plan(task, mode)
    links = cut(task) if mode == "forward" else None
    # Steps of a chain are not the whole of its costs, so it has to be much better than the same mode without one.
    if links is None or 2 * links.steps >= plan.steps:
        return plan
    return Plan(mode, task.wrt.count, links.steps, "", links.runs * -(-task.batch // links.samples), (), links)


def _estimate(task: Task, mode: str) -> Plan:
    """Plan so many chunks that they are not cut before they are needed, with passes and steps as they are at most."""
    whole = _plan(replace(task, block_bytes=sys.maxsize, chunk_bytes=sys.maxsize), mode)
    # Forward mode runs all columns anew for each block of rows.
    times = -(-task.of.count // task.block_rows) if mode == "forward" else 1
    count = _count(task, mode) * task.batch
    blocks = _Uncut(task, mode)
    return replace(whole, passes=whole.passes * times, steps=whole.steps * times, count=count, blocks=blocks)


def _plan(task: Task, mode: str) -> Plan:
    blocks = tuple(_blocks(task, mode))
    passes, steps = 0, 0
    costs: dict[int, Range] = {}
    for block in blocks:
        if id(block.pattern) not in costs:
            samples = [c.samples[1] - c.samples[0] for c in block.pattern]
            costs[id(block.pattern)] = (
                sum(n * c.directions(mode) for n, c in zip(samples, block.pattern, strict=True)),
                sum(
                    n * c.directions(mode) * (c.window[1] - c.window[0])
                    for n, c in zip(samples, block.pattern, strict=True)
                ),
            )
        cost = costs[id(block.pattern)]
        passes, steps = passes + cost[0], steps + cost[1]
    count = sum(len(block.pattern) for block in blocks)
    return Plan(mode, passes // task.batch, steps // task.batch, "", count, blocks)


def _count(task: Task, mode: str) -> int:
    """Estimate how many chunks a sample takes."""
    rows, columns = task.of.count, task.wrt.count
    blocks = -(-rows * columns * task.itemsize // task.block_bytes)
    most = max(1, task.chunk_bytes // (task.width * task.itemsize * task.length))
    return blocks * -(-columns // most) if mode == "forward" else max(blocks, -(-rows // most))


def _blocks(task: Task, mode: str) -> Iterator[Block]:
    rows, columns = task.of.count, task.wrt.count
    per_sample = rows * columns * task.itemsize
    parts = list(split(0, rows, task.block_rows, task.of.per_step))
    made: dict[tuple[int, Range], tuple[Chunk, ...]] = {}
    for start, stop in split(0, task.batch, max(1, task.block_bytes // per_sample)):
        for part in parts:
            key = stop - start, part
            if key not in made:
                made[key] = tuple(_chunks(task, mode, stop - start, part))
            yield Block((start, stop), part, made[key])


def _chunks(task: Task, mode: str, samples: int, rows: Range) -> Iterator[Chunk]:
    forward = mode == "forward"
    everything = (0, task.wrt.count)
    side, start, stop = (task.wrt, *everything) if forward else (task.of, *rows)
    first, last = _window(task, rows, everything)
    most = max(1, task.chunk_bytes // (task.width * task.itemsize * max(1, last - first)))
    # A parameter's cotangent is summed over the batch, so reverse mode takes each sample alone.
    alone = not forward and not task.wrt.batched
    for part in split(0, samples, 1 if alone else max(1, most // (stop - start))):
        for directions in split(start, stop, most, side.per_step):
            r, c = (rows, directions) if forward else (directions, everything)
            window = _window(task, r, c)
            r, c = (s.within(p, window) if task.causal else p for s, p in ((task.of, r), (task.wrt, c)))
            if r[1] > r[0] and c[1] > c[0]:
                yield Chunk(part, r, c, window, _pieces(task, mode, r, c, window))


def _window(task: Task, rows: Range, columns: Range) -> Range:
    """Find the steps between the first that moves and the last that is asked for."""
    start, stop = 0, task.length
    if task.stepwise and task.wrt.timed:
        start = task.wrt.span(columns)[0]
    if task.causal and task.of.timed:
        stop = task.of.span(rows)[1]
    return start, max(start, stop)


def _pieces(task: Task, mode: str, rows: Range, columns: Range, window: Range) -> tuple[Piece, ...]:
    """Cut a window where directions end to begin, or outputs begin.

    Programs are made for the lengths of pieces, except one, so chunks of a long series are cut alike.
    """
    start, stop = window
    everything = Piece(None, moving=True, seen=True)
    if not task.stepwise or stop - start < 2:
        return (everything,)
    if mode == "forward" and task.wrt.timed:
        end = task.wrt.span(columns)[1]
        first = Piece(end - start, moving=True, seen=task.of.timed)
        return (everything,) if end >= stop else (first, Piece(None, moving=False, seen=True))
    span = stop - task.of.span(rows)[0] if task.of.timed else 1
    if span > (stop - start) // 2:
        return (everything,)
    return Piece(None, moving=True, seen=False), Piece(span, moving=True, seen=True)
