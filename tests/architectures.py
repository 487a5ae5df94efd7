"""Models as people build them with stock Keras, with inputs: what is uploaded must be served, and be right."""

import keras
import numpy as np

L = keras.layers

# name -> (makes a model, shapes of its inputs: integers are tokens below 7)
ARCHITECTURES = {}


def architecture(*shapes):
    def add(build):
        ARCHITECTURES[build.__name__] = (build, shapes)
        return build

    return add


def sequential(*layers, features=3):
    return keras.Sequential([keras.Input((None, features)), *layers])


@architecture((2, 5, 3))
def gru_reset_after():
    return sequential(L.GRU(4, return_sequences=True), L.Dense(2))


@architecture((2, 5, 3))
def gru_reset_before():
    return sequential(L.GRU(4, reset_after=False, return_sequences=True), L.Dense(2))


@architecture((2, 5, 3))
def lstm_last_step():
    return sequential(L.LSTM(4), L.Dense(1, activation="tanh"))


@architecture((2, 5, 3))
def simple_rnn_backwards():
    return sequential(L.SimpleRNN(4, go_backwards=True, return_sequences=True, activation="softplus"))


@architecture((2, 5, 3))
def bidirectional_sum():
    return sequential(
        L.Bidirectional(L.GRU(3, return_sequences=True), merge_mode="sum"), L.LayerNormalization(), L.Dense(2)
    )


@architecture((2, 5, 3))
def bidirectional_of_two_kinds():
    return sequential(L.Bidirectional(L.LSTM(3), backward_layer=L.GRU(2, go_backwards=True)))


@architecture((2, 5, 3))
def stacked_cells():
    return sequential(L.RNN([L.GRUCell(3), L.LSTMCell(4)], return_sequences=True))


@architecture((2, 6, 3))
def masking():
    return sequential(L.Masking(0.0), L.LSTM(4, return_sequences=True), L.GRU(2))


@architecture((2, 6))
def embedding_with_mask_zero():
    return keras.Sequential(
        [keras.Input((None,), dtype="int32"), L.Embedding(7, 3, mask_zero=True), L.GRU(4), L.Dense(2)]
    )


@architecture((2, 5, 3), (2, 5, 2))
def explicit_mask():
    x, shown = keras.Input((None, 3), name="signal"), keras.Input((None, 2), name="shown")
    mask = keras.ops.max(shown, -1) > 0.0
    return keras.Model([x, shown], L.GRU(4, return_sequences=True)(x, mask=mask))


@architecture((2, 5, 3), (2, 4))
def two_inputs_and_outputs():
    x, z = keras.Input((None, 3), name="series"), keras.Input((4,), name="context")
    h = L.GRU(4, return_sequences=True)(x, initial_state=L.Dense(4)(z))
    return keras.Model([x, z], [L.Dense(2, name="each")(h), L.Dense(1, name="last")(h[:, -1])])


@architecture((2, 5, 3))
def dictionary_of_outputs():
    x = keras.Input((None, 3))
    h = L.LSTM(4, return_sequences=True)(x)
    return keras.Model(x, {"mean": L.Dense(1)(h), "spread": L.Dense(1, activation="softplus")(h)})


@architecture((2, 5, 3))
def layer_normalization_between():
    return sequential(
        L.GRU(4, return_sequences=True), L.LayerNormalization(), L.GRU(3, return_sequences=True), L.Dense(1)
    )


@architecture((2, 5, 3))
def batch_normalization():
    network = sequential(L.BatchNormalization(), L.SimpleRNN(4, return_sequences=True), L.BatchNormalization())
    rng = np.random.default_rng(0)
    for layer in network.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 2.0, w.shape) for w in layer.get_weights()])
    return network


@architecture((2, 6, 3))
def causal_convolution():
    return sequential(
        L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="gelu"), L.GRU(3, return_sequences=True)
    )


@architecture((2, 6, 3))
def convolution_and_pooling():
    return sequential(L.Conv1D(4, 3), L.MaxPooling1D(2), L.LSTM(3, return_sequences=True))


