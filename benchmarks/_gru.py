"""What both servers of the load benchmark are asked: a GRU(32), its weights and two workloads; nothing but NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.kernels import arrays

UNITS = 32
_GIVEN = arrays((8, 64, 4, UNITS))
WEIGHTS = {name: _GIVEN[name] for name in ("kernel", "recurrent", "bias")}
"""In Keras's order: kernel, recurrent kernel and the two biases of a GRU that resets after."""


@dataclass(frozen=True)
class Workload:
    """One request, sent again and again: the JVP of the first `rows` sequences, float32, from a state of zeros.

    Attributes:
        title: what is computed.
        rows: sequences in a request, of 64 steps and 4 features.
        last: whether the output is the last step only.
        minimum: how many times Tesseract's requests per second are required, by connections.
    """

    title: str
    rows: int
    last: bool
    minimum: Mapping[int, float]

    def arrays(self, requests: int = 1) -> dict[str, np.ndarray]:
        """Return the sequences and their tangents, those of several requests as rows of one array."""
        return {name: np.tile(_GIVEN[name][: self.rows], (requests, 1, 1)) for name in ("x", "dx")}


WORKLOADS = {
    "sequence": Workload("JVP of (8, 64, 4), whole sequence out", 8, False, {1: 1.5, 32: 3, 128: 3}),
    "last": Workload("JVP of (1, 64, 4), last step out", 1, True, {1: 2, 32: 8, 128: 8}),
}
