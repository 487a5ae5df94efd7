"""The document's examples are what people send first: each one is sent here."""

from pathlib import Path

import pytest
from fastapi.openapi.models import OpenAPI

ROOT = Path(__file__).parent.parent.parent
OPERATORS = [path.stem for path in sorted((ROOT / "app" / "operators").glob("[!_]*.py"))]
MODELS = [path.stem.replace("_", "-") for path in sorted((ROOT / "models" / "zoo").glob("[!_]*.py"))]


def examples(client, operator):
    document = client.get("/openapi.json").json()
    body = document["paths"][f"/{operator}"]["post"]["requestBody"]["content"]["application/json"]
    return {name: example["value"] for name, example in body["examples"].items()}


def fits(value, schema, document):
    """Check a value against the few parts of JSON Schema that the document's requests use."""
    if "$ref" in schema:
        return fits(value, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    if "anyOf" in schema:
        return any(fits(value, choice, document) for choice in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            known = schema.get("properties", {})
            others = schema.get("additionalProperties", True)
            if not isinstance(value, dict) or not set(schema.get("required", ())) <= set(value):
                return False
            return all(
                fits(item, known[name], document)
                if name in known
                else others is True or (isinstance(others, dict) and fits(item, others, document))
                for name, item in value.items()
            )
        case "array":
            return isinstance(value, list) and all(fits(item, schema["items"], document) for item in value)
        case "number":
            return isinstance(value, int | float)
        case "integer":
            return isinstance(value, int)
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
    raise AssertionError(schema)


def test_document_is_valid(server):
    document = server.get("/openapi.json").json()
    OpenAPI.model_validate(document)
    assert {f"/{operator}" for operator in OPERATORS} <= set(document["paths"])


# What looks ahead has no transitions.
UNFIT = {("transitions", "bi-gru")}
PAIRS = [(operator, model) for operator in OPERATORS for model in MODELS if (operator, model) not in UNFIT]


@pytest.mark.parametrize("operator", OPERATORS)
def test_there_is_an_example_on_every_model_that_fits(server, operator):
    assert sorted(examples(server, operator)) == [model for model in MODELS if (operator, model) in PAIRS]


@pytest.mark.parametrize(("operator", "model"), PAIRS)
def test_example_runs_and_both_bodies_fit_their_schemas(server, operator, model):
    document = server.get("/openapi.json").json()
    request = examples(server, operator)[model]
    response = server.post(f"/{operator}", json=request)
    assert response.status_code == 200, response.text
    schemas = document["components"]["schemas"]
    assert fits(request, schemas[f"{operator.title()}Request"], document)
    assert fits(response.json(), schemas[f"{operator.title()}Answer"], document)
    assert not fits(request | {"nonsense": 1}, schemas[f"{operator.title()}Request"], document)


@pytest.mark.parametrize("operator", OPERATORS)
def test_example_on_a_model_whose_inputs_are_integers_runs(archive_server, operator):
    response = archive_server.post(f"/{operator}", json=examples(archive_server, operator)["tokens"])
    assert response.status_code == 200, response.text


def test_models_answer_what_their_schema_says(server, archive_server):
    for client in (server, archive_server):
        document = client.get("/openapi.json").json()
        for summary in client.get("/models").json():
            description = client.get(f"/models/{summary['name']}").json()
            names = [a["name"] for group in ("inputs", "states", "parameters", "hidden") for a in description[group]]
            assert len(names) == len(set(names))
            assert summary["version"] == description["version"]
            assert set(document["components"]["schemas"]["ModelDescription"]["required"]) <= set(description)
