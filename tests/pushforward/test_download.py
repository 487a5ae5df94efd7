import errno
import gzip
import json
import os
import socket
import sys
import threading

import httpx2
import numpy as np
import pytest

import pushforward
from pushforward.errors import ConnectionFailed, DeadlineExceeded, InvalidArray, InvalidSlice, PushforwardError
from pushforward.wire import Message, codecs

CODEC = codecs()["safetensors"]
X = np.zeros((1, 3, 2))
ENVELOPE = {
    "model": "m",
    "version": 3,
    "axes": ["batch", "y.feature", "x.time"],
    "info": {"mode": "forward", "check": {}},
}
ARRAYS = [
    np.random.default_rng(0).standard_normal((2, 3, 5)),
    np.arange(70_000, dtype=np.float32).reshape(7, 100, 100),
    np.array(1.5),
    np.array([np.nan, -0.0, np.inf], np.float32),
    np.zeros((2, 0, 3)),
]
J = ARRAYS[0]


def body(array=J, envelope=ENVELOPE, **others):
    return CODEC.encode(Message(envelope, {"jacobian": array, **others}))


def cut(blocks, error=None):
    yield from blocks
    raise error or httpx2.RemoteProtocolError("peer closed connection")


class Server:
    """Answers with these blocks, chunked or with a length, and remembers what it was asked."""

    def __init__(self):
        self.blocks = [body()]
        self.headers = {"Content-Type": CODEC.media_type}
        self.status = 200
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        return httpx2.Response(self.status, content=iter(self.blocks), headers=self.headers)

    def says(self, status, content, media_type):
        self.status, self.blocks, self.headers = status, [content], {"Content-Type": media_type}


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def client(server):
    with pushforward.Client("http://test/api/", transport=httpx2.MockTransport(server)) as client:
        yield client


def ask(client, **options):
    return client.jacobian("m", X, of="y[-1, :]", wrt="x[:, 0]", **options)


def outs(kind, array, folder):
    return {"memory": None, "path": folder / "j.npy", "text": str(folder / "j"), "array": np.zeros_like(array)}[kind]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
@pytest.mark.parametrize("size", [3, 65536, 10**9])
@pytest.mark.parametrize("kind", ["memory", "path", "text", "array"])
def test_every_byte_arrives(client, server, tmp_path, array, size, kind):
    whole = body(array)
    server.blocks = [whole[at : at + size] for at in range(0, len(whole), size)]
    out = outs(kind, array, tmp_path)
    answer = ask(client, out=out)
    assert isinstance(answer, pushforward.Jacobian)
    assert answer.jacobian.tobytes() == array.tobytes()
    assert (answer.jacobian.shape, answer.jacobian.dtype) == (array.shape, array.dtype)
    if kind == "array":
        assert answer.jacobian is out
    if kind in ("path", "text"):
        assert isinstance(answer.jacobian, np.memmap)
        assert not answer.jacobian.flags.writeable
        np.testing.assert_array_equal(np.load(out), array, strict=True)
        assert len(list(tmp_path.iterdir())) == 1


def test_what_is_asked_and_answered(client, server):
    server.blocks = [body(envelope={**ENVELOPE, "order": {"wrt": ["a[0:5]"]}})]
    answer = ask(client, mode="reverse", timeout_s=7, check=True)
    assert (answer.axes, answer.info, answer.model, answer.version, answer.order) == (
        ENVELOPE["axes"], ENVELOPE["info"], "m", 3, {"wrt": ["a[0:5]"]},
    )  # fmt: skip
    (request,) = server.requests
    asked = CODEC.decode(request.read())
    assert (request.method, request.url.path) == ("POST", "/api/jacobian")
    assert request.headers["Accept"] == CODEC.media_type
    assert request.headers["Accept-Encoding"] == "identity"
    assert asked.envelope == {
        "model": "m", "of": "y[-1, :]", "wrt": "x[:, 0]", "mode": "reverse", "timeout_s": 7, "check": True,
    }  # fmt: skip
    np.testing.assert_array_equal(asked.arrays["inputs.x"], X, strict=True)


