"""Our side of the Jacobian benchmark: the operators as the server runs them, on stock Keras layers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf

import app.operators
from app.calls import Call
from app.operators._operator import Job, Work
from app.programs import Programs
from benchmarks._worker import Arrays, Program, serve
from models.model import Model
from pushforward._registry import scan


@dataclass(frozen=True)
class Ask:
    """What is asked of which operator, about which layer.

    Attributes:
        layer: the layer of the model.
        operator: the operator's name.
        options: the call's options.
        answers: the paths of the answer's arrays.
        slots: the slots of the initial state that the call gives.
    """

    layer: type[keras.layers.RNN]
    operator: str
    options: Mapping[str, Any]
    answers: Sequence[str]
    slots: Sequence[str]


def _gru(of: str, wrt: str) -> Ask:
    return Ask(keras.layers.GRU, "jacobian", {"of": of, "wrt": wrt}, ["jacobian"], ["h"])


def _matrices(layer: type[keras.layers.RNN], *slots: str) -> Ask:
    return Ask(layer, "transitions", {"parts": ["A", "B"]}, ["A", "B"], slots)


_WINDOW = _gru("y[100:110]", "x[90:110]")
CASES = {
    "a": _gru("y", "x"),
    "b": _gru("state.gru.h", "x"),
    "c": _WINDOW,
    "c-cut": _WINDOW,
    "d": _gru("state.gru.h", "state.gru.h"),
    "e1": _matrices(keras.layers.LSTM, "h", "c"),
    "e2": _matrices(keras.layers.GRU, "h"),
}


def make(ask: Ask, arrays: Arrays) -> Model:
    """Make a model of one layer with these weights."""
    name, units = ask.layer.__name__.lower(), arrays["recurrent"].shape[0]
    layer = ask.layer(units, return_sequences=True, name=name)
    network = keras.Sequential([keras.Input((None, arrays["x"].shape[-1]), dtype="float32"), layer])
    layer.set_weights([arrays["kernel"], arrays["recurrent"], arrays["bias"]])
    return Model("m", network)


def run_job(programs: Programs, model: Model, operator: str, job: Job) -> dict[str, np.ndarray]:
    """Run a checked call as the server does, without its queue and its thread; return its arrays by path."""
    steps = job.steps()
    item, items = next(steps, None), []
    while item is not None:
        if isinstance(item, Work):
            found, _ = programs.run(model, operator, item)
            item = steps.send(found)
        else:
            items.append(item)
            item = next(steps, None)
    return job.joined(items)


def build(variant: str, operator: str, arrays: Arrays) -> Program:
    """Make the model of a case and bind the call to it; there is one variant, whatever the server picks."""
    ask = CASES[operator]
    model, programs, ran = make(ask, arrays), Programs(), scan(app.operators, "OPERATOR")[ask.operator]
    states = np.split(arrays["state"], len(ask.slots), axis=-1)
    prefix = f"state.{ask.layer.__name__.lower()}"
    inputs = {"x": arrays["x"], **{f"{prefix}.{slot}": s for slot, s in zip(ask.slots, states, strict=True)}}
    job = ran.prepare(model, Call(model.name, ask.operator, {"inputs": inputs}, ask.options))

    def program() -> list[np.ndarray]:
        found = run_job(programs, model, ask.operator, job)
        # At given states the trajectory is one step long, and JAX's user has no axis for it.
        return [found[path][:, 0] if operator == "e1" else found[path] for path in ask.answers]

    return program


if __name__ == "__main__":
    serve(build, {"tensorflow": tf.__version__, "keras": keras.__version__})
