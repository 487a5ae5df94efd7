"""Derivatives of recurrent TensorFlow models over HTTP: the client, the wire formats and the errors."""

from pushforward._pieces import ChunkedVJP, Piece, Pieces
from pushforward._results import JVP, VJP, Answer, Evaluation, Jacobian, Plan, Transitions
from pushforward.chunked import Chunked
from pushforward.client import Client
from pushforward.errors import PushforwardError

__all__ = [
    "JVP",
    "VJP",
    "Answer",
    "Chunked",
    "ChunkedVJP",
    "Client",
    "Evaluation",
    "Jacobian",
    "Piece",
    "Pieces",
    "Plan",
    "PushforwardError",
    "Transitions",
    "__version__",
]

__version__ = "0.1.0"
