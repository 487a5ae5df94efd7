"""What an operator is: it checks a call against a model's signature and says which programs answer it."""

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from app.calls import Call
from app.operators._rows import Arrays, Layout
from models.model import Model

Tensors = dict[str, tf.Tensor]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Work:
    """One run of one program: all of a checked call, or a part of it.

    Attributes:
        key: whatever the program depends on besides the model and the arrays' shapes and dtypes.
        build: makes the program, a function of tensors by path (`inputs.x`) to tensors by path (`outputs.y`).
        feeds: the arrays by path, in the model's dtypes.
        shapes: of what the program takes, by path; None is an axis of any size. Without any None the program is written
            for these very shapes (an unrolled loop).
        rows: how many sequences with one direction each.
        strategy: the strategy that was picked.
        casts: notes on arrays that were converted.
        compile: whether XLA may make a program of its own for these sizes.
        layout: how it can be joined with others that differ in rows, and in steps at the end; None if it can't be.
    """

    key: Hashable
    build: Callable[[], Callable[[Tensors], Tensors]]
    feeds: Mapping[str, np.ndarray]
    shapes: Mapping[str, Shape]
    rows: int
    strategy: str
    casts: Sequence[str]
    compile: bool = True
    layout: Layout | None = None

    @property
    def exact(self) -> bool:
        """Whether the program fits these sizes only."""
        return all(None not in shape for shape in self.shapes.values())

    @cached_property
    def alike(self) -> Hashable | None:
        """What works of one model and operator must have in common to be run together; None if this one can't be."""
        return None if self.layout is None else (self.key, self.strategy, self.layout.key(self.feeds))

    def with_feeds(self, feeds: Mapping[str, np.ndarray]) -> "Work":
        """Return the same work on other arrays of the same shapes and dtypes."""
        other = object.__new__(Work)
        other.__dict__.update(self.__dict__, feeds=feeds)  # with what has been found out already
        return other


Item = Work | np.ndarray | Arrays
Steps = Callable[[], Generator[Item, Arrays, None]]
Check = Callable[[Arrays], Generator[Work, Arrays, dict[str, Any]]]


@dataclass(frozen=True)
class Whole:
    """An array whose size is known before it is computed, so that it can be sent while it is."""

    field: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Its size."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Job:
    """A checked call that takes several works, one after another.

    Attributes:
        steps: makes a generator that yields each work to be done and is sent what came out; besides, it yields arrays
            by path, or the parts of `whole` in row-major order, each when it is complete.
        rows: how many sequences with one direction each.
        strategy: the strategy that was picked.
        casts: notes on arrays that were converted.
        whole: the one array that comes in parts, if there is one.
        nbytes: the size of all arrays of the answer, where it is known before.
        flops: floating-point operations in all, about; 0 if nobody asks.
        info: further members of `info`.
        extra: further members of the answer.
        plan_only: nothing is to be computed.
        check: given the arrays of the answer, yields the works of a check and returns its findings.
        work: the only one, if there is no more to do than to run it.
    """

    steps: Steps
    rows: int
    strategy: str
    casts: Sequence[str]
    whole: Whole | None = None
    nbytes: int = 0
    flops: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plan_only: bool = False
    check: Check | None = None
    work: Work | None = None

    def joined(self, items: Sequence[Any]) -> dict[str, np.ndarray]:
        """Put together all arrays that the steps have yielded."""
        if self.whole is None:
            return {path: array for item in items for path, array in item.items()}
        parts = [part.reshape(-1) for part in items]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return {self.whole.field: joined.reshape(self.whole.shape)}

    @classmethod
    def of(cls, work: Work, check: Check | None = None) -> "Job":
        """Make the job of a single work, whose arrays are the answer's."""
        return cls(partial(_single, work), work.rows, work.strategy, work.casts, check=check, work=work)

    def with_feeds(self, feeds: Mapping[str, np.ndarray]) -> "Job":
        """Return the same job, of a single work, on other arrays of the same shapes and dtypes."""
        assert self.work is not None  # noqa: S101  # whoever remembers jobs has looked
        work = self.work.with_feeds(feeds)
        other = object.__new__(Job)
        other.__dict__.update(self.__dict__, work=work, steps=partial(_single, work))
        return other


def _single(work: Work) -> Generator[Item, Arrays, None]:
    found = yield work
    yield found


class Operator(Protocol):
    """One route of the native face; see the modules beside this one."""

    name: str
    summary: str
    description: str
    request_fields: Sequence[str]
    response_fields: Sequence[str]
    options: Mapping[str, Mapping[str, Any]]
    required: Sequence[str]
    quick: bool
    """Whether `prepare` takes no more than a fraction of a millisecond, but for the sizes of arrays."""

    def prepare(self, model: Model, call: Call) -> Job:
        """Check a call.

        Raises:
            InvalidRequest: or one of its subclasses, naming the array or option, what was expected and what came.
        """
        ...

    def example(self, model: Model) -> dict[str, Any]:
        """Make a small JSON request that runs on `model`."""
        ...
