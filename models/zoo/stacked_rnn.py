"""Two stacked Elman layers, float64: small enough to check by hand."""

import keras

from models.zoo._entry import Entry


def _build() -> keras.Model:
    make = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, 4), dtype="float64"),
            make.SimpleRNN(4, return_sequences=True, dtype="float64", name="rnn_1"),
            make.SimpleRNN(4, return_sequences=True, dtype="float64", name="rnn_2"),
        ],
        name="stacked_rnn",
    )


MODEL = Entry("stacked-rnn", "4 features, SimpleRNN(4), SimpleRNN(4), sequences out, float64", _build)
