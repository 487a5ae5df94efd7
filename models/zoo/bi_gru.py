"""A bidirectional GRU with layer normalisation, float32: a model that is not causal."""

import keras

from models.zoo._entry import Entry


def _build() -> keras.Model:
    make = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, 3), dtype="float32"),
            make.Bidirectional(make.GRU(16, return_sequences=True, name="gru"), name="bi"),
            make.LayerNormalization(name="norm"),
            make.Dense(2, name="dense"),
        ],
        name="bi_gru",
    )


MODEL = Entry(
    "bi-gru", "3 features, Bidirectional(GRU(16)), LayerNormalization, Dense(2), sequences out, float32", _build
)
