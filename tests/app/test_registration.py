"""Models that come and go while the server runs."""

import json
import os
import time
from contextlib import contextmanager

import numpy as np
import pytest
from fastapi.testclient import TestClient

import app.registration
from app.main import create_app
from app.settings import Settings
from models.gradcheck import compare
from models.loader import Report
from tests.architectures import ARCHITECTURES, build
from tests.hostile import HOSTILE, marker
from tests.stock import Stock

X = [[[0.5, -1.0], [0.25, 2.0]]]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Two archives whose models differ in their weights only, as bytes, and what they answer to X."""
    import keras

    path, found = tmp_path_factory.mktemp("archives") / "m.keras", []
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        network = keras.Sequential([keras.Input((None, 2)), keras.layers.GRU(3, name="gru")])
        network.save(path)
        found.append((path.read_bytes(), network(np.array(X, np.float32)).numpy()))
    return found


@pytest.fixture
def proved():
    """Asked for by tests in which archives are proved as they are in earnest."""


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """Prove archives here and not in a process of their own, except where that is what is tested."""
    if "proved" not in request.fixturenames:
        monkeypatch.setattr(app.registration, "prove", lambda *_, **__: Report(1e-16, 1, compiled=True))


@contextmanager
def serving(**settings):
    settings = {"models": (), "warm": False, "compiled_programs": 0, **settings}
    with TestClient(create_app(Settings(**settings))) as client:
        yield client


@pytest.fixture(scope="module")
def client():
    """One server for all tests that give their models names of their own."""
    with serving(models=("stacked-rnn",)) as client:
        yield client


def put(client, name, archive, status=201, **options):
    response = client.put(f"/models/{name}", content=archive[0], **options)
    assert response.status_code == status, response.text
    return response.json()


def evaluated(client, model):
    response = client.post("/evaluate", json={"model": model, "inputs": {"x": X}})
    assert response.status_code == 200, response.text
    return np.array(response.json()["outputs"]["y"], np.float32)


def answers(client, model, archive):
    np.testing.assert_allclose(evaluated(client, model), archive[1], rtol=1e-6, atol=1e-7)


def versions(client, name):
    return [version["version"] for version in client.get(f"/models/{name}").json()["versions"]]


def refused(response, status, slug, *words):
    assert (response.status_code, response.json()["type"]) == (status, f"/problems/{slug}"), response.text
    for word in words:
        assert word in response.json()["detail"]


@pytest.mark.usefixtures("proved")
def test_each_archive_is_a_version_and_the_bare_name_means_the_latest(client, archives):
    first, second = archives
    created = client.put("/models/alpha", content=first[0])
    assert created.headers["Location"] == "/models/alpha@1"
    assert (created.json()["name"], created.json()["version"]) == ("alpha", 1)
    assert created.json()["adjoint_error"] < 1e-5
    answers(client, "alpha", first)
    assert put(client, "alpha", second)["version"] == 2
    answers(client, "alpha", second)
    answers(client, "alpha@1", first)
    answers(client, "alpha@2", second)
    (entry,) = [m for m in client.get("/models").json() if m["name"] == "alpha"]
    assert (entry["version"], entry["versions"]) == (2, [1, 2])
    assert versions(client, "alpha") == [1, 2]
    assert client.get("/models/alpha@1").json()["version"] == 1


def test_the_answers_of_other_models_stay_as_they_are(client, archives):
    request = {"model": "stacked-rnn", "inputs": {"x": [[[1.0, 2.0, 3.0, 4.0]]]}}
    before = client.post("/evaluate", json=request).json()["outputs"]
    put(client, "beta", archives[0])
    assert client.post("/evaluate", json=request).json()["outputs"] == before
    client.delete("/models/beta")
    assert client.post("/evaluate", json=request).json()["outputs"] == before


def test_a_removed_version_is_gone_and_its_number_stays_taken(client, archives):
    first, second = archives
    for archive in (first, second, second):
        put(client, "gamma", archive)
    assert client.delete("/models/gamma", params={"version": 3}).status_code == 204
    assert client.delete("/models/gamma", params={"version": 1}).status_code == 204
    assert versions(client, "gamma") == [2]
    refused(client.get("/models/gamma@1"), 404, "unknown-model", "no version '1'", "2")
    refused(client.post("/evaluate", json={"model": "gamma@3", "inputs": {"x": X}}), 404, "unknown-model")
    refused(client.delete("/models/gamma", params={"version": 1}), 404, "unknown-model")
    answers(client, "gamma", second)
    assert put(client, "gamma", first)["version"] == 4


def test_a_removed_model_is_gone(client, archives):
    put(client, "delta", archives[0])
    put(client, "delta", archives[1])
    evaluated(client, "delta")
    assert 'model="delta"' in client.get("/metrics").text
    assert client.delete("/models/delta").status_code == 204
    assert "delta" not in [m["name"] for m in client.get("/models").json()]
    refused(client.get("/models/delta"), 404, "unknown-model", "stacked-rnn")
    refused(client.delete("/models/delta"), 404, "unknown-model")
    assert 'compute_seconds_count{model="delta"' not in client.get("/metrics").text
    # A kind of request that the first model was seen with is checked anew on the next.
    assert put(client, "delta", archives[1])["version"] == 3
    answers(client, "delta", archives[1])


def test_another_precision(client, archives):
    put(client, "wide", archives[0], params={"dtype": "float64"})
    described = client.get("/models/wide").json()
    assert described["dtype"] == "float64"
    assert {a["dtype"] for kind in ("inputs", "states", "parameters", "outputs") for a in described[kind]} == {
        "float64"
    }
    np.testing.assert_allclose(evaluated(client, "wide"), archives[0][1], rtol=1e-5)


def test_only_if_there_is_none(client, archives):
    once = {"headers": {"If-None-Match": "*"}}
    assert put(client, "epsilon", archives[0], **once)["version"] == 1
    refused(
        client.put("/models/epsilon", content=archives[1][0], **once), 412, "already-registered", "latest version is 1"
    )
    answers(client, "epsilon", archives[0])
    other = client.put("/models/epsilon", content=archives[1][0], headers={"If-None-Match": '"1"'})
    refused(other, 422, "invalid-request", "expected *")


def test_the_names_of_built_in_models_are_taken(client, archives):
    refused(client.put("/models/stacked-rnn", content=archives[0][0]), 409, "reserved-name", "PUSHFORWARD_MODELS")
    refused(client.delete("/models/stacked-rnn"), 409, "reserved-name", "PUSHFORWARD_MODELS")
    assert put(client, "seed-gru", archives[0])["version"] == 1  # Not served here, so the name is free.


@pytest.mark.parametrize("name", ["-mine", "a b", "mine@1", "x" * 101])
def test_a_name_that_no_model_can_have(client, archives, name):
    refused(client.put(f"/models/{name}", content=archives[0][0]), 422, "invalid-request", "letters, digits")


def test_what_is_no_archive(client, archives):
    refused(client.put("/models/zeta", content=b""), 400, "malformed-body", ".keras")
    refused(client.put("/models/zeta", content=archives[0][0][:-200]), 400, "malformed-body", ".keras")
    refused(client.put("/models/zeta", params={"dtype": "int8"}, content=archives[0][0]), 422, "invalid-request")
    refused(client.get("/models/zeta"), 404, "unknown-model")


def test_an_archive_over_the_limit_of_bodies(archives):
    with serving(max_body_mb=0.01) as client:
        refused(client.put("/models/mine", content=archives[0][0]), 413, "too-large")


def test_registering_needs_loopback_keys_or_a_setting(archives):
    with serving(host="0.0.0.0") as client:
        refused(client.put("/models/mine", content=archives[0][0]), 403, "forbidden", "PUSHFORWARD_API_KEYS_FILE")
        refused(client.delete("/models/mine"), 403, "forbidden", "PUSHFORWARD_UPLOADS")
    with serving(host="0.0.0.0", uploads=True) as client:
        put(client, "mine", archives[0])
    with serving(uploads=False) as client:
        refused(client.put("/models/mine", content=archives[0][0]), 403, "forbidden")


def test_registering_needs_a_key_of_an_administrator(archives, tmp_path):
    from app.keys import make

    keys = {role: make(role, role) for role in ("use", "admin")}
    (tmp_path / "keys").write_text("".join(key.line + "\n" for _, key in keys.values()))
    with serving(api_keys_file=tmp_path / "keys", host="0.0.0.0") as client:
        headers = {role: {"Authorization": f"Bearer {key}"} for role, (key, _) in keys.items()}
        assert client.put("/models/mine", content=archives[0][0]).status_code == 401
        refused(client.put("/models/mine", content=archives[0][0], headers=headers["use"]), 403, "forbidden")
        put(client, "mine", archives[0], headers=headers["admin"])
        assert client.get("/models/mine", headers=headers["use"]).status_code == 200
        refused(client.delete("/models/mine", headers=headers["use"]), 403, "forbidden")
        assert client.delete("/models/mine", headers=headers["admin"]).status_code == 204


def test_versions_outlast_the_server(archives, tmp_path):
    first, second = archives
    with serving(model_dir=tmp_path) as client:
        put(client, "mine", first)
        put(client, "mine", second)
        put(client, "wide", first, params={"dtype": "float64"})
        put(client, "gone", first)
        client.delete("/models/gone")
        described = [client.get(f"/models/{name}").json() for name in ("mine@1", "mine@2", "wide")]
    with serving(model_dir=tmp_path) as client:
        assert [client.get(f"/models/{name}").json() for name in ("mine@1", "mine@2", "wide")] == described
        answers(client, "mine@1", first)
        answers(client, "mine", second)
        assert client.get("/models/wide").json()["dtype"] == "float64"
        refused(client.get("/models/gone"), 404, "unknown-model")
        assert put(client, "gone", second)["version"] == 2


def test_without_a_directory_they_do_not(archives):
    with serving() as client:
        put(client, "mine", archives[0])
    with serving() as client:
        refused(client.get("/models/mine"), 404, "unknown-model")


def test_damaged_versions_are_skipped_and_reported(archives, tmp_path, caplog):
    with serving(model_dir=tmp_path) as client:
        for name in ("mine", "mine", "other"):
            put(client, name, archives[0])
    with (tmp_path / "mine" / "2" / "model.keras").open("r+b") as file:
        file.write(b"XX")
    record = tmp_path / "other" / "1" / "record.json"
    record.write_text(record.read_text()[:-5])
    with serving(model_dir=tmp_path) as client:
        assert versions(client, "mine") == [1]
        answers(client, "mine", archives[0])
        refused(client.get("/models/other"), 404, "unknown-model")
        assert "pushforward_archives_skipped 2.0" in client.get("/metrics").text
        assert put(client, "mine", archives[1])["version"] == 3
    assert "mine/2/model.keras" in caplog.text
    assert "other/1/record.json" in caplog.text


def test_a_version_that_is_damaged_after_the_start(archives, tmp_path):
    with serving(model_dir=tmp_path) as client:
        put(client, "mine", archives[0])
        put(client, "mine", archives[1])
    with serving(model_dir=tmp_path) as client:
        with (tmp_path / "mine" / "1" / "model.keras").open("r+b") as file:
            file.write(b"XX")
        refused(client.get("/models/mine@1"), 422, "unsafe-model", "mine@1 is damaged")
        answers(client, "mine", archives[1])


def test_an_older_version_is_of_what_was_checked_then(archives, tmp_path):
    """A version whose record was made to fit another archive is still loaded with all checks."""
    with serving(model_dir=tmp_path) as client:
        put(client, "mine", archives[0])
        put(client, "mine", archives[1])
    version = tmp_path / "mine" / "1"
    (version / "model.keras").write_bytes(b"no archive")
    from app.store import digest

    record = json.loads((version / "record.json").read_text())
    record["sha256"] = digest(version / "model.keras")
    (version / "record.json").write_text(json.dumps(record))
    with serving(model_dir=tmp_path) as client:
        assert client.get("/models/mine@1").status_code == 400
        answers(client, "mine", archives[1])


def test_two_servers_do_not_share_a_directory(tmp_path):
    with serving(model_dir=tmp_path), pytest.raises(BlockingIOError, match="another server"):
        serving(model_dir=tmp_path).__enter__()


def wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def latest(client, name):
    return next((m["version"] for m in client.get("/models").json() if m["name"] == name), 0)


def test_a_watched_directory(archives, tmp_path, caplog):
    first, second = archives
    watched, kept = tmp_path / "watched", tmp_path / "kept"
    watched.mkdir()
    (watched / "early.keras").write_bytes(first[0])
    (watched / "bad.keras").write_bytes(b"no archive")
    (watched / "stacked-rnn.keras").write_bytes(first[0])
    settings = {"watch_dir": watched, "watch_s": 0.05, "model_dir": kept, "models": ("stacked-rnn",)}
    with serving(**settings) as client:
        answers(client, "early@1", first)
        assert "bad.keras can't be registered" in caplog.text
        assert "stacked-rnn.keras can't be registered" in caplog.text
        (watched / "late.keras").write_bytes(first[0])
        wait_for(lambda: latest(client, "late") == 1)
        answers(client, "late", first)
        (watched / "late.keras").write_bytes(second[0])
        os.utime(watched / "late.keras", ns=(1, 1))
        wait_for(lambda: latest(client, "late") == 2)
        answers(client, "late", second)
        assert client.get("/models/bad").status_code == 404
    with serving(**settings) as client:
        assert versions(client, "early") == [1]
        assert versions(client, "late") == [1, 2]


@pytest.mark.usefixtures("proved")
def test_archives_that_cannot_be_served_do_not_stop_the_start(archives, tmp_path, caplog):
    import keras

    class Mine(keras.layers.Layer):
        def call(self, x):
            return x

    def save(name, *layers):
        keras.Sequential([keras.Input((None, 2)), *layers]).save(tmp_path / f"{name}.keras")

    save("code", keras.layers.Lambda(lambda x: 2 * x), keras.layers.GRU(3))
    save("unknown", Mine(), keras.layers.GRU(3))
    save("brain", keras.layers.Dense(3, dtype="bfloat16"))
    (tmp_path / "text.keras").write_text("no archive")
    (tmp_path / "short.keras").write_bytes(archives[0][0][:-500])
    (tmp_path / "good.keras").write_bytes(archives[0][0])
    (tmp_path / "a name.keras").write_bytes(archives[0][0])
    with serving(watch_dir=tmp_path) as client:
        assert [m["name"] for m in client.get("/models").json()] == ["good"]
        assert "pushforward_archives_skipped 6.0" in client.get("/metrics").text
    for name, reason in {
        "code": "ambda",
        "unknown": "Mine",
        "brain": "bfloat16",
        "text": ".keras archive",
        "short": ".keras archive",
        "a name": "letters, digits",
    }.items():
        (line,) = [r.getMessage() for r in caplog.records if f"{name}.keras can't be registered" in r.getMessage()]
        assert reason in line


def test_a_watched_directory_that_does_not_exist_yet(archives, tmp_path):
    watched = tmp_path / "later"
    with serving(watch_dir=watched, watch_s=0.05) as client:
        watched.mkdir()
        (watched / "mine.keras").write_bytes(archives[0][0])
        wait_for(lambda: latest(client, "mine") == 1)
        answers(client, "mine", archives[0])


@pytest.mark.usefixtures("proved")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(client, name, tmp_path):
    make, status, words = HOSTILE[name]
    refused(client.put("/models/hostile", content=make(tmp_path).read_bytes()), status, *words_of(status), *words)
    assert not marker(tmp_path).exists()
    refused(client.get("/models/hostile"), 404, "unknown-model")


def words_of(status):
    return ["malformed-body"] if status == 400 else ["unsafe-model"]


@pytest.mark.usefixtures("proved")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "residual" else pytest.mark.slow) for name in ARCHITECTURES]
)
def test_derivatives_of_uploaded_models(client, name, tmp_path):
    network, arrays = build(name)
    network.save(tmp_path / "m.keras")
    model = name.replace("_", "-")
    described = put(client, model, [(tmp_path / "m.keras").read_bytes()], params={"dtype": "float64"})
    stock, names = Stock(network, arrays), [a["name"] for a in described["inputs"]]
    outputs = [a["name"] for a in described["outputs"]]
    moving = [names[i] for i in stock.moving]
    request = {"model": model, "inputs": {n: a.tolist() for n, a in zip(names, arrays, strict=True)}}
    rng = np.random.default_rng(3)

    def ask(operator, **fields):
        response = client.post(f"/{operator}", json={**request, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def close(found, wanted):
        assert compare({"": np.array(found)}, {"": wanted}, floor=1e-3) < 1e-10

    cotangents = [rng.normal(size=t.shape) for t in stock.outputs()]
    pulled = stock.vjp(cotangents)
    given = dict(zip(outputs, (c.tolist() for c in cotangents), strict=True))
    parameters = [a["name"] for a in described["parameters"]]
    found = ask("vjp", cotangents=given, wrt=[*moving, *parameters])
    for n, wanted in zip(outputs, stock.outputs(), strict=True):
        close(found["outputs"][n], wanted)
    for n, wanted in zip(moving, pulled, strict=False):
        close(found["cotangents"][n], wanted)
    # Which weight is which is a matter of names; together they must be the same.
    weights = [np.array(found["cotangents"][n]) for n in parameters]
    sizes = sorted((w.shape, float(np.linalg.norm(w))) for w in weights)
    wanted = sorted((w.shape, float(np.linalg.norm(w))) for w in pulled[len(moving) :])
    assert [shape for shape, _ in sizes] == [shape for shape, _ in wanted]
    np.testing.assert_allclose([size for _, size in sizes], [size for _, size in wanted], rtol=1e-10, atol=1e-12)
    if not moving:
        return
    tangents = [rng.normal(size=arrays[i].shape) for i in stock.moving]
    pushed = ask("jvp", tangents=dict(zip(moving, (t.tolist() for t in tangents), strict=True)))["tangents"]
    for n, wanted in zip(outputs, stock.jvp(tangents), strict=True):
        close(pushed[n], wanted)
    # One row of one slice: d y[..., 0] / d x at the last index of every axis but the first of each.
    of, wrt = outputs[0], moving[0]
    last = [-1] * (cotangents[0].ndim - 1)
    one = np.zeros_like(cotangents[0])
    one[(slice(None), *last)] = 1.0
    row = stock.vjp([one, *(np.zeros_like(c) for c in cotangents[1:])])[0]
    slices = f"{of}[{', '.join(map(str, last))}]"
    close(ask("jacobian", of=slices, wrt=wrt)["jacobian"], row)
