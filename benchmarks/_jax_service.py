"""The compute limit of the peer of the load benchmark: its jitted function in process; runs in its environment."""

import jax
import jaxlib
import numpy as np
import tesseract_core

from benchmarks._tesseract_api import push
from benchmarks._worker import Arrays, Program, serve


def build(variant: str, operator: str, arrays: Arrays) -> Program:
    """Bind the function to the arrays of a workload, which `operator` names; there is one variant."""
    return lambda: [np.asarray(push(arrays["x"], arrays["dx"], (operator,))[operator])]


if __name__ == "__main__":
    versions = {"tesseract-core": tesseract_core.__version__, "jax": jax.__version__, "jaxlib": jaxlib.__version__}
    serve(build, versions)
