"""Two GRU layers with relu and a dense one, float64: the model of a public question about forward mode."""

import keras

from models.zoo._entry import Entry


def _build() -> keras.Model:
    make = keras.layers
    return keras.Sequential(
        [
            keras.Input((None, 1), dtype="float64"),
            make.GRU(32, activation="relu", return_sequences=True, dtype="float64", name="gru_1"),
            make.GRU(32, activation="relu", return_sequences=True, dtype="float64", name="gru_2"),
            make.Dense(1, activation="relu", dtype="float64", name="dense"),
        ],
        name="seed_gru",
    )


MODEL = Entry("seed-gru", "1 feature, GRU(32, relu), GRU(32, relu), Dense(1, relu), sequences out, float64", _build)
