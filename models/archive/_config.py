"""The configuration: read as data, checked entry by entry, and written anew with nothing but what is known.

What Keras builds from is what is written here, never what was sent, so that there is no second way to read it.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from models.archive._classes import (
    ACTIVATIONS,
    INITIALIZER_NAMES,
    INITIALIZERS,
    LAYERS,
    MODELS,
    OPERATIONS,
    REASONS,
    Allowed,
)
from models.archive._limits import Limits
from models.archive._sizes import UNITS, estimate
from pushforward.errors import MalformedBody, UnsafeModel

# Where Keras keeps the classes of operations; they have no other address.
_OPERATIONS = re.compile(r"keras\.src\.ops\.(numpy|nn|core|math|linalg)|keras\.ops(\.numpy|\.nn)?")
_LAYERS = re.compile(r"keras\.(src\.)?layers(\.\w+)*|keras\.(src\.)?models(\.\w+)*|keras")
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,200}")
_POLICIES = frozenset(("float16", "float32", "float64", "bfloat16", "mixed_float16", "mixed_bfloat16"))
_INTEGERS = re.compile(r"u?int(8|16|32|64)|bool")

# What is no object at all, but a value that JSON has no word for.
_CONSTANTS = frozenset(("__tensor__", "__numpy__"))
_LITERALS = _CONSTANTS | {"__keras_tensor__", "__slice__", "__ellipsis__"}

_DROPPED = ("regularizer", "constraint")
_ANY_NUMBER = frozenset(("seed", "shared_object_id", "salt"))
_LONGEST = 500
_DEEPEST = 100
_HOMES = {"Sequential": "keras", "Model": "keras", "Functional": "keras.src.models.functional"}


@dataclass(frozen=True)
class Clean:
    """A configuration that Keras may build from.

    Attributes:
        config: of the model.
        notes: what differs from what was saved.
    """

    config: dict[str, Any]
    notes: tuple[str, ...]


def clean(text: bytes, dtype: str | None, limits: Limits) -> Clean:
    """Check a configuration, and write it anew.

    Args:
        text: `config.json`.
        dtype: what the model is to compute in; if not given, as it was saved, but without mixed precision.
        limits: its bounds.

    Raises:
        MalformedBody: if it is no JSON object.
        UnsafeModel: if it holds a class, function or size that it may not; the message names the layer.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedBody("config.json in this archive is no JSON; save the model again") from error
    if not isinstance(found, dict) or found.get("class_name") not in MODELS:
        raise UnsafeModel(
            "the archive holds no Sequential or functional model, but "
            f"{str(found.get('class_name') if isinstance(found, dict) else type(found).__name__)[:80]!r}; a class of "
            "your own can't be built here: write the model with keras.Sequential or keras.Model(inputs, outputs)"
        )
    cleaner = _Cleaner(dtype, limits, Allowed(limits.allowed))
    return Clean(cleaner.object(found, ""), tuple(cleaner.notes))


@dataclass
class _Cleaner:
    dtype: str | None
    limits: Limits
    allowed: Allowed
    notes: dict[str, None] = field(default_factory=dict[str, None])
    layers: int = 0
    parameters: int = 0
    depth: int = 0

    def object(self, found: dict[str, Any], layer: str) -> dict[str, Any]:
        """Write a serialised object anew.

        Args:
            found: with class_name, module, config and the like.
            layer: the layer that it belongs to, for messages.
        """
        name, module = found.get("class_name"), found.get("module")
        if not isinstance(name, str):
            raise self._refusal(layer, "it has a class without a name")
        if name in _LITERALS:
            return {"class_name": name, "config": self._literal(name, found.get("config"), layer)}
        config = found.get("config")
        own = config.get("name") if isinstance(config, dict) else None
        layer = own if isinstance(own, str) else layer
        kind = self._kind(found, layer)
        if name == "DTypePolicy":
            return {
                "module": "keras",
                "class_name": name,
                "config": {"name": self._policy(config, layer)},
                "registered_name": None,
            }
        if not isinstance(config, dict):
            raise self._refusal(layer, "its class has no configuration")
        inner = self._config(config, layer)
        written: dict[str, Any] = {"module": module, "class_name": name, "config": inner, "registered_name": None}
        if kind == "operation":
            written["registered_name"] = name
        elif kind == "allowed":
            written["registered_name"] = self.allowed.find(found)
        elif kind == "layer":
            written["module"] = _HOMES.get(name, "keras.layers")
            if name == "InputLayer" and "batch_shape" in inner:
                # A fixed number of rows is of no use to a model without a memory of its own.
                inner["batch_shape"] = [None, *inner["batch_shape"][1:]]
        else:
            written["module"] = f"keras.{kind}s"
        if kind in ("layer", "operation", "allowed"):
            self._count(found, inner, layer)
        if isinstance(found.get("build_config"), dict):
            written["build_config"] = self._mapping(found["build_config"], layer)
        for key in ("name", "inbound_nodes", "shared_object_id"):
            if key in found:
                written[key] = self.value(found[key], key, layer)
        return written

    def value(self, found: Any, key: str, layer: str) -> Any:
        """Write a value of any kind anew."""
        self.depth += 1
        try:
            if self.depth > _DEEPEST:
                raise self._refusal(layer, "its configuration is nested too deeply")
            if isinstance(found, dict):
                return self.object(found, layer) if "class_name" in found else self._mapping(found, layer)
            if isinstance(found, list):
                return [self.value(item, key, layer) for item in found]
            if isinstance(found, str) and len(found) > _LONGEST:
                raise self._refusal(layer, f"{key[:80]!r} is a text of {len(found)} characters")
            if isinstance(found, int) and not isinstance(found, bool) and key not in _ANY_NUMBER:
                most = self.limits.units if key in UNITS else self.limits.size
                if abs(found) > most:
                    raise self._refusal(layer, f"{key[:80]} is {found}, the limit is {most}")
            return found
        finally:
            self.depth -= 1

    def _mapping(self, found: dict[str, Any], layer: str) -> dict[str, Any]:
        return {str(key): self.value(value, str(key), layer) for key, value in found.items()}

    def _config(self, found: dict[str, Any], layer: str) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in found.items():
            last = key.rpartition("_")[2]
            if last in _DROPPED:
                written[key] = None  # They play no part once a model is trained.
            elif last == "activation":
                written[key] = self._named(value, key, layer, ACTIVATIONS)
            elif last == "initializer":
                # The weights come from the file; what they would have been is only looked at.
                written[key] = None if self._named(value, key, layer, INITIALIZER_NAMES) is None else "zeros"
            elif key == "dtype":
                written[key] = self.value(value, key, layer) if isinstance(value, dict) else self._policy(value, layer)
            elif key == "name":
                if not isinstance(value, str) or not _NAME.fullmatch(value) or ".." in value:
                    raise self._refusal(str(value)[:80], "its name is no plain name")
                written[key] = value
            elif key == "stateful" and value:
                self.notes["stateful: runs statelessly; states come in and go out by name"] = None
                written[key] = False
            else:
                written[key] = self.value(value, key, layer)
        return written

    def _named(self, found: Any, key: str, layer: str, names: frozenset[str]) -> Any:
        if isinstance(found, dict):
            # Older releases wrote the functions that come with Keras like this.
            if found.get("class_name") == "function" and found.get("module") in ("builtins", "keras.activations"):
                found = found.get("config")
            else:
                return self.object(found, layer)
        if found is not None and (not isinstance(found, str) or found not in names):
            raise self._refusal(
                layer, f"{key[:80]} is {str(found)[:80]!r}, which does not come with Keras; use one that does"
            )
        return found

    def _policy(self, found: Any, layer: str) -> Any:
        name = found.get("name") if isinstance(found, dict) else found
        if name is None or (isinstance(name, str) and _INTEGERS.fullmatch(name)):
            return name
        if name not in _POLICIES:
            raise self._refusal(layer, f"its dtype policy is {str(name)[:80]!r}; save it with float32")
        wanted = self.dtype or ("float32" if name.startswith("mixed_") else name)
        if name.startswith("mixed_"):
            self.notes[f"{name}: runs in {wanted}"] = None
        return wanted

    def _kind(self, found: dict[str, Any], layer: str) -> str:
        name, module, registered = found["class_name"], found.get("module"), found.get("registered_name")
        if name in REASONS:
            which = f" {found['config'][:80]!r}" if isinstance(found.get("config"), str) else ""
            raise self._refusal(layer, f"{name}{which}: {REASONS[name]}")
        if self.allowed.find(found) is not None:
            return "allowed"
        if registered == f"pushforward>{name}" and name in LAYERS:
            return "layer"  # Ours have the configuration of those that they replace.
        module = module if isinstance(module, str) else ""
        if name == "DTypePolicy" and module == "keras":
            return "policy"
        if registered in (None, name):
            if name in LAYERS | MODELS and _LAYERS.fullmatch(module):
                return "layer"
            if name in OPERATIONS and _OPERATIONS.fullmatch(module):
                return "operation"
            if name in INITIALIZERS and module == "keras.initializers":
                return "initializer"
        raise self._refusal(
            layer,
            f"{f'{module}.' if module else ''}{name}{f', registered as {registered},' if registered else ''}"[:200]
            + " is not among the classes of Keras that are known to "
            "be safe; use one that is, or have it allowed on the server with PUSHFORWARD_ALLOW_CLASSES",
        )

    def _count(self, found: dict[str, Any], config: dict[str, Any], layer: str) -> None:
        self.layers += 1
        if self.layers > self.limits.layers:
            raise UnsafeModel(f"the model has more than {self.limits.layers} layers, which is the limit")
        self.parameters += estimate(found, config)
        if self.parameters > 2 * self.limits.parameters:
            raise self._refusal(
                layer, f"with it, the model has many more weights than {self.limits.parameters}, which is the limit"
            )

    def _refusal(self, layer: str, why: str) -> UnsafeModel:
        return UnsafeModel(f"layer {layer[:80]!r}: {why}" if layer else why)

    def _literal(self, name: str, config: Any, layer: str) -> Any:
        written = self.value(config, "", layer)
        if name not in _CONSTANTS:
            return written
        dtype, numbers = (written.get("dtype"), written.get("value")) if isinstance(written, dict) else (None, None)
        if not _numbers(numbers):
            raise self._refusal(layer, "it holds a constant that is not made of numbers")
        return {"value": numbers, "dtype": self._policy(dtype, layer)}


def _numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numbers, value))
    return isinstance(value, int | float)
