"""The peer's side of the load benchmark: a Tesseract, as its users write one in JAX; runs in its own environment."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import BaseModel
from tesseract_core.runtime import Array, Differentiable, Float32

from benchmarks._gru import UNITS, WEIGHTS
from benchmarks._jax_kernels import gru

UNROLL = 4
"""The loop is unrolled as far as pays off for these sizes."""


class InputSchema(BaseModel):
    """Sequences (batch, time, features)."""

    x: Differentiable[Array[(None, None, 4), Float32]]


class OutputSchema(BaseModel):
    """The state after every step, and after the last one."""

    sequence: Differentiable[Array[(None, None, UNITS), Float32]]
    last: Differentiable[Array[(None, UNITS), Float32]]


def layer(x: jax.Array) -> dict[str, jax.Array]:
    """Return the outputs; what nobody uses of them is not computed in a jitted program."""
    states = gru(x, jnp.zeros((len(x), UNITS), x.dtype), **WEIGHTS, unroll=UNROLL)
    return {"sequence": states, "last": states[:, -1]}


def _selected(x: jax.Array, names: tuple[str, ...]) -> dict[str, jax.Array]:
    outputs = layer(x)
    return {name: outputs[name] for name in names}


_apply = jax.jit(layer)


@functools.partial(jax.jit, static_argnames="names")
def push(x: jax.Array, dx: jax.Array, names: tuple[str, ...]) -> dict[str, jax.Array]:
    """Return the tangents of the outputs named."""
    return jax.jvp(lambda x: _selected(x, names), (x,), (dx,))[1]


@functools.partial(jax.jit, static_argnames="names")
def pull(x: jax.Array, cotangents: dict[str, jax.Array], names: tuple[str, ...]) -> jax.Array:
    """Return the cotangent of the sequences."""
    (cotangent,) = jax.vjp(lambda x: _selected(x, names), x)[1](cotangents)
    return cotangent


def apply(inputs: InputSchema) -> OutputSchema:
    """Evaluate the layer."""
    return OutputSchema(**_apply(inputs.x))


def jacobian_vector_product(
    inputs: InputSchema, jvp_inputs: set[str], jvp_outputs: set[str], tangent_vector: dict[str, Any]
) -> dict[str, jax.Array]:
    """Push a tangent forward."""
    return push(inputs.x, tangent_vector["x"], tuple(sorted(jvp_outputs)))


def vector_jacobian_product(
    inputs: InputSchema, vjp_inputs: set[str], vjp_outputs: set[str], cotangent_vector: dict[str, Any]
) -> dict[str, jax.Array]:
    """Pull cotangents back."""
    return {"x": pull(inputs.x, cotangent_vector, tuple(sorted(vjp_outputs)))}
