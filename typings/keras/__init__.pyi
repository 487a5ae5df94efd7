"""Keras as Any, for the reason that TensorFlow is."""

from typing import Any

def __getattr__(name: str) -> Any: ...
