"""Parsing in pieces accepts, refuses and reads exactly what parsing in one go does."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pushforward.errors import PushforwardError
from pushforward.wire import _pieces, codecs

JSON = codecs()["json"]
BODY = (
    b'{"model": "m", "inputs": {"x": [[[0.5, -1e3], [2, "NaN"]], [[0, 4.25], [7, 8e-1]]], "b": [true, false]}, '
    b'"A": [1, 22]}'
)


def outcome(body: bytes) -> object:
    try:
        message = JSON.decode(body)
    except PushforwardError as error:
        return type(error), str(error)
    return message.envelope, {path: (a.dtype, a.shape, a.tobytes()) for path, a in message.arrays.items()}


@pytest.fixture
def small(monkeypatch):
    """Pieces of a few bytes, for every array."""

    def cut(piece: int) -> None:
        monkeypatch.setattr(_pieces, "_LARGE", 0)
        monkeypatch.setattr(_pieces, "_PIECE", piece)

    return cut


@pytest.mark.parametrize("piece", [1, 5, 17, 1000])
@pytest.mark.parametrize(
    "body",
    [
        BODY,
        BODY.replace(b" ", b"\n\t "),
        BODY.replace(b"}", b" } "),
        BODY.replace(b"0.5", b"18446744073709551615"),
        BODY.replace(b"0.5", b"true"),
        BODY.replace(b"[[0, 4.25]", b"[[4.25]"),
        BODY.replace(b"[7, 8e-1]", b"[7], 8e-1"),
        BODY.replace(b"-1e3]", b"-1e3],"),
        BODY.replace(b"-1e3]", b"] -1e3"),
        BODY.replace(b"0.5, ", b"0.5 [, ").replace(b"[[[", b"[["),
        BODY.replace(b"[1, 22]", b"[1 22]"),
        BODY.replace(b"[1, 22]", b"[1, 22,]"),
        BODY.replace(b"[1, 22]", b"[,1, 22]"),
        BODY.replace(b"[1, 22]", b"[1,, 22]"),
        BODY.replace(b"[1, 22]", b"[] 1, 22"),
        BODY.replace(b"[1, 22]", b"[1], [22]"),
        BODY.replace(b"[1, 22]", b"[[], []]"),
        BODY.replace(b"[1, 22]", b"[[]]"),
        BODY.replace(b"[1, 22]", b"[]"),
        BODY.replace(b"[1, 22]", b"[" * 70 + b"1" + b"]" * 70),
        BODY.replace(b"[1, 22]", b'["Na[N]", 1]'),
        BODY.replace(b"[1, 22]", b'["Na N"]'),
        BODY.replace(b"[1, 22]", b'["NaN,1", 2]'),
        BODY.replace(b'"A"', b'"wrt"'),
        BODY.replace(b'"A"', b'"A]"'),
        BODY.replace(b'"A"', b'"A}"'),
        BODY.replace(b'"b"', b'"x"'),
        BODY.replace(b'"m"', b'":[1,2]"'),
        BODY.replace(b'"m"', b'":[1,2]\\""'),
        BODY.replace(b'"m"', b"[[3, 4]]"),
        b'{"inputs": {"x": {"dtype": "int8", "shape": [1, 2], "base64": "AAA="}}}',
        b'{"inputs": {"x": {"dtype": "int8", "shape": [1, 3], "base64": "AAA="}}}',
        b'{"inputs": [1, 2]}',
        b'{"outputs": ["y"], "inputs": {"x": [1]}}',
        b"[1, 2]",
        b":[1]",
    ],
)
def test_the_same_outcome(small, body, piece):
    expected = outcome(body)
    small(piece)
    assert outcome(body) == expected


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_same_outcome_for_any_damage(data, small):
    body = bytearray(BODY)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position : position + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"[", b"]", b",", b"],[", b"1", b" ", b'"', b":", b"}", b"{", b"-", b"true", b"null", b":[1]"]
            )
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pieces, "_LARGE", 2**16)
        expected = outcome(bytes(body))
    small(data.draw(st.integers(1, 30)))
    assert outcome(bytes(body)) == expected


@pytest.mark.parametrize(
    "text", [b"[[1,2],[3,4],[5,6]]", b" [ [ [ 1.5 ] ] ] ", b"[true]", b'["NaN","Infinity"]', b"[[[1]],[[2]]]"]
)
def test_plain_arrays_do_take_the_way_through_pieces(small, text):
    small(1)
    array = _pieces.parse_array(text, 0, len(text))
    np.testing.assert_array_equal(array, JSON.decode(b'{"A": %b}' % text).arrays["A"], strict=True)