@architecture((2, 4, 5, 3))
def time_distributed():
    inner = keras.Sequential([keras.Input((5, 3)), L.Flatten(), L.Dense(4, activation="swish")])
    return keras.Sequential([keras.Input((None, 5, 3)), L.TimeDistributed(inner), L.GRU(3, return_sequences=True)])


@architecture((2, 5, 3))
def dropouts():
    return sequential(
        L.Dropout(0.5),
        L.GRU(4, dropout=0.3, recurrent_dropout=0.2, return_sequences=True),
        L.SpatialDropout1D(0.2),
        L.GaussianNoise(1.0),
        L.Dense(2),
    )


@architecture((2, 5, 3))
def nested():
    inner = keras.Sequential([keras.Input((None, 4)), L.GRU(4, return_sequences=True), L.Dense(4)], name="inner")
    x = keras.Input((None, 3))
    return keras.Model(x, L.Dense(1)(inner(L.Dense(4)(x))))


@architecture((2, 5, 3))
def residual():
    x = keras.Input((None, 3))
    h = L.Dense(4)(x)
    h = h + L.GRU(4, return_sequences=True)(h)
    return keras.Model(x, 0.5 * L.add([h, L.LSTM(4, return_sequences=True)(h)]) - 1.0)


@architecture((2, 5, 3), (2, 5, 3))
def shared_layer():
    a, b = keras.Input((None, 3), name="a"), keras.Input((None, 3), name="b")
    encode = L.GRU(4)
    return keras.Model([a, b], L.Dot(1, normalize=True)([encode(a), encode(b)]))


@architecture((2, 5, 3))
def stateful():
    x = keras.Input(batch_shape=(2, 5, 3))
    return keras.Model(x, L.Dense(2)(L.LSTM(4, stateful=True, return_sequences=True)(x)))


@architecture((2, 5, 3))
def mixed_precision():
    x = keras.Input((None, 3))
    h = L.GRU(4, return_sequences=True, dtype="mixed_float16")(x)
    return keras.Model(x, L.Dense(2, dtype="float32")(h))


@architecture((2, 5, 3))
def encoder_and_decoder():
    x = keras.Input((5, 3))
    _, h, c = L.LSTM(4, return_state=True)(x)
    return keras.Model(x, L.LSTM(4, return_sequences=True)(L.RepeatVector(3)(h), initial_state=[h, c]))


@architecture((2, 5, 3))
def attention():
    x = keras.Input((None, 3))
    h = L.GRU(4, return_sequences=True)(x)
    return keras.Model(x, L.Dense(1)(L.concatenate([L.Attention()([h, h]), L.MultiHeadAttention(2, 3)(h, h)])))


@architecture((2, 5, 3))
def activations_and_options():
    return sequential(
        L.Dense(4, activation="leaky_relu", kernel_regularizer="l2", kernel_constraint="max_norm"),
        L.PReLU(shared_axes=[1]),
        L.GRU(
            4,
            activation="elu",
            recurrent_activation="hard_sigmoid",
            kernel_initializer="he_normal",
            return_sequences=True,
            bias_regularizer=keras.regularizers.L1(0.1),
        ),
        L.Dense(3, activation=L.LeakyReLU(0.3)),
        L.Softmax(),
        L.Rescaling(2.0, offset=-1.0),
        L.UnitNormalization(),
    )


def build(name):
    """Build a model; return it with the arrays to call it on, in float64."""
    make, shapes = ARCHITECTURES[name]
    keras.utils.set_random_seed(1)
    network, rng = make(), np.random.default_rng(2)
    # Biases and the like begin as zeros, which hides what is wrong with them.
    for variable in network.trainable_variables:
        variable.assign(variable + rng.normal(scale=0.1, size=variable.shape))
    arrays = [
        rng.integers(0, 7, shape).astype("int32") if len(shape) == 2 and "embedding" in name else rng.normal(size=shape)
        for shape in shapes
    ]
    if name == "masking":
        arrays[0][1, 3:] = 0.0
    return network, arrays
