"""How a long causal Jacobian is cut into the links of a chain, which `_chain` linearises and `_chained` multiplies."""

from dataclasses import dataclass

from app.operators._sides import Range
from app.operators._task import Task

# Below so many floating-point operations the simplest program is the best: a chain takes longer to trace and compile.
_WORTH_CHAINING = 2e7
# How many links there are at least, if that leaves any of several steps, and how many steps a link has at most.
_LINKS = 8
_LONGEST = 32


@dataclass(frozen=True)
class Links:
    """A chain: the steps of a window, cut into runs of links of one size; the last may be longer than what is left.

    Attributes:
        samples: how many take part in a run, at most.
        window: the steps that are run.
        runs: how many there are, one after another.
        count: how many links a run has, side by side.
        size: how many steps a link has.
        steps: passes times steps per sample, products of matrices as the passes that would take as long.
    """

    samples: int
    window: Range
    runs: int
    count: int
    size: int
    steps: int

    @property
    def length(self) -> int:
        """How many steps a run has."""
        return self.count * self.size


def cut(task: Task) -> Links | None:
    """Cut a task into links, if that is possible and so much is to be done that it can pay."""
    of, wrt, numbers = task.of, task.wrt, task.numbers
    if not (task.stepwise and of.timed and (wrt.timed or task.initial) and numbers and _rising(task)):
        return None
    window = wrt.span((0, wrt.count))[0] if wrt.timed else 0, of.span((0, of.count))[1]
    length = window[1] - window[0]
    carry = numbers * wrt.count * task.itemsize
    if task.flops * wrt.count * length <= _WORTH_CHAINING or carry > task.block_bytes:
        return None
    size = min(_LONGEST, -(-length // _LINKS))

    def taken(size: int) -> int:
        return size * _directions(task, size) * task.width * task.itemsize

    while size > 1 and taken(size) > task.chunk_bytes:
        size //= 2
    total = -(-length // size)
    most = max(1, task.chunk_bytes // taken(size))
    # A block holds the rows of all samples, and as many states are handed on.
    samples = min(task.batch, max(1, task.block_bytes // (max(of.count, numbers) * wrt.count * task.itemsize)), most)
    runs = -(-total // max(1, most // samples))
    count = -(-total // runs)
    return Links(samples, window, runs, count, size, _steps(task, size, runs * count))


def _directions(task: Task, size: int) -> int:
    return size * task.wrt.per_step + task.numbers


def _steps(task: Task, size: int, links: int) -> int:
    of, wrt, numbers = task.of, task.wrt, task.numbers
    # Of what has a time, the columns begin one after another, so half of them take part on average.
    columns = wrt.count / 2 if wrt.timed else wrt.count
    products = 2 * columns * numbers * (of.count + links * numbers)
    return links * size * _directions(task, size) + int(products / max(1, task.flops))


def _rising(task: Task) -> bool:
    return all(side.selection.picks[0].step > 0 for side in (task.of, task.wrt) if side.timed)
