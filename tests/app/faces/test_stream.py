"""Arrays that are computed while they are sent, on the fake engine."""

import numpy as np
import pytest
import safetensors.numpy

from app.calls import Streamed
from app.faces._stream import CutShort
from pushforward.errors import DeadlineExceeded
from pushforward.wire import codecs

SAFETENSORS = "application/x-safetensors"
J = np.random.default_rng(0).standard_normal((4, 3, 5))


class Blocks:
    """A source of blocks that remembers what was asked of it; an exception among the blocks is raised."""

    def __init__(self, *blocks):
        self.blocks = blocks
        self.asked = 0
        self.closed = False
        self.generator = self._generate()

    async def _generate(self):
        try:
            for block in self.blocks:
                self.asked += 1
                if isinstance(block, Exception):
                    raise block
                yield block
        finally:
            self.closed = True

    def streamed(self, shape=J.shape, dtype="float64"):
        return Streamed("jacobian", shape, dtype, self.generator)

    @property
    def is_closed(self):
        """Whether the generator is at its end: one that never ran is closed without running."""
        with pytest.raises(StopAsyncIteration):
            self.generator.__anext__().send(None)
        return self.closed or not self.asked


@pytest.fixture
def ask(shell, fake_engine):
    def ask(blocks, *, accept=SAFETENSORS, client=shell, streamed=None, **members):
        fake_engine.streamed = streamed or blocks.streamed()
        request = {"model": "echo", "inputs": {"x": [1.0, 2.0, 3.0]}} | members
        return client.post("/jacobian", json=request, headers={"Accept": accept, "X-Request-Id": "r1"})

    return ask


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3], [2]])
def test_bytes_are_those_of_the_array(ask, cuts):
    blocks = Blocks(*np.split(J, cuts))
    response = ask(blocks)
    assert response.status_code == 200
    assert response.headers["content-type"] == SAFETENSORS
    assert response.headers["vary"] == "Accept"
    assert int(response.headers["content-length"]) == len(response.content)
    message = codecs()["safetensors"].decode(response.content)
    assert message.envelope == {"model": "echo", "version": 1, "info": {"rows": 1}}
    theirs = safetensors.numpy.load(response.content)
    for arrays in (message.arrays, theirs):
        assert set(arrays) == {"outputs.y", "jacobian"}
        np.testing.assert_array_equal(arrays["outputs.y"], [2.0, 4.0, 6.0])
        np.testing.assert_array_equal(arrays["jacobian"], J)
    assert blocks.is_closed


def test_blocks_larger_than_what_is_sent_at_once(ask):
    large = np.random.default_rng(0).standard_normal((3, 200_001))
    blocks = Blocks(large[:2], large[2:])
    response = ask(blocks, streamed=blocks.streamed(large.shape))
    np.testing.assert_array_equal(codecs()["safetensors"].decode(response.content).arrays["jacobian"], large)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_other_dtypes(ask, dtype):
    array = (10 * J).astype(dtype)
    blocks = Blocks(array.astype(array.dtype.newbyteorder(">")))
    response = ask(blocks, streamed=blocks.streamed(dtype=dtype))
    theirs = safetensors.numpy.load(response.content)["jacobian"]
    assert theirs.dtype == dtype
    np.testing.assert_array_equal(theirs, array)


@pytest.mark.parametrize("pieces", [[], [np.empty((0, 3))]], ids=["no block", "an empty block"])
@pytest.mark.parametrize("codec", codecs().values(), ids=lambda codec: codec.name)
def test_an_empty_array(ask, codec, pieces):
    blocks = Blocks(*pieces)
    response = ask(blocks, streamed=blocks.streamed((0, 3)), accept=codec.media_type)
    assert codec.decode(response.content).arrays["jacobian"].size == 0
    assert blocks.is_closed or not pieces


def test_a_number(ask):
    blocks = Blocks(np.array(2.5))
    response = ask(blocks, streamed=blocks.streamed(()))
    assert safetensors.numpy.load(response.content)["jacobian"] == 2.5


@pytest.mark.parametrize("name", ["json", "npz"])
def test_other_formats_gather_the_blocks(ask, name):
    codec = codecs()[name]
    blocks = Blocks(*J)
    response = ask(blocks, accept=codec.media_type)
    assert response.status_code == 200, response.text
    np.testing.assert_array_equal(codec.decode(response.content).arrays["jacobian"], J)
    assert blocks.is_closed


def test_base64(ask):
    jacobian = ask(Blocks(J), accept="application/json", encoding="base64").json()["jacobian"]
    assert (jacobian["dtype"], jacobian["shape"]) == ("float64", [4, 3, 5])


