"""Which models take rows of different lengths, and which layer stands in the way of the others."""

import keras
import pytest

from models._ragged import ragged_obstacle

L = keras.layers


def sequential(*layers, features=3):
    return keras.Sequential([keras.Input((None, features)), *layers])


def functional(make):
    x = keras.Input((None, 3))
    return keras.Model(x, make(x))


TAKEN = {
    "recurrent": lambda: sequential(L.GRU(2, return_sequences=True), L.LSTM(2)),
    "bidirectional": lambda: sequential(L.Bidirectional(L.GRU(2, return_sequences=True)), L.Dense(1)),
    "backward": lambda: sequential(L.GRU(2, go_backwards=True)),
    "causal convolution": lambda: sequential(L.Conv1D(2, 3, padding="causal"), L.GRU(2)),
    "masking": lambda: sequential(L.Masking(), L.GRU(2)),
    "normalised": lambda: sequential(L.LayerNormalization(), L.BatchNormalization(), L.Dropout(0.5), L.GRU(2)),
    "mean": lambda: sequential(L.GlobalAveragePooling1D()),
    "tokens": lambda: keras.Sequential([keras.Input((None,), dtype="int32"), L.Embedding(5, 2), L.GRU(2)]),
    "time distributed": lambda: keras.Sequential([keras.Input((None, 4, 3)), L.TimeDistributed(L.GRU(2)), L.GRU(2)]),
}

REFUSED = {
    "conv": lambda: sequential(L.Conv1D(2, 3, padding="same", name="conv"), L.GRU(2)),
    "strided": lambda: sequential(L.Conv1D(2, 3, padding="causal", strides=2, name="strided"), L.GRU(2)),
    "flat": lambda: keras.Sequential([keras.Input((5, 3)), L.GRU(2, return_sequences=True), L.Flatten(name="flat")]),
    "most": lambda: sequential(L.GlobalMaxPooling1D(name="most")),
    "kept": lambda: sequential(L.GlobalAveragePooling1D(keepdims=True, name="kept")),
    "attention": lambda: functional(lambda x: L.MultiHeadAttention(1, 2, name="attention")(x, x)),
    "backward": lambda: sequential(L.GRU(2, go_backwards=True, return_sequences=True, name="backward"), L.LSTM(2)),
    "again": lambda: sequential(L.GRU(2), L.RepeatVector(4, name="again"), L.GRU(2)),
    "over_time": lambda: keras.Sequential([keras.Input((5, 3)), L.LayerNormalization(axis=1, name="over_time")]),
    "reversed_first": lambda: sequential(
        L.Bidirectional(
            L.GRU(2, go_backwards=True, return_sequences=True),
            backward_layer=L.GRU(2, return_sequences=True),
            name="reversed_first",
        )
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_models_that_skip_padding(name):
    assert ragged_obstacle(TAKEN[name]()) is None


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_stand_in_the_way_are_named(name):
    assert f"layer {name!r} " in (ragged_obstacle(REFUSED[name]()) or "")


def test_operations_that_are_no_layers_are_named():
    assert "calls the operation" in (ragged_obstacle(functional(lambda x: L.GRU(3, return_sequences=True)(x)[:, ::-1])))


def test_tokens_side_by_side_along_time():
    a, b = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    tokens = L.Concatenate(name="joined")([a, b])
    assert "layer 'joined' " in ragged_obstacle(keras.Model([a, b], L.GRU(2)(L.Embedding(5, 2)(tokens))))


def test_layers_of_users_own():
    class Own(L.Layer):
        def call(self, inputs):
            return inputs

    assert "layer 'own' (Own)" in ragged_obstacle(sequential(Own(name="own"), L.GRU(2)))
