"""Bodies that lie, and bombs, against a server process of its own: the documented answer, and no harm done."""

import base64
import gzip
import io
import json
import re
import socket
import zipfile
import zlib

import numpy as np
import pytest

from pushforward.wire import Message, codecs
from tests.app.process import JSON, LIMIT, REQUEST, X, answer, head, send

pytestmark = pytest.mark.timeout(300)

SAFETENSORS, NPZ = (codecs()[name].media_type for name in ("safetensors", "npz"))


def check(found, status, slug):
    assert found[0] == status, found
    assert json.loads(found[1])["type"] == f"/problems/{slug}"
    return json.loads(found[1])["detail"]


def flood(connection, chunk, size):
    """Send a chunked body of `size` bytes, until the server closes; the bytes sent."""
    chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
    for sent in range(0, size, len(chunk)):
        try:
            connection.sendall(chunk)
        except ConnectionError:
            return sent
    return size


@pytest.mark.parametrize("encoding", [None, "gzip"])
@pytest.mark.parametrize("path", ["/jvp", "/nowhere", "/health/live"])
def test_chunks_of_10_gb(target, encoding, path):
    headers = () if encoding is None else (f"Content-Encoding: {encoding}",)
    noise = np.random.default_rng(0).bytes(2**16)
    chunk = noise if encoding is None else gzip.compress(noise)
    with target.connect() as connection:
        connection.sendall(head(None, JSON, *headers, path=path))
        sent = flood(connection, chunk, 10**10)
    assert sent < 2 * LIMIT + 20e6  # What lies in the buffers of the system counts as sent.


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_told_so(target, chunked):
    with target.connect() as connection:
        connection.sendall(head(None if chunked else LIMIT + 2**16))
        if chunked:
            flood(connection, bytes(2**16), LIMIT + 2**16)
        else:
            connection.sendall(bytes(LIMIT + 2**16))
        detail = check(answer(connection), 413, "too-large")
    assert str(LIMIT) in detail


