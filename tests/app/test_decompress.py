import gzip
import json
import random
import threading
import zlib

import numpy as np
import pytest

from app.decompress import Gunzip
from pushforward.errors import MalformedBody

BODY = b'{"model": "echo", "inputs": {"x": [1.0]}}'
JSON = {"Content-Type": "application/json"}
GZIP = JSON | {"Content-Encoding": "gzip"}


def inflate(pieces):
    gunzip, found = Gunzip(), []
    for piece in pieces:
        gunzip.feed(piece)
        while step := gunzip.read():
            assert len(step) <= 2**18
            found.append(step)
    gunzip.finish()
    return b"".join(found)


def cut(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 100, 4096, 10**7])
@pytest.mark.parametrize(
    "text",
    [b"", b"x", bytes(2**18), bytes(2**18 + 1), random.Random(0).randbytes(300_000)],
    ids=["empty", "short", "one chunk", "a chunk and a byte", "random"],
)
def test_however_it_comes(text, size):
    assert inflate(cut(gzip.compress(text, mtime=0), size)) == text


def test_random_texts_in_random_pieces():
    draw = random.Random(1)
    for _ in range(30):
        texts = [draw.randbytes(draw.randrange(3000)) * draw.randrange(400) for _ in range(draw.randrange(1, 5))]
        data = b"".join(map(gzip.compress, texts))
        assert inflate(cut(data, draw.randrange(1000, 100_000))) == b"".join(texts)


def test_every_truncation_is_noticed():
    whole = gzip.compress(BODY, mtime=0) + gzip.compress(BODY, mtime=0)
    first = len(whole) // 2
    for length in range(len(whole)):
        if length == first:
            continue
        with pytest.raises(MalformedBody, match=rf"^body: gzip: truncated, ends at byte {length} within a member$"):
            inflate([whole[:length]])


@pytest.mark.parametrize("rest", [b"garbage", bytes(8), BODY, b"\x1f\x8c12345678", zlib.compress(BODY)])
def test_what_follows_must_be_another_member(rest):
    member = gzip.compress(BODY, mtime=0)
    with pytest.raises(MalformedBody, match=rf"something else follows, after byte {len(member)}: incorrect header"):
        inflate([member + rest])


def test_damage():
    whole = bytearray(gzip.compress(BODY, mtime=0))
    whole[-6] ^= 1
    with pytest.raises(MalformedBody, match=r"^body: gzip: damaged.* after byte 0: incorrect data check"):
        inflate([bytes(whole)])


def test_a_step_inflates_little_and_keeps_the_rest():
    gunzip = Gunzip()
    gunzip.feed(gzip.compress(bytes(10**7)))
    assert [len(gunzip.read()) for _ in range(3)] == [2**18] * 3


@pytest.mark.parametrize("encoding", ["gzip", "GZip ", "x-gzip"])
@pytest.mark.parametrize(
    "content", [gzip.compress(BODY, mtime=0), gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0)]
)
def test_gzip(shell, encoding, content):
    response = shell.post("/evaluate", content=content, headers=JSON | {"Content-Encoding": encoding})
    assert response.status_code == 200, response.text
    assert response.json()["outputs"] == {"y": [2.0]}


@pytest.mark.parametrize("content", [gzip.compress(BODY, mtime=0)[:-1], gzip.compress(BODY, mtime=0) + b"x", BODY, b""])
def test_malformed(shell, fake_engine, content):
    response = shell.post("/evaluate", content=content, headers=GZIP)
    assert response.status_code == 400
    assert response.json()["type"] == "/problems/malformed-body"
    assert response.json()["path"] == "body"
    assert "byte" in response.json()["detail"]
    assert fake_engine.calls == []


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "gzip, br", "identity, gzip", "zstd", "x" * 999])
def test_other_encodings(shell, fake_engine, encoding):
    response = shell.post("/evaluate", content=BODY, headers=JSON | {"Content-Encoding": encoding})
    problem = response.json()
    assert response.status_code == 415
    assert problem["type"] == "/problems/unsupported-media-type"
    assert problem["path"] == "Content-Encoding"
    assert problem["expected"] == ["gzip", "identity"]
    assert problem["received"] == encoding[:100]
    assert fake_engine.calls == []


def test_two_headers_are_a_list(shell):
    headers = [*JSON.items(), ("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")]
    assert shell.post("/evaluate", content=b"", headers=headers).status_code == 415


def test_identity(shell):
    headers = JSON | {"Content-Encoding": "identity"}
    assert shell.post("/evaluate", content=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize("more", [0, 1])
def test_the_limit_is_that_of_the_inflated_body(make_shell, fake_engine, more):
    body = BODY + b" " * (10**6 - len(BODY) + more)
    with make_shell(max_body_mb=1) as client:
        response = client.post("/evaluate", content=gzip.compress(body, mtime=0), headers=GZIP)
    assert response.status_code == (413 if more else 200)
    assert len(fake_engine.calls) == 1 - more
    if more:
        assert response.json()["type"] == "/problems/too-large"
        assert "at least 1000001 bytes once decompressed" in response.json()["detail"]
        assert "PUSHFORWARD_MAX_BODY_MB" in response.json()["detail"]


def test_a_bomb_is_inflated_no_further_than_the_limit(make_shell, monkeypatch):
    sizes = []
    read = Gunzip.read
    monkeypatch.setattr(Gunzip, "read", lambda self: (found := read(self), sizes.append(len(found)))[0])
    with make_shell(max_body_mb=1) as client:
        response = client.post("/evaluate", content=gzip.compress(bytes(10**8)), headers=GZIP)
    assert response.status_code == 413
    assert 10**6 < sum(sizes) <= 10**6 + 2**18


@pytest.mark.parametrize("count", [1, 100_000])
def test_much_is_inflated_in_a_thread(shell, monkeypatch, count):
    threads = []
    read = Gunzip.read
    monkeypatch.setattr(Gunzip, "read", lambda self: (threads.append(threading.current_thread().name), read(self))[1])
    x = np.linspace(0, 1, count)
    content = json.dumps({"model": "echo", "inputs": {"x": x.tolist()}}).encode()
    response = shell.post("/evaluate", content=gzip.compress(content, mtime=0), headers=GZIP)
    np.testing.assert_array_equal(response.json()["outputs"]["y"], 2 * x)
    in_threads = [name for name in threads if name.startswith("codec")]
    assert len(in_threads) >= len(threads) - 2 if count > 1 else not in_threads
