import httpx2
import pytest

import pushforward
from pushforward.errors import AlreadyRegistered, UnknownModel

DESCRIPTION = {"name": "mine", "version": 2, "summary": "", "dtype": "float64", "notes": ["n"], "adjoint_error": 1e-16}
ARCHIVE = b"PK" + bytes(range(256)) * 4000


class Server:
    """Keeps what it was sent."""

    def __init__(self):
        self.requests, self.bodies, self.answer = [], [], httpx2.Response(201, json=DESCRIPTION)

    def __call__(self, request):
        self.requests.append(request)
        self.bodies.append(request.read())
        return self.answer

    @property
    def asked(self):
        request = self.requests[-1]
        return request.method, request.url.raw_path


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def client(server):
    with pushforward.Client("http://test/api/", transport=httpx2.MockTransport(server)) as client:
        yield client


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(ARCHIVE)
    return path


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_register_an_archive(client, server, archive, kind):
    assert client.register("mine", kind(archive)) == DESCRIPTION
    assert server.asked == ("PUT", b"/api/models/mine")
    assert server.bodies == [ARCHIVE]
    headers = server.requests[0].headers
    assert (headers["Content-Type"], headers["Content-Length"]) == ("application/zip", str(len(ARCHIVE)))
    assert "If-None-Match" not in headers


def test_register_in_another_precision_and_only_if_it_is_new(client, server, archive):
    client.register("a b/c", archive, dtype="float64", replace=False, timeout_s=700)
    assert server.asked == ("PUT", b"/api/models/a%20b%2Fc?dtype=float64")
    assert server.requests[0].headers["If-None-Match"] == "*"
    assert server.requests[0].extensions["timeout"]["read"] > 700


class Sizes(httpx2.BaseTransport):
    """Notes how large the pieces are in which a body comes."""

    def __init__(self):
        self.found = []

    def handle_request(self, request):
        self.found += map(len, request.stream)
        return httpx2.Response(201, json=DESCRIPTION)


def test_a_large_archive_is_read_as_it_is_sent(archive):
    sizes = Sizes()
    with pushforward.Client("http://test", transport=sizes) as client:
        client.register("mine", archive)
    assert sum(sizes.found) == len(ARCHIVE)
    assert max(sizes.found) < len(ARCHIVE) / 4


def test_register_a_model(client, server):
    import keras

    model = keras.Sequential([keras.Input((None, 2)), keras.layers.SimpleRNN(3)])
    client.register("mine", model)
    assert server.bodies[0].startswith(b"PK")
    assert b"config.json" in server.bodies[0]


def test_what_is_no_model_is_refused(client, server, tmp_path):
    with pytest.raises(TypeError, match=r"expected the path of a \.keras archive or a keras\.Model, got bytes"):
        client.register("mine", ARCHIVE)
    with pytest.raises(FileNotFoundError, match=r"none\.keras"):
        client.register("mine", tmp_path / "none.keras")
    assert not server.requests


@pytest.mark.parametrize(
    ("status", "slug", "kind"), [(412, "already-registered", AlreadyRegistered), (404, "unknown-model", UnknownModel)]
)
def test_refusals(client, server, archive, status, slug, kind):
    server.answer = httpx2.Response(
        status, json={"type": f"/problems/{slug}"}, headers={"Content-Type": "application/problem+json"}
    )
    with pytest.raises(kind):
        client.register("mine", archive, replace=False)
    with pytest.raises(kind):
        client.delete("mine")


def test_delete(client, server):
    server.answer = httpx2.Response(204)
    assert client.delete("mine") is None
    assert server.asked == ("DELETE", b"/api/models/mine")
    client.delete("mine", 3)
    assert server.asked == ("DELETE", b"/api/models/mine?version=3")