def one_member():
    """10 GB of zeros in one member of 10 MB: the same block again and again, each byte-aligned."""
    packer = zlib.compressobj(9, wbits=31)
    start = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + (packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 10_000


BOMBS = {"one member": one_member, "10,000 members": lambda: gzip.compress(bytes(2**20)) * 10_000}


@pytest.mark.parametrize("kind", BOMBS)
def test_10_mb_of_gzip_that_are_10_gb(target, kind):
    bomb = BOMBS[kind]()
    assert 9e6 < len(bomb) < 11e6
    detail = check(send(target, bomb, JSON, "Content-Encoding: gzip"), 413, "too-large")
    assert "once decompressed" in detail


def test_many_empty_members(target):
    content = gzip.compress(b"") * (LIMIT // 20)
    check(send(target, content, JSON, "Content-Encoding: gzip"), 400, "malformed-body")


def test_two_members(target):
    content = gzip.compress(REQUEST[:50]) + gzip.compress(REQUEST[50:])
    status, body = send(target, content, JSON, "Content-Encoding: gzip")
    assert status == 200
    assert json.loads(body)["tangents"]["y"] == target.jvp()


@pytest.mark.parametrize("content", [gzip.compress(REQUEST)[:-20], gzip.compress(REQUEST) + b"more", REQUEST])
def test_damaged_gzip(target, content):
    detail = check(send(target, content, JSON, "Content-Encoding: gzip"), 400, "malformed-body")
    assert re.search(r"byte \d+", detail)


@pytest.mark.parametrize("length", ["-5", "x", "5, 6", "1e3", "0x10", "9" * 30, "+5", ""])
def test_a_length_that_is_none(target, length):
    with target.connect() as connection:
        connection.sendall(head(length) + REQUEST)
        assert answer(connection)[0] in (400, 413)


def test_two_lengths(target):
    with target.connect() as connection:
        connection.sendall(head(5, JSON, "Content-Length: 6") + REQUEST)
        assert answer(connection)[0] == 400


@pytest.mark.parametrize("headers", [("Content-Length: 5",), ("Transfer-Encoding: gzip, chunked",)])
def test_a_length_and_chunks(target, headers):
    with target.connect() as connection:
        connection.sendall(head(None, JSON, *headers) + b"5\r\n12345\r\n0\r\n\r\n")
        assert answer(connection)[0] in (400, 501)


def test_a_length_that_is_too_short(target):
    with target.connect() as connection:
        connection.sendall(head(len(REQUEST) - 1) + REQUEST + b"\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(2**16), b""))
    # To the body, and to what follows, which is no request.
    assert set(re.findall(rb"^HTTP/1.1 (\d+)", received, re.MULTILINE)) == {b"400"}


def test_a_length_that_is_too_long(target):
    with target.connect() as connection:
        connection.sendall(head(len(REQUEST) + 1) + REQUEST)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


@pytest.mark.parametrize("size", [b"-5", b"x", b"0x5", b"f" * 99])
def test_a_chunk_that_lies(target, size):
    with target.connect() as connection:
        connection.sendall(head(None) + size + b"\r\n" + REQUEST)
        assert answer(connection)[0] in (400, 413)


def lists(text):
    return b'{"model": "stacked-rnn", "inputs": {"x": [' + text + b"]}}"


def base64_array(**changes):
    array = {"dtype": "float64", "shape": [1, 5, 4], "base64": base64.b64encode(X.tobytes()).decode()} | changes
    return json.dumps({"model": "stacked-rnn", "inputs": {"x": array}}).encode()


def tensors(**changes):
    entry = {"dtype": "F64", "shape": [1, 5, 4], "data_offsets": [0, 160]} | changes
    header = json.dumps({"inputs.x": entry}).encode()
    return len(header).to_bytes(8, "little") + header + X.tobytes()


def npy(descr="'<f8'", shape="(1, 5, 4)"):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + X.tobytes()


def archive(*entries, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for number, data in enumerate(entries):
            file.writestr(f"inputs.x{number or ''}.npy", data)
    return buffer.getvalue()


def understated():
    """An entry of 100 MB that says it has 1,000 bytes."""
    bomb = bytearray(archive(bytes(10**8), compression=zipfile.ZIP_DEFLATED))
    for position in (bomb.find(b"PK\x01\x02") + 24, 22):
        bomb[position : position + 4] = (1000).to_bytes(4, "little")
    return bytes(bomb)


MALFORMED, ARRAY, LARGE = (400, "malformed-body"), (422, "invalid-array"), (413, "too-large")
CORPUS = {
    "base64 of 1e12": (JSON, lambda: base64_array(shape=[10**12]), ARRAY),
    "base64 of 1e6 x 1e6": (JSON, lambda: base64_array(shape=[10**6, 10**6, 1]), ARRAY),
    "base64 of 64 axes": (JSON, lambda: base64_array(shape=[10**9] * 64), ARRAY),
    "base64 of objects": (JSON, lambda: base64_array(dtype="object"), ARRAY),
    "base64 of text": (JSON, lambda: base64_array(dtype="U1000000000"), ARRAY),
    "base64 of a structure": (JSON, lambda: base64_array(dtype=[["a", "f8"]]), ARRAY),
    "lists nested deeply": (JSON, lambda: b"[" * 900_000, MALFORMED),
    "10 million lists nested deeply": (JSON, lambda: b"[" * 10**7, LARGE),
    "objects nested deeply": (JSON, lambda: b'{"a":' * 200_000, MALFORMED),
    "2 million objects nested deeply": (JSON, lambda: b'{"a":' * 2_000_000, LARGE),
    "an option nested deeply": (JSON, lambda: b'{"model": ' + b"[" * 500 + b"]" * 500 + b"}", MALFORMED),
    "5 million lists": (JSON, lambda: lists(b"[]," * 5_000_000 + b"[]"), LARGE),
    "1.5 million lists": (JSON, lambda: lists(b"[]," * 1_500_000 + b"[]"), LARGE),
    "7 million lists without commas": (JSON, lambda: lists(b"[]" * 7_000_000), LARGE),
    "a million objects": (JSON, lambda: lists(b"{}," * 1_000_000 + b"{}"), LARGE),
    "8 million numbers": (JSON, lambda: lists(b"0," * 7_900_000 + b"0"), LARGE),
    "a number of a million digits": (JSON, lambda: lists(b"1" * 1_000_000), MALFORMED),
    "safetensors of 1e12": (SAFETENSORS, lambda: tensors(shape=[10**12]), MALFORMED),
    "safetensors to byte 8e12": (
        SAFETENSORS,
        lambda: tensors(shape=[10**12], data_offsets=[0, 8 * 10**12]),
        MALFORMED,
    ),
    "safetensors of 5,000 digits": (SAFETENSORS, lambda: tensors(shape=["N"]).replace(b'"N"', b"9" * 5000), MALFORMED),
    "safetensors of objects": (SAFETENSORS, lambda: tensors(dtype="O"), MALFORMED),
    "safetensors header of 1e18": (SAFETENSORS, lambda: (10**18).to_bytes(8, "little") + b"{}", MALFORMED),
    "safetensors header of lists": (
        SAFETENSORS,
        lambda: (4 * 10**6).to_bytes(8, "little") + b'{"x":[' + b"[]," * 1_333_330 + b"1]} ",
        MALFORMED,
    ),
    "npz of 1e12": (NPZ, lambda: archive(npy(shape="(1000000000000,)")), MALFORMED),
    "npz of objects": (NPZ, lambda: archive(npy(descr="'|O'")), MALFORMED),
    "npz of text": (NPZ, lambda: archive(npy(descr="'<U1000000000'")), MALFORMED),
    "npz of a structure": (NPZ, lambda: archive(npy(descr="[('a', '<f8', (1000000000,))]")), MALFORMED),
    "npz of arrays in arrays": (NPZ, lambda: archive(npy(descr="('<f8', (1000000, 1000000))")), MALFORMED),
    "npz that is 100 MB": (NPZ, lambda: archive(bytes(10**8), compression=zipfile.ZIP_DEFLATED), LARGE),
    "npz that is 100 MB together": (
        NPZ,
        lambda: archive(*[bytes(10**6)] * 100, compression=zipfile.ZIP_DEFLATED),
        LARGE,
    ),
    "npz that understates": (NPZ, understated, MALFORMED),
    "npz of 100,000 entries": (NPZ, lambda: archive(*[b""] * 100_000), MALFORMED),
    "npz with bzip2": (NPZ, lambda: archive(bytes(10**8), compression=zipfile.ZIP_BZIP2), LARGE),
}


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_bodies(target, name, encoding):
    media_type, make, (status, slug) = CORPUS[name]
    content = make()
    assert len(content) < LIMIT
    if encoding == "gzip":
        content = gzip.compress(content, 1)
    found = send(target, content, media_type, f"Content-Encoding: {encoding}", path="/evaluate")
    check(found, status, slug)
    assert len(found[1]) < 3000


@pytest.mark.parametrize(
    ("path", "steps", "options"),
    [("/evaluate", 50_000, {}), ("/jacobian", 200, {"of": "y", "wrt": "x"})],
    ids=["computed", "before it is computed"],
)
def test_an_answer_over_the_limit(target, path, steps, options):
    content = codecs()["npz"].encode(Message({"model": "stacked-rnn"} | options, {"inputs.x": np.zeros((1, steps, 4))}))
    detail = check(send(target, content, NPZ, path=path), 413, "too-large")
    assert "PUSHFORWARD_MAX_RESPONSE_MB" in detail
