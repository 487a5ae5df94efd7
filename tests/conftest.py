"""Settings that must be in the environment before the first import of TensorFlow, and fixtures that all tests share."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The same numbers on every machine; set the variable yourself to run the tests on a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
