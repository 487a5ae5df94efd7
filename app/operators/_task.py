"""What is to be planned: the two sides of a Jacobian, the sizes of a model, and how much memory there is."""

from dataclasses import dataclass
from math import prod

import numpy as np

from app.operators._sides import Side


@dataclass(frozen=True)
class Task:
    """What is to be planned.

    Attributes:
        of: the side that is differentiated.
        wrt: the side with respect to which.
        batch: how many samples.
        length: how many time steps; 1 if there is no such axis.
        causal: whether step t knows nothing of what comes later.
        stepwise: whether the model can start anywhere, given its states.
        initial: whether `wrt` is of the states before the first step.
        width: numbers that a pass holds per step and sample.
        numbers: how many numbers the states have, side by side; 0 if products of matrices can't stand for their steps.
        flops: floating-point operations per pass, step and sample.
        dtype: of the answer.
        block_bytes: what a block may take.
        chunk_bytes: what a chunk may hold while it is computed.
    """

    of: Side
    wrt: Side
    batch: int
    length: int
    causal: bool
    stepwise: bool
    initial: bool
    width: int
    numbers: int
    flops: int
    dtype: str
    block_bytes: int
    chunk_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The Jacobian's shape."""
        return (self.batch, *self.of.selection.shape, *self.wrt.selection.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per number."""
        return np.dtype(self.dtype).itemsize

    @property
    def block_rows(self) -> int:
        """How many rows a block of one sample holds at most."""
        return min(self.of.count, max(1, self.block_bytes // (self.wrt.count * self.itemsize)))

    @property
    def nbytes(self) -> int:
        """The Jacobian's size."""
        return prod(self.shape) * self.itemsize
