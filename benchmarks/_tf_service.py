"""Our side of the load benchmark: the models that the server is given, and its compute limit in process.

`python -m benchmarks._tf_service FOLDER` saves the models as `.keras` archives, without an argument it is a worker.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import tensorflow as tf

from app.calls import Call
from app.operators.jvp import OPERATOR
from app.programs import Programs, use_threads
from app.settings import Settings
from benchmarks._gru import UNITS, WEIGHTS, WORKLOADS
from benchmarks._tf_jacobians import run_job
from benchmarks._worker import Arrays, Program, serve
from models.model import Model


def network(workload: str) -> keras.Model:
    """Make the model of a workload, of a stock layer."""
    layer = keras.layers.GRU(UNITS, return_sequences=not WORKLOADS[workload].last, name="gru")
    made = keras.Sequential([keras.Input((None, WEIGHTS["kernel"].shape[0]), dtype="float32"), layer])
    layer.set_weights(list(WEIGHTS.values()))
    return made


def build(variant: str, operator: str, arrays: Arrays) -> Program:
    """Bind the call to the model of a workload, which `operator` names; there is one variant."""
    model, programs = Model(operator, network(operator)), Programs()
    call = Call(model.name, OPERATOR.name, {"inputs": {"x": arrays["x"]}, "tangents": {"x": arrays["dx"]}})
    job = OPERATOR.prepare(model, call)
    return lambda: [run_job(programs, model, OPERATOR.name, job)["tangents.y"]]


if __name__ == "__main__":
    if folder := sys.argv[1:]:
        for name in WORKLOADS:
            network(name).save(Path(*folder, f"{name}.keras"))
    else:
        use_threads(Settings.model_fields["threads"].default)  # as the server does
        serve(build, {"tensorflow": tf.__version__, "keras": keras.__version__})
