"""Values and slopes of activations, which users choose freely."""

from collections.abc import Callable

import keras
import tensorflow as tf

from models import _tf

Activation = Callable[[tf.Tensor], tf.Tensor]


def value_and_slope(activation: Activation, a: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Evaluate an elementwise activation and its derivative at `a`."""
    if activation in _TANH:
        y = tf.tanh(a)
        return y, 1 - y * y
    if activation in _SIGMOID:
        y = tf.sigmoid(a)
        return y, y * (1 - y)
    if activation in _RELU:
        return tf.nn.relu(a), tf.cast(a > 0, a.dtype)
    if activation is keras.activations.linear:
        return a, tf.ones_like(a)
    if activation in _SOFTSIGN:  # TensorFlow has no second derivative of it
        inverse = 1 / (1 + tf.abs(a))
        return a * inverse, inverse * inverse
    with _tf.fresh_forward_state(), tf.GradientTape() as tape:
        tape.watch(a)
        y = activation(a)
        return y, _tf.shaped(tape.gradient(y, a, unconnected_gradients="zero"), a.shape)


def is_known(activation: Activation) -> bool:
    """Tell whether an activation is one of those listed here, which can't change between calls."""
    return activation in _KNOWN


def is_elementwise(activation: Activation, units: int) -> bool:
    """Tell whether an activation surely acts on each unit alone (softmax and sparsemax do not).

    It is read off the operations it consists of, since no number of sample points would prove it.
    """
    if is_known(activation):
        return True
    if isinstance(activation, keras.layers.Layer):
        return False
    spec = tf.TensorSpec((None, units), tf.float32)
    try:
        graph = tf.function(activation, autograph=False).get_concrete_function(spec).graph
    except Exception:  # one with a dtype or a width of its own: autodiff will call it with what the cell has
        return False
    operations = graph.get_operations()
    constants = [op.outputs[0] for op in operations if op.type == "Const"]
    return (
        len(graph.outputs) == 1
        and not graph.captures
        and all(t.shape.rank == 0 for t in constants)
        and all(op.type in _ELEMENTWISE for op in operations)
    )


_ELEMENTWISE = set(
    (
        "Placeholder Const Identity IdentityN Cast Tanh Sigmoid Relu Relu6 LeakyRelu Elu Selu Softplus "
        "Softsign Exp Expm1 Log Log1p Sin Cos Sinh Cosh Asinh Atan Erf Erfc Neg Abs Sign Square Sqrt Rsqrt "
        "Reciprocal Inv AddV2 Add Sub Mul RealDiv Div Maximum Minimum Pow SquaredDifference SelectV2 Greater "
        "GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot ZerosLike OnesLike ClipByValue NoOp "
        "StopGradient "
    ).split()
)
_TANH = {keras.activations.tanh, tf.nn.tanh, keras.ops.tanh}
_SIGMOID = {keras.activations.sigmoid, tf.nn.sigmoid, keras.ops.sigmoid}
_RELU = {keras.activations.relu, tf.nn.relu, keras.ops.relu}
_SOFTSIGN = {keras.activations.softsign, tf.nn.softsign, keras.ops.softsign}
_KNOWN = _TANH | _SIGMOID | _RELU | _SOFTSIGN | {keras.activations.linear}