def test_without_an_order(client):
    assert ask(client).order is None


def test_other_arrays_are_read_over(client, server):
    server.blocks = [body(J, before=np.zeros(3, np.complex64).view(np.float64), after=np.ones(3, np.float32))]
    np.testing.assert_array_equal(ask(client).jacobian, J, strict=True)


def test_an_existing_file_is_replaced_only_by_a_whole_one(client, server, tmp_path):
    np.save(tmp_path / "j.npy", X)
    server.blocks = [body()[:-1]]
    with pytest.raises(ConnectionFailed):
        ask(client, out=tmp_path / "j.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "j.npy"), X)
    server.blocks = [body()]
    ask(client, out=tmp_path / "j.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "j.npy"), J)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_keeps_leading_to_the_file(client, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "j.npy").symlink_to(tmp_path / "disk" / "big.npy")
    ask(client, out=tmp_path / "j.npy")
    assert (tmp_path / "j.npy").is_symlink()
    np.testing.assert_array_equal(np.load(tmp_path / "disk" / "big.npy"), J)


def test_into_a_memory_map(client, tmp_path):
    out = np.lib.format.open_memmap(tmp_path / "j.npy", mode="w+", dtype=J.dtype, shape=J.shape)
    assert ask(client, out=out).jacobian is out
    np.testing.assert_array_equal(np.load(tmp_path / "j.npy"), J)


@pytest.mark.parametrize(
    ("out", "received"),
    [
        (np.full((2, 3, 4), 7.0), r"shape \(2, 3, 4\) of float64"),
        (np.full(30, 7.0), r"shape \(30,\) of float64"),
        (np.full((2, 3, 5), 7, np.float32), r"shape \(2, 3, 5\) of float32"),
        (np.full((2, 3, 5), 7, ">f8"), r"shape \(2, 3, 5\) of >f8"),
    ],
)
def test_an_array_that_does_not_fit(client, out, received):
    with pytest.raises(ValueError, match=rf"^out: expected shape \(2, 3, 5\) of float64, got {received}$"):
        ask(client, out=out)
    assert (out == 7).all()


def readonly():
    array = np.zeros_like(J)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("out", [np.zeros_like(J, order="F"), np.zeros((4, 3, 5))[::2], readonly()])
def test_an_array_that_can_not_be_filled_is_refused_before_anything_is_sent(client, server, out):
    with pytest.raises(ValueError, match=r"^out: expected a C-contiguous array that can be written to"):
        ask(client, out=out)
    assert not server.requests


@pytest.mark.parametrize(("out", "error"), [("", IsADirectoryError), ("none/j.npy", FileNotFoundError)])
def test_a_path_that_can_not_be_written_is_refused_before_anything_is_sent(client, server, tmp_path, out, error):
    with pytest.raises(error):
        ask(client, out=tmp_path / out)
    assert not server.requests


def test_what_is_no_place_at_all(client, server):
    with pytest.raises(TypeError):
        ask(client, out=[0.0])
    assert not server.requests


@pytest.mark.parametrize("kind", ["memory", "path", "array"])
@pytest.mark.parametrize("keep", [4, 20, -1, -100], ids=lambda keep: f"[:{keep}]")
@pytest.mark.parametrize("how", [list, cut], ids=["ends", "breaks"])
def test_a_short_body(client, server, tmp_path, kind, keep, how):
    whole = body()
    came = whole[:keep]
    server.blocks = how([came])
    # Before the header is there, nobody knows how much there is to come.
    announced = f" of {len(whole)} bytes" if keep < 0 else " bytes"
    with pytest.raises(ConnectionFailed, match=f"^lost http://test after {len(came)}{announced} of the answer: "):
        ask(client, out=outs(kind, J, tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_body_cut_after_its_last_byte(client, server, tmp_path):
    server.blocks = cut([body()])
    with pytest.raises(ConnectionFailed, match=f"after {len(body())} of {len(body())} bytes"):
        ask(client, out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("blocks", [[body() + b"\0"], [body(), b"", b"\0"]])
def test_a_long_body(client, server, tmp_path, blocks):
    server.blocks = blocks
    with pytest.raises(ConnectionFailed, match=f"sent {len(body()) + 1} bytes or more, of {len(body())} bytes"):
        ask(client, out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [-8, 8])
def test_two_lengths_that_differ(client, server, tmp_path, more):
    length = len(body()) + more
    server.headers |= {"Content-Length": str(length)}
    with pytest.raises(ConnectionFailed, match=f"sends {length} of {len(body())} bytes"):
        ask(client, out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())


def test_an_answer_that_stops_coming(client, server, tmp_path):
    server.blocks = cut([body()[:-8]], httpx2.ReadTimeout(""))
    with pytest.raises(DeadlineExceeded, match=rf"sent {len(body()) - 8} of {len(body())} bytes and then nothing .* 7"):
        ask(client, out=tmp_path / "j.npy", timeout_s=2)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_no_file(client, server, tmp_path):
    server.blocks = cut([body()[:-8]], KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        ask(client, out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())


def refusing(code):
    def posix_fallocate(*_):
        raise OSError(code, "no")

    return posix_fallocate


def test_a_full_disk_is_noticed_before_it_is_written_to(client, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.ENOSPC), raising=False)
    with pytest.raises(OSError, match="no") as caught:
        ask(client, out=tmp_path / "j.npy")
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_reserves_nothing(client, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.EOPNOTSUPP), raising=False)
    np.testing.assert_array_equal(ask(client, out=tmp_path / "j.npy").jacobian, J)
    monkeypatch.delattr(os, "posix_fallocate")
    np.testing.assert_array_equal(ask(client, out=tmp_path / "k.npy").jacobian, J)


@pytest.mark.parametrize("out", [None, "j.npy"])
def test_problems_are_raised_as_everywhere(client, server, tmp_path, out):
    problem = {"type": "/problems/invalid-slice", "detail": "of: no such axis", "path": "of", "request_id": "r"}
    server.says(422, json.dumps(problem).encode(), "application/problem+json")
    with pytest.raises(InvalidSlice, match=r"^of: no such axis$") as caught:
        ask(client, out=out and tmp_path / out)
    assert (caught.value.path, caught.value.request_id) == ("of", "r")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("status", "content", "media_type", "message"),
    [
        (200, b"<html>Welcome", "text/html", "the server's text/html answer can't be read: can't read text/html"),
        (200, b'{"jacobian": [1.0]}', "application/json", "application/json answer can't be read: it is not"),
        (200, b"", "", "the server's untyped answer can't be read: it is not application/x-safetensors"),
        (502, b"<html>Bad gateway", "text/html", "answered 502"),
        (307, b"", "text/plain", "answered 307"),
        (500, b"{", "application/problem+json", "answered 500"),
        (200, b"<html>Welcome, guest", CODEC.media_type, "can't be read: safetensors: a header of"),
        (200, (2).to_bytes(8, "little") + b"[]", CODEC.media_type, "can't be read: safetensors: the header is not"),
        (200, CODEC.encode(Message(ENVELOPE)), CODEC.media_type, "can't be read: it has no array 'jacobian'"),
        (200, body(envelope={}), CODEC.media_type, "the server's answer has no axes"),
    ],
)
def test_foreign_answers(client, server, tmp_path, status, content, media_type, message):
    server.says(status, content, media_type)
    with pytest.raises(PushforwardError, match=message) as caught:
        ask(client)
    assert type(caught.value) is PushforwardError


@pytest.mark.parametrize(("length", "message"), [(5, "5 bytes are too few"), (20, "in an answer of 20")])
def test_a_whole_answer_that_is_too_short_for_a_header(client, server, length, message):
    server.headers |= {"Content-Length": str(length)}
    server.blocks = [body()[:length]]
    with pytest.raises(PushforwardError, match=message) as caught:
        ask(client)
    assert type(caught.value) is PushforwardError


def test_an_answer_compressed_on_the_way(client, server):
    packed = gzip.compress(body())
    server.headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(packed))}
    server.blocks = [packed[:50], packed[50:]]
    np.testing.assert_array_equal(ask(client).jacobian, J, strict=True)
    server.blocks = [packed[:-100]]
    with pytest.raises(ConnectionFailed, match=f"of {len(body())} bytes"):
        ask(client)
    server.blocks = [b"no gzip"]
    with pytest.raises(ConnectionFailed, match="lost http://test after 0 bytes"):
        ask(client)


def test_progress(client, server, capsys):
    whole = body(ARRAYS[1])
    server.blocks = [whole[:1000], whole[1000:]]
    ask(client, progress=True)
    shown = capsys.readouterr().err
    assert "jacobian: 100%" in shown
    assert "280k/280k" in shown
    ask(client)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("array", [ARRAYS[2], ARRAYS[4]])
def test_progress_of_little_and_of_nothing(client, server, capsys, array):
    server.blocks = [body(array)]
    np.testing.assert_array_equal(ask(client, progress=True).jacobian, array, strict=True)


def test_progress_without_tqdm(client, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r'pip install "pushforward\[progress\]"'):
        ask(client, progress=True)
    assert not server.requests
    ask(client)


def test_what_is_not_an_array_leaves_nothing_behind(client, server, tmp_path):
    with pytest.raises(InvalidArray):
        client.jacobian("m", ["a"], of="y", wrt="x", out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())
    assert not server.requests


def test_threads_share_a_client(client, server, tmp_path):
    whole = body(ARRAYS[1])
    server.blocks = [whole[at : at + 5000] for at in range(0, len(whole), 5000)]
    threads = [threading.Thread(target=ask, args=(client,), kwargs={"out": tmp_path / f"{i}.npy"}) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(tmp_path.iterdir())) == 8
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(np.load(path), ARRAYS[1])


@pytest.fixture
def wire():
    """A server that answers a request for each item of `answers` with just these bytes, then hangs up."""
    answers = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                connection, _ = listener.accept()
                with connection:
                    if not answers:
                        return
                    received = b""
                    while b"\r\n\r\n" not in received:
                        received += connection.recv(65536)
                    head, _, rest = received.partition(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                    while len(rest) < length:
                        rest += connection.recv(65536)
                    connection.sendall(answers.pop(0))

        thread = threading.Thread(target=serve)
        thread.start()
        address = listener.getsockname()
        with pushforward.Client(f"http://{address[0]}:{address[1]}", timeout=20) as client:
            yield client, answers
        answers.clear()
        socket.create_connection(address).close()
        thread.join()


def response(content, length=None):
    length = len(content) if length is None else length
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-safetensors\r\n"
        + (b"" if length < 0 else b"Content-Length: %d\r\n" % length)
        + b"Connection: close\r\n\r\n"
        + content
    )


def test_waiting_for_ever(wire):
    client, answers = wire
    answers.append(response(body()))
    np.testing.assert_array_equal(ask(client, timeout_s=float("inf")).jacobian, J, strict=True)


def test_over_a_socket(wire, tmp_path):
    client, answers = wire
    whole = body(ARRAYS[1])
    answers += [response(whole), response(whole, -1)]
    for out in (None, tmp_path / "j.npy"):
        np.testing.assert_array_equal(ask(client, out=out).jacobian, ARRAYS[1], strict=True)


@pytest.mark.parametrize("length", [None, -1], ids=["with-length", "until-closed"])
def test_a_socket_closed_midway(wire, tmp_path, length):
    client, answers = wire
    whole = body(ARRAYS[1])
    answers.append(response(whole[:200_000], len(whole) if length is None else length))
    with pytest.raises(ConnectionFailed, match=rf"lost http://127\.0\.0\.1:\d+ after 200000 of {len(whole)} bytes"):
        ask(client, out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [None, -1], ids=["with-length", "until-closed"])
def test_a_socket_that_sends_more(wire, tmp_path, length):
    client, answers = wire
    whole = body(ARRAYS[1])
    answers.append(response(whole + b"more", length))
    with pytest.raises(ConnectionFailed, match=rf"{len(whole) + 4} .*of {len(whole)} bytes"):
        ask(client, out=tmp_path / "j.npy")
    assert not list(tmp_path.iterdir())
