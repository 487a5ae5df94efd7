"""JAX's side of the Jacobian benchmark, as its users write it; runs in JAX's own environment."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from benchmarks._worker import Arrays, Program, serve

Array = jax.Array
Differentiate = Callable[..., Callable[..., Array]]
MODES: Mapping[str, Differentiate] = {"jacfwd": jax.jacfwd, "jacrev": jax.jacrev}


class Weights(NamedTuple):
    """The weights of a recurrent layer, in the shapes of Keras."""

    kernel: Array
    recurrent: Array
    bias: Array


class Way(NamedTuple):
    """How the program is written: in which mode, with the projection before the loop or in it, how far unrolled."""

    mode: Differentiate
    hoisted: bool
    unroll: int


def gru(h: Array, projected: Array, weights: Weights) -> Array:
    """One step of one sample: gates z, r, h; reset after."""
    pz, pr, pn = jnp.split(projected, 3)
    qz, qr, qn = jnp.split(h @ weights.recurrent + weights.bias[1], 3)
    z, r = jax.nn.sigmoid(pz + qz), jax.nn.sigmoid(pr + qr)
    return z * h + (1 - z) * jnp.tanh(pn + r * qn)


def project(x: Array, weights: Weights) -> Array:
    """Return the input's part of a GRU's gates, of one step or of all."""
    return x @ weights.kernel + weights.bias[0]


def sequence(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    """Return the states after each step of one sample."""

    def step(h: Array, given: Array) -> tuple[Array, Array]:
        h = gru(h, given if way.hoisted else project(given, weights), weights)
        return h, h

    return jax.lax.scan(step, h0, project(x, weights) if way.hoisted else x, unroll=way.unroll)[1]


def last(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    """Return the state after the last step of one sample."""

    def step(h: Array, given: Array) -> tuple[Array, None]:
        return gru(h, given if way.hoisted else project(given, weights), weights), None

    return jax.lax.scan(step, h0, project(x, weights) if way.hoisted else x, unroll=way.unroll)[0]


def lstm(state: Array, x: Array, weights: Weights) -> Array:
    """One step of one sample: gates i, f, g, o; the state is (h, c)."""
    h, c = jnp.split(state, 2)
    i, f, g, o = jnp.split(x @ weights.kernel + h @ weights.recurrent + weights.bias, 4)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])


def _full(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    return way.mode(lambda x: sequence(x, h0, weights, way))(x)


def _last_by_input(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    return way.mode(lambda x: last(x, h0, weights, way))(x)


def _window(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    return way.mode(lambda x: sequence(x, h0, weights, way)[100:110])(x)[:, :, 90:110]


def _window_cut(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    start = last(x[:90], h0, weights, way)
    rest = way.mode(lambda part: sequence(part, start, weights, way)[10:])
    return rest(x[90:110])


def _last_by_first(x: Array, h0: Array, weights: Weights, way: Way) -> Array:
    return way.mode(lambda h0: last(x, h0, weights, way))(h0)


def _step(x: Array, state: Array, weights: Weights, way: Way) -> tuple[Array, Array]:
    return way.mode(lambda state, x: lstm(state, x, weights), argnums=(0, 1))(state, x[0])


def _along(x: Array, h0: Array, weights: Weights, way: Way) -> tuple[Array, Array]:
    before = jnp.concatenate([h0[None], sequence(x, h0, weights, way)[:-1]])
    step = way.mode(lambda h, x: gru(h, project(x, weights), weights), argnums=(0, 1))
    return jax.vmap(step)(before, x)


CASES: dict[str, Callable[..., Array | tuple[Array, Array]]] = {
    "a": _full,
    "b": _last_by_input,
    "c": _window,
    "c-cut": _window_cut,
    "d": _last_by_first,
    "e1": _step,
    "e2": _along,
}
"""The derivative of one sample: sequence (or one input), state before it, weights, way."""


def build(variant: str, operator: str, arrays: Arrays) -> Program:
    """Make the jitted program of a case; a variant is such as `jacfwd hoisted unroll=1`."""
    mode, where, unroll = variant.split()
    way = Way(MODES[mode], where == "hoisted", int(unroll.removeprefix("unroll=")))
    weights = Weights(*(jax.device_put(arrays[name]) for name in Weights._fields))
    samples = jax.vmap(lambda x, state, weights: CASES[operator](x, state, weights, way), in_axes=(0, 0, None))
    jitted = jax.jit(samples)

    def program() -> list[np.ndarray]:
        found = jax.block_until_ready(jitted(arrays["x"], arrays["state"], weights))
        return [np.asarray(array) for array in jax.tree.leaves(found)]

    return program


if __name__ == "__main__":
    serve(build, {"jax": jax.__version__, "jaxlib": jaxlib.__version__})
