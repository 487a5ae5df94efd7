"""Compiled programs: built on first use, kept while they are used, never more than a bounded number.

The graph program of a call takes any batch and time, so it is traced once; XLA is up to ten times faster for small
batches but compiles, for a second or more, each exact shape. So the first few shapes of each program are compiled and
all others share the graph. Which of the two serves a shape is settled when it first comes: the two round differently,
and equal requests are to get equal bits.
"""

import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import numpy as np
import tensorflow as tf
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from app.operators._operator import Shape, Work
from models import _tf
from models.model import Model
from pushforward.errors import InvalidArray

_log = logging.getLogger(__name__)

_DECORATION = re.compile(r"\{\{function_node [^}]*\}\} ?|\x1b\[\d*m| for '\{\{node.*")

_HEADINGS = ("Exception encountered", "Graph execution error", "Detected at", "File ", "<stack traces")

V = TypeVar("V")
Program = Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]


class Recent(Generic[V]):
    """A mapping that keeps the most recently used entries only."""

    def __init__(self, limit: int) -> None:
        self._limit, self._entries = limit, OrderedDict[Hashable, V]()

    def get(self, key: Hashable) -> V | None:
        """Return an entry and mark it as used."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Hashable, value: V) -> None:
        """Keep an entry; the one unused for longest goes if there are too many."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


class Programs:
    """The programs of one device, for use by one thread.

    Args:
        limit: how many graph programs, and as many compiled ones, are kept.
        compiled_shapes: how many shapes of one program are compiled.
    """

    def __init__(self, limit: int = 64, compiled_shapes: int = 8) -> None:
        # NumPy multiplies on the same cores, and BLAS's own threads would spin where TensorFlow's are to run.
        threadpool_limits(1, "blas")
        self._limit, self._compiled_shapes = limit, compiled_shapes
        self._graphs: Recent[Program] = Recent(limit)
        self._compiled: dict[Hashable, Program] = {}
        self._counts: Counter[Hashable] = Counter()
        self._settled: Recent[bool] = Recent(64 * limit)

    def run(self, model: Model, operator: str, work: Work) -> tuple[dict[str, np.ndarray], bool]:
        """Run a checked call; return its arrays by path and whether an XLA program was used.

        Raises:
            InvalidArray: if the model itself refuses the values, such as a token beyond its vocabulary.
        """
        exact, free = _keys(model, operator, work)
        feeds = {path: tf.constant(array) for path, array in work.feeds.items()}
        if self._is_compiled(exact, free, model, work):
            try:
                return _arrays(self._compile(exact, work)(feeds)), True
            except (ValueError, tf.errors.OpError) as error:
                # Sizes that the model refuses, or an operation that XLA does not know: the graph tells which.
                _log.info("model %s: no compiled program for %s: %s", model.name, operator, error)
                self._compiled.pop(exact, None)
                self._counts[free] -= 1
                self._settled.put(exact, False)
        try:
            return _arrays(self._graph(exact, free, model, work)(feeds)), False
        except tf.errors.InvalidArgumentError as error:
            raise _refusal(model, error.message) from error

    def warm(self, model: Model, operator: str, work: Work) -> None:
        """Build and run the graph program of a call, without settling anything for its shape."""
        exact, free = _keys(model, operator, work)
        self._graph(exact, free, model, work)({path: tf.convert_to_tensor(a) for path, a in work.feeds.items()})

    def _is_compiled(self, exact: Hashable, free: Hashable, model: Model, work: Work) -> bool:
        settled = exact in self._compiled or self._settled.get(exact)
        if settled is None:
            settled = (
                # XLA takes minutes for a loop that is written out, and reads a token beyond the vocabulary as the last.
                work.compile
                and work.strategy == "scan"
                and all(a.differentiable for a in model.signature.inputs)
                and self._counts[free] < self._compiled_shapes
                and len(self._compiled) < self._limit
            )
            self._counts[free] += settled
            self._settled.put(exact, settled)
        return settled

    def _compile(self, key: Hashable, work: Work) -> Program:
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = _trace(
                work, {path: array.shape for path, array in work.feeds.items()}, jit=True
            )
        return found

    def _graph(self, exact: Hashable, free: Hashable, model: Model, work: Work) -> Program:
        key = exact if work.exact else free
        found = self._graphs.get(key)
        if found is None:
            try:
                found = _trace(work, work.shapes, jit=False)
            except ValueError as error:
                if work.strategy != "unrolled":
                    raise
                # A program for these very sizes that can't even be written: an ordinary one would refuse them, too.
                raise _refusal(model, str(error)) from error
            self._graphs.put(key, found)
        return found


def _keys(model: Model, operator: str, work: Work) -> tuple[Hashable, Hashable]:
    """Return what a program for these very shapes, and one for any batch and time, depend on."""
    kind = (model.name, model.version, operator, work.key)
    exact = tuple((path, array.shape, array.dtype.str) for path, array in work.feeds.items())
    free = tuple((path, work.shapes[path], array.dtype.str) for path, array in work.feeds.items())
    return (*kind, exact), (*kind, free)


def _arrays(found: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    # Views of the tensors' memory, read-only; `numpy()` copies.
    return {path: np.asarray(memoryview(tensor)) for path, tensor in found.items()}


def _refusal(model: Model, message: str) -> InvalidArray:
    _log.info("model %s refused a call: %s", model.name, message)
    # Around the sentence that says what is wrong stand headings, nodes' names and places in files of the server. An
    # operation's sentence comes last, just before its node; that of a layer as it is called comes first.
    before, node, _ = message.partition("[[{{node")
    lines = [line.strip() for line in _DECORATION.sub("", before).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_HEADINGS)] or ["no reason given"]
    reason = lines[-1 if node else 0]
    return InvalidArray(f"model {model.name!r} can't take these values or sizes: {reason[:300]}", path="inputs")


def device() -> str:
    """Name the device that programs run on: the first GPU, else the CPU."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return devices[0].name.removeprefix("/device:")


def _trace(work: Work, shapes: Mapping[str, Shape], *, jit: bool) -> Program:
    specs = {path: tf.TensorSpec(shapes[path], a.dtype, path) for path, a in work.feeds.items()}
    return _tf.direct_call(tf.function(work.build(), autograph=False, jit_compile=jit).get_concrete_function(specs))
