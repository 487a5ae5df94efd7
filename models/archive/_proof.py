"""The proof before a model goes live: it is compiled for a small shape, and its JVP and VJP are adjoint."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from models.gradcheck import TOLERANCES, Arrays, Rule, adjoint_error
from models.model import Model
from models.signature import Array
from pushforward.errors import UnsafeModel

_log = logging.getLogger(__name__)

# Convolutions and pools need some steps; most models are done with few.
_STEPS = (3, 40, 500)
_ROWS, _SIZE = 2, 8
_SCALE = 0.5

Tensors = dict[str, tf.Tensor]


@dataclass(frozen=True)
class Report:
    """What the proof found.

    Attributes:
        adjoint_error: |<u, J v> - <J^T u, v>| relative to the magnitudes, in one random direction.
        parameters: how many weights the model has.
        compiled: whether XLA could compile it; if not, it is served by TensorFlow's graphs.
    """

    adjoint_error: float
    parameters: int
    compiled: bool


def prove(model: Model) -> Report:
    """Compile a JVP and a VJP with respect to inputs and parameters, and compare them.

    Raises:
        UnsafeModel: if they can't be computed, are not finite, or do not belong together.
    """
    signature = model.signature
    moving = [a.name for a in (*signature.inputs, *signature.parameters) if a.differentiable]
    outputs = [a.name for a in signature.outputs if a.differentiable]
    parameters = sum(math.prod(n or 0 for n in a.shape) for a in signature.parameters)
    if not moving or not outputs:
        return Report(0.0, parameters, compiled=False)
    compiled, error = _first(model, moving, outputs)
    most = TOLERANCES[signature.dtype].adjoint
    if not error <= most:
        raise UnsafeModel(
            f"its JVP and VJP do not belong together: the adjoint identity is off by {error:.2g}, at most {most:g} is "
            "rounding; report the model, and register it without the layers that are not Keras's own"
        )
    return Report(error, parameters, compiled)


def _first(model: Model, moving: Sequence[str], outputs: Sequence[str]) -> tuple[bool, float]:
    """Return the adjoint error in the first way that the model can be computed, and whether it was compiled."""
    reason = ""
    for steps in _STEPS:
        rng = np.random.default_rng(0)
        inputs = {a.name: _draw(a, steps, rng) for a in model.signature.inputs}
        point = {n: inputs[n] if n in inputs else model.default(n, inputs).numpy() for n in (*inputs, *moving)}
        for compiled in (True, False):
            try:
                return compiled, _adjoint_error(model, point, moving, outputs, compiled)
            except (tf.errors.OpError, ValueError) as failure:
                reason = str(failure)
                _log.info("%s in %d steps, compiled %s: %s", model.name, steps, compiled, reason)
    lines = [line for line in reason.splitlines() if line and not line.startswith("Exception encountered")]
    raise UnsafeModel(f"it can't be computed in {' or '.join(map(str, _STEPS))} steps: {' '.join(lines)[:300]}")


def _adjoint_error(
    model: Model, point: dict[str, np.ndarray], moving: Sequence[str], outputs: Sequence[str], jit: bool
) -> float:
    @tf.function(autograph=False, jit_compile=jit)
    def push(arrays: Tensors, tangents: Tensors) -> Tensors:
        primals = [tf.identity(arrays[n]) for n in moving]
        with tf.autodiff.ForwardAccumulator(primals, [tangents[n] for n in moving]) as accumulator:
            found = model.run({**arrays, **dict(zip(moving, primals, strict=True))}, outputs)
        return {n: accumulator.jvp(t, "zero") for n, t in found.items()}

    # The forward one is compiled alone: the other is made of the same loops, and takes as long again.
    @tf.function(autograph=False)
    def pull(arrays: Tensors, cotangents: Tensors) -> Tensors:
        primals = [tf.identity(arrays[n]) for n in moving]
        with tf.GradientTape() as tape:
            tape.watch(primals)
            found = model.run({**arrays, **dict(zip(moving, primals, strict=True))}, outputs)
        found = tape.gradient(found, primals, cotangents, tf.UnconnectedGradients.ZERO)
        return dict(zip(moving, (tf.convert_to_tensor(t) for t in found), strict=True))

    return adjoint_error(_plain(push), _plain(pull), point, wrt=moving)


def _plain(rule: Callable[[Tensors, Tensors], Tensors]) -> Rule:
    return lambda arrays, along: {n: t.numpy() for n, t in rule(_tensors(arrays), _tensors(along)).items()}


def _tensors(arrays: Arrays) -> Tensors:
    return {n: tf.constant(a) for n, a in arrays.items()}


def _draw(array: Array, steps: int, rng: np.random.Generator) -> np.ndarray:
    free = {"batch": _ROWS, "time": steps}
    shape = [n if n is not None else free.get(axis, _SIZE) for n, axis in zip(array.shape, array.axes, strict=True)]
    if not array.differentiable:
        return np.zeros(shape, array.dtype)
    return (_SCALE * rng.standard_normal(shape)).astype(array.dtype)
