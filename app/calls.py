"""The waist: what every protocol asks and every operator answers, free of HTTP and of TensorFlow."""

import math
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Call:
    """One question: `arrays` by field and name (`arrays["inputs"]["x"]`), `options` such as `outputs` or `strategy`.

    `lengths`, if the rows differ, is how many steps of each are its own; the rest of its time axis is padding.
    """

    model: str
    operator: str
    arrays: Arrays
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_s: float | None = None
    lengths: np.ndarray | None = None


@dataclass(frozen=True)
class Streamed:
    """One array of an answer that is computed while it is sent.

    Whoever takes it closes `blocks`, whether all of them were asked for or none.

    Attributes:
        field: its path in the answer, such as `jacobian`.
        shape: of the whole array, known before any of its numbers is.
        dtype: likewise.
        blocks: the numbers in row-major order, in C-contiguous pieces that together are exactly `shape`. Nothing is
            computed or held before the first one is asked for: closing a generator that never ran runs none of it.
    """

    field: str
    shape: tuple[int, ...]
    dtype: str
    blocks: AsyncGenerator[np.ndarray, None]

    @property
    def nbytes(self) -> int:
        """The size of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Answer:
    """What came out, by field and name; `info` tells how; `extra` holds further members of the response."""

    model: str
    version: int
    arrays: Arrays
    info: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    streamed: Streamed | None = None
