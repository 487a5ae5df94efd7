"""TensorFlow as Any: the stubs that pyright ships reject correct programs, and its own sources are untyped.

A submodule that is imported by its dotted name needs a file here; attributes do not.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
