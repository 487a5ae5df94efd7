import pytest
from fastapi.openapi.models import OpenAPI

from pushforward.wire import codecs


@pytest.fixture
def document(shell):
    return shell.get("/openapi.json").json()


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from references(child)


def test_is_valid(document):
    OpenAPI.model_validate(document)
    assert document["openapi"].startswith("3.1")
    for reference in references(document):
        kind, name = reference.removeprefix("#/components/").split("/")
        assert name in document["components"][kind], reference


def test_operators(document, fake_operators):
    for name, operator in fake_operators.items():
        route = document["paths"][f"/{name}"]["post"]
        assert route["operationId"] == name
        assert (route["summary"], route["description"]) == (operator.summary, operator.description)
        formats = {codec.media_type for codec in codecs().values()}
        assert set(route["requestBody"]["content"]) == formats
        assert set(route["responses"]["200"]["content"]) == formats
        schema = document["components"]["schemas"][f"{name.title()}Request"]
        assert set(schema["properties"]) == {
            "model",
            "timeout_s",
            "lengths",
            "encoding",
            *operator.request_fields,
            "outputs",
        }
        assert schema["required"] == ["model", *operator.required]


def test_members_of_an_answer(document):
    answer = document["components"]["schemas"]["JacobianAnswer"]
    assert set(answer["properties"]) == {"model", "version", "outputs", "jacobian", "axes", "info"}
    assert answer["properties"]["axes"] == {"type": "array", "items": {"type": "string"}}
    # A plan has no array, and what an operator adds may be absent.
    assert set(answer["required"]) == {"model", "version", "outputs", "info"}


def test_problems_replace_what_fastapi_would_say(document):
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for path in document["paths"].values():
        for route in path.values():
            failures = {status: answer for status, answer in route["responses"].items() if status != "200"}
            assert "default" in failures
            for answer in failures.values():
                assert list(answer["content"]) == ["application/problem+json"]


def test_operation_ids_are_unique(document):
    ids = [route["operationId"] for path in document["paths"].values() for route in path.values()]
    assert len(ids) == len(set(ids))


def test_examples_run(shell, document, fake_operators):
    for name in fake_operators:
        examples = document["paths"][f"/{name}"]["post"]["requestBody"]["content"]["application/json"]["examples"]
        assert list(examples) == ["echo"]
        for example in examples.values():
            response = shell.post(f"/{name}", json=example["value"])
            assert response.status_code == 200, response.text


def test_is_the_same_every_time(shell, document):
    assert shell.get("/openapi.json").json() == document


def test_exists_without_an_engine(fake_app):
    assert "examples" not in fake_app.openapi()["paths"]["/jvp"]["post"]["requestBody"]["content"]["application/json"]


def test_page(shell):
    response = shell.get("/docs")
    assert response.status_code == 200
    assert "/openapi.json" in response.text
