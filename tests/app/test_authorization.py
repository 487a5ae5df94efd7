import pytest
from fastapi.openapi.models import OpenAPI
from fastapi.testclient import TestClient

import pushforward
from app import keys
from app.authorization import requires
from app.main import create_app
from app.settings import Settings

BODY = {"model": "echo", "inputs": {"x": [1.0]}}
USE, USE_KEY = keys.make("alice", "use")
ADMIN, ADMIN_KEY = keys.make("root", "admin")
OPEN = ["/health/live", "/health/ready", "/docs", "/redoc", "/openapi.json", "/problems", "/problems/unauthorized"]


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(f"{USE_KEY.line}\n{ADMIN_KEY.line}\n")
    return path


@pytest.fixture
def guarded(make_shell, keys_file):
    with make_shell(api_keys_file=keys_file) as client:
        yield client


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer  "},
        {"Authorization": USE},
        {"Authorization": f"Basic {USE}"},
        bearer("unknown"),
        bearer(USE[:-1]),
        bearer(f"{USE}x"),
        bearer("ü".encode("latin-1").decode("latin-1")),
        bearer(USE_KEY.digest.hex()),
    ],
)
def test_without_a_known_key(guarded, fake_engine, headers):
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    response = guarded.post("/evaluate", json=BODY, headers=encoded)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert response.headers["connection"] == "close"
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "/problems/unauthorized"
    assert response.json()["request_id"] == response.headers["x-request-id"]
    assert USE[:-1] not in response.text
    assert fake_engine.calls == []


@pytest.mark.parametrize("key", [USE, ADMIN], ids=["use", "admin"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_with_a_known_key(guarded, key, scheme):
    response = guarded.post("/evaluate", json=BODY, headers={"Authorization": f"{scheme} {key}"})
    assert response.status_code == 200


@pytest.mark.parametrize("path", OPEN)
def test_what_is_open_to_all(guarded, path):
    assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/models", "/models/echo", "/metrics", "/nowhere", "/health", "/health/live/x", "/"])
def test_everything_else_needs_a_key(guarded, path):
    assert guarded.get(path).status_code == 401
    assert guarded.get(path, headers=bearer(USE)).status_code in (200, 404)


def test_a_refused_body_is_not_read(guarded):
    def body():
        yield b"{"
        raise AssertionError("read")

    assert guarded.post("/evaluate", content=body()).status_code == 401


def with_admin_route(app):
    @app.delete("/thing", dependencies=[requires("admin")])
    async def delete() -> dict[str, bool]:
        return {"deleted": True}

    return TestClient(app)


@pytest.fixture
def admin_route(keys_file, fake_engine, fake_operators):
    """A server with a route that names its role."""
    settings = Settings(api_keys_file=keys_file)
    app = create_app(settings, engine_factory=lambda _: fake_engine, operators=fake_operators)
    with with_admin_route(app) as client:
        yield client


def test_a_route_that_names_its_role(admin_route):
    assert admin_route.delete("/thing").status_code == 401
    refused = admin_route.delete("/thing", headers=bearer(USE))
    assert refused.status_code == 403
    assert refused.json()["type"] == "/problems/forbidden"
    assert (refused.json()["expected"], refused.json()["received"]) == ("admin", "use")
    assert USE not in refused.text
    assert admin_route.delete("/thing", headers=bearer(ADMIN)).json() == {"deleted": True}


def test_without_keys_everybody_has_every_role(fake_app):
    with with_admin_route(fake_app) as client:
        assert client.delete("/thing").json() == {"deleted": True}
        assert client.get("/metrics").status_code == 200


def test_a_damaged_file_is_an_error_at_start(make_shell, keys_file):
    keys_file.write_text(f"{USE_KEY.line}\nnonsense\n")
    with pytest.raises(keys.InvalidKeyFile, match="line 2"), make_shell(api_keys_file=keys_file):
        pass


def test_the_document_tells_of_keys(guarded, shell):
    document = guarded.get("/openapi.json").json()
    OpenAPI.model_validate(document)
    (name,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][name]["scheme"] == "bearer"
    assert document["security"] == [{name: []}]
    operations = {path: op for path, methods in document["paths"].items() for op in methods.values()}
    assert {path for path, operation in operations.items() if operation.get("security") == []} == {
        "/health/live",
        "/health/ready",
        "/problems",
        "/problems/{slug}",
    }
    assert "echo" not in guarded.get("/openapi.json").text  # Names of models are for those with a key.
    assert "echo" in shell.get("/openapi.json").text
    assert "securitySchemes" not in shell.get("/openapi.json").json()["components"]


def test_the_client_sends_its_key(guarded):
    with pushforward.Client("http://testserver", transport=guarded._transport, api_key=USE) as client:
        assert client.evaluate("echo", [[[1.0]]]).outputs["y"].item() == 2.0
    with pushforward.Client("http://testserver", transport=guarded._transport) as client:
        with pytest.raises(pushforward.errors.Unauthorized) as caught:
            client.models()
        assert caught.value.request_id
