"""What an operator is: it checks a call against a model's signature and says which program answers it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from app.calls import Call
from models.model import Model

Tensors = dict[str, tf.Tensor]


@dataclass(frozen=True)
class Work:
    """A checked call, ready to run.

    Attributes:
        key: whatever the program depends on besides the model and the arrays' shapes and dtypes.
        build: makes the program, a function of tensors by path (`inputs.x`) to tensors by path (`outputs.y`).
        feeds: the arrays by path, in the model's dtypes.
        rows: how many sequences with one direction each.
        strategy: the strategy that was picked.
        casts: notes on arrays that were converted.
        exact: the program is written for these very shapes (an unrolled loop).
    """

    key: Hashable
    build: Callable[[], Callable[[Tensors], Tensors]]
    feeds: Mapping[str, np.ndarray]
    rows: int
    strategy: str
    casts: Sequence[str]
    exact: bool


class Operator(Protocol):
    """One route of the native face; see the modules beside this one."""

    name: str
    summary: str
    description: str
    request_fields: Sequence[str]
    response_fields: Sequence[str]
    options: Mapping[str, Mapping[str, Any]]
    required: Sequence[str]

    def prepare(self, model: Model, call: Call) -> Work:
        """Check a call.

        Raises:
            InvalidRequest: or one of its subclasses, naming the array or option, what was expected and what came.
        """
        ...

    def example(self, model: Model) -> dict[str, Any]:
        """Make a small JSON request that runs on `model`."""
        ...
