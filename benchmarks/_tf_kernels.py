"""TensorFlow's side of the kernel benchmark: our layer, and what stock Keras offers for the same question."""

import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import tensorflow as tf

from benchmarks._worker import Arrays, Program, serve

Layer = Callable[..., tf.Tensor]
Kernel = Callable[..., tuple[tf.Tensor, ...]]


def jvp(layer: Layer, x: tf.Tensor, dx: tf.Tensor, h0: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return outputs and tangents for a tangent of the sequence, by forward mode."""
    with tf.autodiff.ForwardAccumulator(x, dx) as accumulator:
        y = layer(x, initial_state=h0)
    return y, accumulator.jvp(y)


def double_vjp(layer: Layer, x: tf.Tensor, dx: tf.Tensor, h0: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return the same as `jvp` from reverse mode alone: the pullback is linear, and its pullback is the pushforward."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = layer(x, initial_state=h0)
            dummy = tf.zeros_like(y)
            outer.watch(dummy)
        pulled = inner.gradient(y, x, output_gradients=dummy)
    return y, outer.gradient(pulled, dummy, output_gradients=dx)


def vjp(layer: keras.layers.Layer, x: tf.Tensor, dy: tf.Tensor, h0: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return outputs and the cotangents of sequence, initial state and all three weights."""
    with tf.GradientTape() as tape:
        tape.watch([x, h0])
        y = layer(x, initial_state=h0)
    sources = [x, h0, *(weight.value for weight in layer.trainable_weights)]
    return (y, *tape.gradient(y, sources, output_gradients=dy))


def _ours(units: int) -> keras.layers.Layer:
    try:
        from models import GRU
    except ImportError as error:
        raise RuntimeError(f"models.GRU can't be imported ({error})") from error
    return GRU(units, return_sequences=True)


def _stock(units: int, **options: bool) -> keras.layers.Layer:
    return keras.layers.GRU(units, return_sequences=True, **options)


def _unrolled(units: int) -> keras.layers.Layer:
    return _stock(units, unroll=True)


def _graph(function: Kernel, arguments: list[tf.Tensor]) -> Kernel:
    return tf.function(function, autograph=False).get_concrete_function(*arguments)


def _xla(function: Kernel, arguments: list[tf.Tensor]) -> Kernel:
    return tf.function(function, autograph=False, jit_compile=True).get_concrete_function(*arguments)


def _eager(function: Kernel, arguments: list[tf.Tensor]) -> Kernel:
    return function


Execute = Callable[[Kernel, list[tf.Tensor]], Kernel]
VARIANTS: dict[str, dict[str, tuple[Callable[[int], keras.layers.Layer], Kernel, Execute]]] = {
    "jvp": {
        "ours, XLA": (_ours, jvp, _xla),
        "ours, graph": (_ours, jvp, _graph),
        "stock double VJP, XLA": (_stock, double_vjp, _xla),
        "stock double VJP, graph": (_stock, double_vjp, _graph),
        "stock unrolled, graph": (_unrolled, jvp, _graph),
        "stock eager": (_stock, jvp, _eager),
    },
    "vjp": {
        "ours, XLA": (_ours, vjp, _xla),
        "ours, graph": (_ours, vjp, _graph),
        "stock, XLA": (_stock, vjp, _xla),
        "stock, graph": (_stock, vjp, _graph),
    },
}
"""What is measured, by operator: which layer, which derivative, how it is executed."""


def build(variant: str, operator: str, arrays: Arrays) -> Program:
    """Make the layer, give it the weights, and bind the derivative to it."""
    make, kernel, execute = VARIANTS[operator][variant]
    layer = make(arrays["h0"].shape[-1])
    layer.build(arrays["x"].shape)
    layer.set_weights([arrays["kernel"], arrays["recurrent"], arrays["bias"]])
    direction = "dx" if operator == "jvp" else "dy"
    arguments = [tf.constant(arrays[name]) for name in ("x", direction, "h0")]
    # A concrete function is what `jax.jit` caches per shape: calling it skips the dispatch on the arguments.
    function = execute(lambda *tensors: kernel(layer, *tensors), arguments)
    # No wait here: on the CPU a call of TensorFlow returns when its outputs are there.
    return lambda: function(*arguments)


if __name__ == "__main__":
    serve(build, {"tensorflow": tf.__version__, "keras": keras.__version__})
