"""JAX's side of the kernel benchmark; runs in JAX's own environment, where there is no TensorFlow."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib

from benchmarks._worker import Arrays, Program, serve

Array = jax.Array


def gru(x: Array, h0: Array, kernel: Array, recurrent: Array, bias: Array, *, unroll: int) -> Array:
    """One Keras GRU layer (gates z, r, h; reset after): x (batch, time, features) -> (batch, time, units)."""
    projected = x.swapaxes(0, 1) @ kernel + bias[0]

    def step(h: Array, p: Array) -> tuple[Array, Array]:
        pz, pr, pn = jnp.split(p, 3, axis=-1)
        qz, qr, qn = jnp.split(h @ recurrent + bias[1], 3, axis=-1)
        z, r = jax.nn.sigmoid(pz + qz), jax.nn.sigmoid(pr + qr)
        h = z * h + (1 - z) * jnp.tanh(pn + r * qn)
        return h, h

    _, ys = jax.lax.scan(step, h0, projected, unroll=unroll)
    return ys.swapaxes(0, 1)


def jvp(layer: Callable[..., Array], x: Array, dx: Array, *rest: Array) -> tuple[Array, ...]:
    """Return outputs and tangents for a tangent of the sequence."""
    return jax.jvp(lambda x: layer(x, *rest), (x,), (dx,))


def vjp(layer: Callable[..., Array], cotangent: Array, *primals: Array) -> tuple[Array, ...]:
    """Return outputs and the cotangents of sequence, initial state and all three weights."""
    y, pullback = jax.vjp(layer, *primals)
    return (y, *pullback(cotangent))


ARGUMENTS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "jvp": (jvp, ("x", "dx", "h0", "kernel", "recurrent", "bias")),
    "vjp": (vjp, ("dy", "x", "h0", "kernel", "recurrent", "bias")),
}


def build(variant: str, operator: str, arrays: Arrays) -> Program:
    """Make the jitted program; a variant is `unroll=n`."""
    function, names = ARGUMENTS[operator]
    layer = functools.partial(gru, unroll=int(variant.removeprefix("unroll=")))
    jitted = jax.jit(functools.partial(function, layer))
    arguments = [jax.device_put(arrays[name]) for name in names]
    return lambda: jax.block_until_ready(jitted(*arguments))


if __name__ == "__main__":
    serve(build, {"jax": jax.__version__, "jaxlib": jaxlib.__version__})
