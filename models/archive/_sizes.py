"""How many weights a layer will have, as far as its configuration tells, before anything is built."""

import math
from typing import Any

UNITS = frozenset(
    ("units", "filters", "output_dim", "num_heads", "key_dim", "value_dim", "head_dim", "depth_multiplier")
)
_GATES = 4
_RECURRENT = frozenset("GRU LSTM SimpleRNN GRUCell LSTMCell SimpleRNNCell ConvLSTM1D ConvLSTM2D ConvLSTM3D".split())


def estimate(found: dict[str, Any], config: dict[str, Any]) -> int:
    """Estimate how many weights a layer has, from above for those of Keras, as far as its configuration tells."""
    name = found["class_name"]
    units = max((v for k in UNITS if isinstance(v := config.get(k), int)), default=0)
    heads = config.get("num_heads")
    built = found.get("build_config")
    shape = _integers(built.get("input_shape")) if isinstance(built, dict) else []
    features = max(shape, default=1) if config.get("data_format") == "channels_first" else shape[-1] if shape else 1
    kernel = math.prod(_integers(config.get("kernel_size"))) or 1
    if isinstance(heads, int):
        return _GATES * features * heads * units
    if name == "Embedding":
        return units * max(_integers(config.get("input_dim")), default=1)
    if name in _RECURRENT:
        return _GATES * kernel * (features + units) * units
    return kernel * features * units


def _integers(value: Any) -> list[int]:
    if isinstance(value, list):
        return [n for item in value for n in _integers(item)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []
