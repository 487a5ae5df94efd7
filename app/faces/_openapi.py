"""The OpenAPI document: what FastAPI cannot see, because bodies are read raw in any codec's format."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import FastAPI

from app.faces._face import Engine, Operator
from app.faces._translate import COMMON
from app.problems import Problem
from pushforward.errors import PushforwardError
from pushforward.wire import Codec

JSON = "application/json"

_REF = "#/components/schemas/"

# Fields of an answer that are one array rather than arrays by name.
_BARE = frozenset({"jacobian", "A", "B", "C", "D"})

_COMPONENTS: dict[str, Any] = {
    "Array": {
        "description": "Nested lists, or the bytes of the array in base64.",
        "anyOf": [{"$ref": f"{_REF}NestedList"}, {"$ref": f"{_REF}EncodedArray"}],
    },
    "NestedList": {
        "description": "A number, or a list of lists of equal length. NaN and infinity are strings.",
        "anyOf": [
            {"type": "number"},
            {"type": "boolean"},
            {"enum": ["NaN", "Infinity", "-Infinity"]},
            {"type": "array", "items": {"$ref": f"{_REF}NestedList"}},
        ],
    },
    "EncodedArray": {
        "type": "object",
        "description": "An array's bytes, little-endian and row-major.",
        "required": ["dtype", "shape", "base64"],
        "additionalProperties": False,
        "properties": {
            "dtype": {"type": "string", "examples": ["float64"]},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "base64": {"type": "string", "contentEncoding": "base64"},
        },
    },
    "Arrays": {
        "type": "object",
        "description": "Arrays by their names in the model's signature.",
        "additionalProperties": {"$ref": f"{_REF}Array"},
    },
}


def _component(operator: Operator, kind: str) -> str:
    return f"{operator.name.title().replace('_', '')}{kind}"


def operation(operator: Operator, codecs: Iterable[Codec]) -> dict[str, Any]:
    """Describe the bodies of an operator's route in every format, for `openapi_extra`."""
    content: dict[str, dict[str, Any]] = {"Request": {}, "Answer": {}}
    for kind, of_kind in content.items():
        fields = operator.request_fields if kind == "Request" else operator.response_fields
        for codec in codecs:
            also = ", `lengths` there or as a tensor" if kind == "Request" else ""
            schema = {"$ref": _REF + _component(operator, kind)} if codec.media_type == JSON else _binary(fields, also)
            of_kind[codec.media_type] = {"schema": schema}
    return {
        "requestBody": {"required": True, "content": content["Request"]},
        "responses": {"200": {"description": "The answer, in the format of Accept", "content": content["Answer"]}},
    }


def _binary(fields: Iterable[str], also: str) -> dict[str, Any]:
    tensors = ", ".join(f"`{field}`" if field in _BARE else f"`{field}.<name>`" for field in fields)
    # OpenAPI 3.1 has no `format: binary`: a schema without a type is how it says raw bytes.
    return {"description": f"Tensors {tensors}; all other members are JSON in the metadata entry `envelope`{also}."}


def _fields(fields: Iterable[str]) -> dict[str, Any]:
    return {field: {"$ref": _REF + ("Array" if field in _BARE else "Arrays")} for field in fields}


def _members(operator: Operator) -> Mapping[str, Mapping[str, Any]]:
    # Few operators have any, so that the attribute, schemas by name as in `options`, may be missing.
    return getattr(operator, "answer_members", {})


def _schemas(operator: Operator) -> dict[str, Any]:
    first = {"model": COMMON["model"]}
    request: dict[str, Any] = first | _fields(operator.request_fields) | dict(operator.options) | COMMON
    answer: dict[str, Any] = {
        "model": {"type": "string"},
        "version": {"type": "integer"},
        **_fields(operator.response_fields),
        **_members(operator),
        "info": {"type": "object", "description": "How the answer was computed."},
    }
    # Without a plan's arrays an answer is still one; arrays by name are there even if there are none of them.
    always = ["model", "version", *(field for field in operator.response_fields if field not in _BARE), "info"]
    return {
        _component(operator, "Request"): {
            "type": "object",
            "required": ["model", *(name for name in operator.required if name != "model")],
            "additionalProperties": False,
            "properties": request,
        },
        _component(operator, "Answer"): {"type": "object", "required": always, "properties": answer},
    }


def _examples(operator: Operator, engine: Engine) -> dict[str, Any]:
    examples: dict[str, Any] = {}
    for model in engine.models.values():
        # Not every operator fits every model; one that does not has no example.
        with suppress(PushforwardError):
            examples[model.name] = {"summary": f"On {model.name}", "value": operator.example(model)}
    return examples


def document(build: Callable[[], dict[str, Any]], app: FastAPI, operators: Mapping[str, Operator]) -> dict[str, Any]:
    """Complete what FastAPI builds: the schemas of arrays and bodies, and examples that run on the models served."""
    openapi = build()
    problem = Problem.model_json_schema(ref_template=_REF + "{model}")
    schemas: dict[str, Any] = openapi["components"]["schemas"]
    schemas |= _COMPONENTS | {"Problem": problem}
    engine: Engine | None = getattr(app.state, "engine", None)
    for operator in operators.values():
        schemas |= _schemas(operator)
        if engine is not None:
            body = openapi["paths"][f"/{operator.name}"]["post"]["requestBody"]["content"][JSON]
            body["examples"] = _examples(operator, engine)
    return openapi
