"""The waist: what every protocol asks and every operator answers, free of HTTP and of TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Call:
    """One question: `arrays` by field and name (`arrays["inputs"]["x"]`), `options` such as `outputs` or `strategy`."""

    model: str
    operator: str
    arrays: Arrays
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_s: float | None = None


@dataclass(frozen=True)
class Answer:
    """What came out, by field and name; `info` tells how; `extra` holds further members of the response."""

    model: str
    version: int
    arrays: Arrays
    info: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
