"""A hundred clients at once of one server process: each gets its own answer, whatever the others send."""

import asyncio

import numpy as np
import pytest

from app.calls import Call
from app.programs import Programs
from models.zoo import lstm_last, stacked_rnn
from pushforward.wire import Message, codecs
from tests.app.joining import OPERATORS, assert_same
from tests.app.serving import serving

pytestmark = pytest.mark.slow

CLIENTS, REQUESTS = 100, 3
FEATURES = {"stacked-rnn": (4, "float64"), "lstm-last": (8, "float32")}
CODEC = codecs()["safetensors"]


@pytest.fixture(scope="module")
def server():
    with serving(models="stacked-rnn,lstm-last") as server:
        yield server


@pytest.fixture(scope="module")
def alone():
    """What a call gives alone, without a server."""
    models = {m.MODEL.name: m.MODEL.load() for m in (stacked_rnn, lstm_last)}
    programs = Programs(compiled=0)

    def alone(operator, model, fields):
        work = OPERATORS[operator].prepare(models[model], Call(model, operator, fields, {})).work
        return programs.run(models[model], operator, work)[0]

    return alone


def draw(rng):
    """Draw a request, and the status that it must get: one of eight is bad in one of several ways."""
    model, operator = str(rng.choice(list(FEATURES))), str(rng.choice(["jvp", "vjp", "evaluate"]))
    features, dtype = FEATURES[model]
    rows, time = int(rng.integers(1, 5)), int(rng.integers(1, 13))
    x, v = (rng.normal(size=(rows, time, features)).astype(dtype) for _ in range(2))
    u = rng.normal(size=(rows, time, 4) if model == "stacked-rnn" else (rows, 1)).astype(dtype)
    fields = {"inputs": {"x": x}}
    if operator != "evaluate":
        fields |= {"tangents": {"x": v}} if operator == "jvp" else {"cotangents": {"y": u}}
    bad = {
        "model": lambda: ("nobody", fields, 404),
        "shape": lambda: (model, fields | {"inputs": {"x": x[:, :, 1:]}}, 422),
        "name": lambda: (model, fields | {"inputs": {"z": x}}, 422),
        "nan": lambda: (model, fields | {"inputs": {"x": np.where(x > 1, np.nan, x)}}, 200),
    }
    if rng.random() < 1 / 8:
        model, fields, status = bad[str(rng.choice(list(bad)))]()
        return operator, model, fields, status
    return operator, model, fields, 200


async def client(url, seed, together):
    """Send a few requests one after another, the first when all others do; return each with its answer."""
    import httpx2

    rng, found = np.random.default_rng(seed), []
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        await together.wait()
        for _ in range(REQUESTS):
            operator, model, fields, status = draw(rng)
            arrays = {f"{field}.{name}": a for field, group in fields.items() for name, a in group.items()}
            content = CODEC.encode(Message({"model": model}, arrays))
            response = await http.post(f"/{operator}", content=content, headers={"Content-Type": CODEC.media_type})
            found.append((operator, model, fields, status, response))
    return found


async def clients(url):
    together = asyncio.Barrier(CLIENTS)
    return await asyncio.gather(*(client(url, seed, together) for seed in range(CLIENTS)))


def test_each_of_a_hundred_clients_gets_its_own_answer(server, alone):
    joined, bad = [], 0
    for found in asyncio.run(clients(server.url)):
        for operator, model, fields, status, response in found:
            assert response.status_code == status, response.text
            if status != 200:
                bad += 1
                assert response.headers["content-type"] == "application/problem+json"
                continue
            answer = CODEC.decode(response.content)
            info = answer.envelope["info"]
            # Compiled programs round differently, by some units in the last place.
            times = 10.0 if info["compiled"] else 1.0
            assert_same(dict(answer.arrays), alone(operator, model, fields), info["dtype"], times)
            joined.append(info["batch_rows"] > info["rows"])
    assert bad > 5
    assert sum(joined) > len(joined) / 10, "hardly any were run together, so this shows nothing"
