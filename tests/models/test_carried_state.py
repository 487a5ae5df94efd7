"""A sequence fed in halves: gradients are right only if the state is carried inside what is differentiated.

Cases 0 to 5 of a public example about truncated backpropagation, where the layers are SimpleRNN(4) and the loss is the
mean squared error against the input. Its `model_rnn`, one loop over a whole model, is `models.scan` here.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models.gradcheck import compare

CLOSE = 1e-12
L = keras.layers
HALF = tf.constant(np.random.default_rng(1).normal(size=(2, 3, 4)))
WHOLE = tf.concat([HALF, HALF], 1)


def layer(library=models, seed=3, **options):
    made = library.SimpleRNN(4, return_sequences=True, dtype="float64", **options)
    made.build((2, 6, 4))
    rng = np.random.default_rng(seed)
    made.set_weights([rng.normal(size=w.shape) * 0.5 for w in made.get_weights()])
    return made


def cell_of(made):
    """A step of a model of its own: one cell, the layer's weights."""
    cell = made.cell

    def step(weights, carry, x):
        kernel, recurrent, bias = weights
        mapping = [(cell.kernel, kernel), (cell.recurrent_kernel, recurrent), (cell.bias, bias)]
        with keras.StatelessScope(state_mapping=mapping):
            output, new = cell(x[0], carry)
        return list(new), [output]

    return step


def looped(made, x, start=None):
    weights = [tf.convert_to_tensor(w) for w in (made.cell.kernel, made.cell.recurrent_kernel, made.cell.bias)]
    start = tf.zeros((2, 4), tf.float64) if start is None else start
    final, ys = models.scan(cell_of(made), weights, [start], [tf.transpose(x, [1, 0, 2])])
    return tf.transpose(ys[0], [1, 0, 2]), final[0]


def report(run, *layers):
    """Outputs, loss and the gradients of all weights."""
    with tf.GradientTape() as tape:
        outputs = run()
        loss = tf.reduce_mean((outputs - WHOLE) ** 2)
    weights = [w.value for made in layers for w in made.trainable_variables]
    gradients = tape.gradient(loss, weights)
    return {"outputs": outputs, "loss": loss, **{f"gradient {i}": g for i, g in enumerate(gradients)}}


def numpy(found):
    return {name: t.numpy() for name, t in found.items()}


def values(found):
    return {name: found[name] for name in ("outputs", "loss")}


def gradients(found):
    return {name: g for name, g in found.items() if name.startswith("gradient")}


@pytest.fixture(scope="module")
def full():
    """Case 0, by stock Keras."""
    made = layer(keras.layers)
    return numpy(report(lambda: made(WHOLE), made))


@pytest.fixture(scope="module")
def full_stacked():
    """Case 4, by stock Keras."""
    first, second = layer(keras.layers), layer(keras.layers, seed=4)
    return numpy(report(lambda: second(first(WHOLE)), first, second))


def test_case_0_full_pass(full):
    made = layer()
    assert compare(numpy(report(lambda: made(WHOLE), made)), full) <= CLOSE


def test_case_1_stateful_halves_have_the_outputs_and_the_loss_but_not_the_gradients(full):
    """The state enters the second half as a constant: Keras's semantics, which the drop-in keeps."""
    made = layer(stateful=True)

    def run():
        made.reset_states()
        return tf.concat([made(HALF), made(HALF)], 1)

    stock = layer(keras.layers, stateful=True)

    def run_stock():
        stock.reset_states()
        return tf.concat([stock(HALF), stock(HALF)], 1)

    found = numpy(report(run, made))
    assert compare(values(found), values(full)) <= CLOSE
    assert all(compare({n: g}, {n: full[n]}) > 1e-3 for n, g in gradients(found).items())
    assert compare(found, numpy(report(run_stock, stock))) <= CLOSE


def test_case_2_a_loop_over_stateful_halves_is_case_1(full):
    """A state stored in a variable is cut from the tape however the halves are fed."""
    made = layer(stateful=True)

    def run():
        # The loop carries the state, and stops the gradient where a variable would.
        def half(weights, carry, x):
            mapping = list(zip((made.cell.kernel, made.cell.recurrent_kernel, made.cell.bias), weights, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                state, rows = tf.stop_gradient(carry[0]), []
                for t in range(3):
                    output, (state,) = made.cell(x[0][:, t], [state])
                    rows.append(output)
            return [state], [tf.stack(rows, 1)]

        weights = [w.value for w in made.trainable_variables]
        start = tf.zeros((2, 4), tf.float64)
        _, ys = models.scan(half, [tf.identity(w) for w in weights], [start], [tf.stack([HALF, HALF])])
        return tf.concat(tf.unstack(ys[0]), 1)

    found = numpy(report(run, made))

    def detached():
        made.reset_states()
        return tf.concat([made(HALF), made(HALF)], 1)

    assert compare(found, numpy(report(detached, made))) <= CLOSE
    assert compare(gradients(found), gradients(full)) > 1e-3


def test_case_3_one_loop_that_carries_the_state(full):
    made = layer()
    assert compare(numpy(report(lambda: looped(made, WHOLE)[0], made)), full) <= CLOSE


def test_halves_with_the_state_carried_are_the_full_pass(full):
    made = layer()

    def run():
        first, state = looped(made, HALF)
        return tf.concat([first, looped(made, HALF, state)[0]], 1)

    assert compare(numpy(report(run, made)), full) <= CLOSE


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_layers_with_the_state_carried_by_name_are_the_full_pass(full, mode):
    made = layer(return_state=True)

    def run():
        first, state = made(HALF)
        return tf.concat([first, made(HALF, initial_state=state)[0]], 1)

    call = tf.function(run, autograph=False) if mode == "graph" else run
    assert compare(numpy(report(call, made)), full) <= CLOSE


def test_layers_with_the_state_detached_differ(full):
    made = layer(return_state=True)

    def run():
        first, state = made(HALF)
        return tf.concat([first, made(HALF, initial_state=tf.stop_gradient(state))[0]], 1)

    found = numpy(report(run, made))
    assert compare(values(found), values(full)) <= CLOSE
    assert compare(gradients(found), gradients(full)) > 1e-3


def test_case_4_stacked_full_pass(full_stacked):
    first, second = layer(), layer(seed=4)
    assert compare(numpy(report(lambda: second(first(WHOLE)), first, second)), full_stacked) <= CLOSE


def test_case_5_a_layer_and_one_loop_on_top(full_stacked):
    first, second = layer(), layer(seed=4)
    found = numpy(report(lambda: looped(second, first(WHOLE))[0], first, second))
    assert compare(found, full_stacked) <= CLOSE


def test_stacked_halves_with_both_states_carried(full_stacked):
    first, second = layer(return_state=True), layer(seed=4, return_state=True)

    def run(cut=lambda state: state):
        below, h = first(HALF)
        above, k = second(below)
        below, _ = first(HALF, initial_state=cut(h))
        return tf.concat([above, second(below, initial_state=cut(k))[0]], 1)

    assert compare(numpy(report(run, first, second)), full_stacked) <= CLOSE
    detached = numpy(report(lambda: run(tf.stop_gradient), first, second))
    assert compare(values(detached), values(full_stacked)) <= CLOSE
    assert compare(gradients(detached), gradients(full_stacked)) > 1e-3