@pytest.mark.parametrize(
    ("accept", "setting", "shape"),
    [
        ("application/json", "max_json_mb", (1000, 64, 88)),
        ("application/json", "max_response_mb", (1000, 64, 88)),
        ("application/x-npz", "max_response_mb", (1000, 64, 88)),
        (SAFETENSORS, "max_stream_mb", (1000, 64, 88)),
    ],
)
def test_too_large_is_refused_before_anything_is_computed(make_shell, ask, accept, setting, shape):
    blocks = Blocks(AssertionError("must not be asked for"))
    with make_shell(**{setting: 1.5}) as client:
        response = ask(blocks, client=client, accept=accept, streamed=blocks.streamed(shape))
    assert response.status_code == 413
    problem = response.json()
    assert problem["type"] == "/problems/too-large"
    assert (problem["expected"], problem["received"]) == ("at most 1500000 bytes", "45056000 bytes")
    for part in ("45056000 bytes (45.1 MB)", "[1000, 64, 88]", "1.5 MB", f"PUSHFORWARD_{setting.upper()}"):
        assert part in problem["detail"]
    remedy = "a smaller slice of `of` or `wrt`, or a product along a direction with POST /jvp or /vjp"
    assert remedy in problem["detail"]
    assert (f"Accept: application/x-safetensors, {remedy}" in problem["detail"]) == (accept != SAFETENSORS)
    assert blocks.is_closed
    assert blocks.asked == 0


@pytest.mark.parametrize("codec", codecs().values(), ids=lambda codec: codec.name)
def test_every_format_has_a_limit_by_default(ask, codec):
    blocks = Blocks(AssertionError("must not be asked for"))
    response = ask(blocks, accept=codec.media_type, streamed=blocks.streamed((64, 75_000, 1, 9_350), "int8"))
    assert response.status_code == 413
    assert "44880000000 bytes (44.9 GB)" in response.json()["detail"]


def test_the_whole_answer_counts(make_shell, ask):
    blocks = Blocks(AssertionError("must not be asked for"))
    with make_shell(max_response_mb=J.nbytes / 1e6) as client:
        response = ask(blocks, client=client, accept="application/x-npz")
    assert response.status_code == 413
    assert f"{J.nbytes + 24} bytes" in response.json()["detail"]
    assert blocks.is_closed


@pytest.mark.parametrize(("name", "before"), [("json", 0), ("json", 2), ("npz", 0), ("npz", 2), ("safetensors", 0)])
def test_a_failure_before_anything_is_sent_is_a_problem_document(ask, name, before):
    blocks = Blocks(*J[:before], DeadlineExceeded("10 s have passed"))
    response = ask(blocks, accept=codecs()[name].media_type)
    assert response.status_code == 504
    assert response.json()["type"] == "/problems/deadline-exceeded"
    assert blocks.is_closed


@pytest.mark.parametrize("codec", codecs().values(), ids=lambda codec: codec.name)
def test_a_failure_of_ours_before_anything_is_sent(ask, codec, caplog):
    response = ask(Blocks(ZeroDivisionError("a secret of the server")), accept=codec.media_type)
    assert response.status_code == 500
    assert "secret" not in response.text
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "r1" in record.getMessage()


def test_an_envelope_that_cannot_be_written(ask):
    blocks = Blocks(J)
    response = ask(blocks, outputs=["unspeakable"])
    assert response.status_code == 500
    assert response.json()["type"] == "/problems/internal-error"
    assert blocks.is_closed


@pytest.mark.parametrize("error", [DeadlineExceeded("10 s have passed"), ZeroDivisionError("oh")])
def test_a_failure_midway_reaches_the_server(ask, error):
    blocks = Blocks(*J[:2], error)
    with pytest.raises(CutShort, match=r"request r1 failed after \d+ of \d+ bytes") as raised:
        ask(blocks)
    assert raised.value.__cause__ is error
    assert blocks.is_closed


def test_a_failure_after_the_last_block_comes_before_the_last_bytes(ask):
    blocks = Blocks(*J, ZeroDivisionError("oh"))
    with pytest.raises(CutShort) as raised:
        ask(blocks)
    sent, total = map(int, str(raised.value).partition("failed after ")[2].partition(" bytes")[0].split(" of "))
    assert sent == total - J[0].nbytes


@pytest.mark.parametrize(
    ("blocks", "what"),
    [
        ([J[:3]], "ended 15 numbers early"),
        ([J, J[:1]], "went on for 15 numbers more"),
        ([J, J[:0], J[:1]], "went on for 15 numbers more"),
        ([J[:1], J[1:].astype("float32")], "came as float32"),
    ],
    ids=["too few", "too many", "too many after an empty one", "another dtype"],
)
def test_blocks_that_are_not_what_was_announced(ask, blocks, what):
    with pytest.raises(CutShort, match=what):
        ask(Blocks(*blocks))
    assert ask(Blocks(*blocks), accept="application/json").status_code == 500
