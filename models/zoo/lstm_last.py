"""An LSTM read out at its last step, float32: the usual shape of a forecast or a score."""

import keras

from models.zoo._entry import Entry


def _build() -> keras.Model:
    make = keras.layers
    return keras.Sequential(
        [keras.Input((None, 8), dtype="float32"), make.LSTM(64, name="lstm"), make.Dense(1, name="dense")],
        name="lstm_last",
    )


MODEL = Entry("lstm-last", "8 features, LSTM(64), Dense(1), last step only, float32", _build)
