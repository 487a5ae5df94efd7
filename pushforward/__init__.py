"""Derivatives of recurrent TensorFlow models over HTTP: the client, the wire formats and the errors."""

from pushforward.client import JVP, VJP, Answer, Client, Evaluation, Jacobian, Plan, Transitions
from pushforward.errors import PushforwardError

__all__ = [
    "JVP",
    "VJP",
    "Answer",
    "Client",
    "Evaluation",
    "Jacobian",
    "Plan",
    "PushforwardError",
    "Transitions",
    "__version__",
]

__version__ = "0.1.0"
