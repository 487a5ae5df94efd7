"""Programs in two tiers, built on first use, kept while they are used, never more than a bounded number.

The graph program of a call takes any batch and time, so it is traced once. XLA is up to ten times faster for small
batches, but compiles each exact shape for a second or more. So sizes are compiled once they have come several times, on
a thread of its own, and the graph serves until that is done. Rows, and steps where that changes nothing, are padded to
a few sizes, so that requests of many sizes share a compiled program. The two tiers round differently.
"""

import logging
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import numpy as np
import tensorflow as tf
from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

from app.compiled import Compiled, Recent
from app.operators._operator import Shape, Work
from app.operators._rows import Arrays, Group
from models import _tf
from models.model import Model
from pushforward.errors import InvalidArray, Overloaded

_log = logging.getLogger(__name__)

_DECORATION = re.compile(r"\{\{function_node [^}]*\}\} ?|\x1b\[\d*m| for '\{\{node.*")

_HEADINGS = ("Exception encountered", "Graph execution error", "Detected at", "File ", "<stack traces")

Program = Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]

# Layers keep notes while they are traced, so there is one trace at a time.
_TRACING = threading.Lock()


class Programs:
    """The programs of one device, for use by one thread.

    Args:
        compiled: how many compiled programs are kept; 0 compiles none.
        graphs: how many graph programs are kept.
        patience: how often sizes must have come lately before they are compiled.
        background: whether compiling happens on a thread of its own; else the call that gives rise to it waits.
    """

    def __init__(self, compiled: int = 32, graphs: int = 64, patience: int = 1, background: bool = False) -> None:
        # NumPy multiplies on the same cores, and BLAS's own threads would spin where TensorFlow's are to run.
        threadpool_limits(1, "blas")
        self._compiles = compiled > 0
        self._graphs: Recent[Program] = Recent(graphs)
        self.compiled: Compiled[Program] = Compiled(compiled, patience, background)

    @property
    def counts(self) -> dict[str, int]:
        """How many programs are kept, by tier."""
        return {"graph": len(self._graphs), "compiled": len(self.compiled)}

    def close(self) -> None:
        """Compile no more."""
        self.compiled.close()

    def run(self, model: Model, operator: str, work: Work) -> tuple[dict[str, np.ndarray], bool]:
        """Run a work; return its arrays by path and whether a compiled program was used.

        Raises:
            InvalidArray: if the model itself refuses the values, such as a token beyond its vocabulary.
            Overloaded: if there is not enough memory.
        """
        (found,), compiled = self.run_group(model, operator, [work])
        return found, compiled

    def run_group(self, model: Model, operator: str, works: Sequence[Work]) -> tuple[list[dict[str, np.ndarray]], bool]:
        """Run works that share their program, joined to one; return the arrays of each.

        Raises:
            InvalidArray: if the model refuses the values of any.
            Overloaded: if there is not enough memory for all.
        """
        first = works[0]
        group = Group(first.layout, [work.feeds for work in works])
        try:
            found, time, compiled = self._run(model, operator, first, group)
            parts = group.split(found)
            for i, part in enumerate(parts):
                if group.in_doubt(i, time, part):
                    parts[i] = _call(self._graph(model, operator, first), works[i].feeds)
        except tf.errors.InvalidArgumentError as error:
            raise _refusal(model, error.message) from error
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            rows = sum(work.rows for work in works)
            raise Overloaded(
                f"there is not enough memory for {rows} rows; send fewer rows or steps at once", retry_after_s=1
            ) from error
        return parts, compiled

    def warm(self, model: Model, operator: str, work: Work, sizes: Sequence[tuple[int, int]] = ()) -> None:
        """Build and run the graph program of a work, and compile it for sizes in rows and steps."""
        _call(self._graph(model, operator, work), work.feeds)
        group = Group(work.layout, [work.feeds])
        for rows, time in sizes:
            if self._compilable(model, work) and work.layout is not None:
                shapes = group.shapes(rows, time)
                self.compiled.make(_key(model, operator, work, shapes), partial(_compile, model, work, shapes))

    def forget(self, model: Model) -> None:
        """Drop the programs of a model."""
        for programs in (self._graphs, self.compiled):
            programs.drop(lambda key: key[:2] == (model.name, model.version))

    def _run(self, model: Model, operator: str, work: Work, group: Group) -> tuple[dict[str, np.ndarray], int, bool]:
        """Run a group by a compiled program, if there is one for its sizes or somewhat larger ones, else by the graph.

        Returns:
            What came out, how many steps it was padded to, and whether it was compiled.
        """
        if self._compilable(model, work):
            shapes = {sizes: group.shapes(*sizes) for sizes in group.sizes()}
            keys = {_key(model, operator, work, found): sizes for sizes, found in shapes.items()}
            found = self.compiled.find(keys) or self.compiled.wish(
                {key: partial(_compile, model, work, shapes[sizes]) for key, sizes in keys.items()}
            )
            if found is not None:
                key, program = found
                return _call(program, group.feeds(*keys[key])), keys[key][1], True
        return _call(self._graph(model, operator, work), group.feeds(group.rows, group.time)), group.time, False

    def _compilable(self, model: Model, work: Work) -> bool:
        # XLA takes minutes for a loop that is written out, and reads a token beyond the vocabulary as the last.
        return (
            self._compiles
            and work.compile
            and work.strategy == "scan"
            and all(a.differentiable for a in model.signature.inputs)
        )

    def _graph(self, model: Model, operator: str, work: Work) -> Program:
        key = _key(model, operator, work, _shapes(work.feeds) if work.exact else work.shapes)
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


def _compile(model: Model, work: Work, shapes: Mapping[str, tuple[int, ...]]) -> Program | None:
    """Compile a program for these very shapes, and run it once on zeros: only then it is compiled."""
    try:
        program = _trace(work, shapes, jit=True)
        _call(program, {path: np.zeros(shapes[path], array.dtype) for path, array in work.feeds.items()})
    except (ValueError, tf.errors.OpError) as error:
        # Sizes that the model refuses, or an operation that XLA does not know: the graph tells which.
        _log.info("model %s: no compiled program: %s", model.name, error)
        return None
    return program


def _key(model: Model, operator: str, work: Work, shapes: Mapping[str, Shape]) -> Hashable:
    """Return what a program depends on: the model, what it computes, and shapes, where None may be of any size."""
    arrays = tuple((path, shapes[path], array.dtype.str) for path, array in work.feeds.items())
    return (model.name, model.version, operator, work.key, arrays)


def _shapes(feeds: Arrays) -> dict[str, Shape]:
    return {path: array.shape for path, array in feeds.items()}


def _call(program: Program, feeds: Arrays) -> dict[str, np.ndarray]:
    found = program({path: tf.constant(array) for path, array in feeds.items()})
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


def use_threads(count: int) -> None:
    """Let one operation on a CPU use so many threads, if TensorFlow has not begun yet: afterwards it can't be changed.

    With several, XLA and Eigen hand parts of each step of a loop to others, which takes longer than a small step: the
    JVP of a GRU of 32 units takes twice the time with two threads, as long at 128 units and 64 rows, at 512 less.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(count)
    except RuntimeError:
        count = tf.config.threading.get_intra_op_parallelism_threads()
        _log.warning("TensorFlow runs already, so its own setting of threads stays")
    _log.info("threads of one operation on a CPU: %s", count or "as many as cores")


def device() -> str:
    """Name the device that programs run on: the first GPU, else the CPU."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return devices[0].name.removeprefix("/device:")


def _trace(work: Work, shapes: Mapping[str, Shape], *, jit: bool) -> Program:
    specs = {path: tf.TensorSpec(shapes[path], a.dtype, path) for path, a in work.feeds.items()}
    with _TRACING:
        return _tf.direct_call(tf.function(work.build(), autograph=False, jit_compile=jit).get_concrete_function(specs))
