"""What every wire format promises, checked on every one that the registry finds."""

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pushforward.errors import InvalidArray, InvalidRequest, MalformedBody, PushforwardError, TooLarge
from pushforward.wire import Codec, Message, codecs
from pushforward.wire._arrays import DTYPES

moderate = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
each_codec = pytest.mark.parametrize("codec", codecs().values(), ids=codecs())
each_dtype = pytest.mark.parametrize("dtype", DTYPES)

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
floats = st.sampled_from(["float64", "float32", "float16"]).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
any_arrays = st.sampled_from(list(DTYPES)).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
names = st.text(st.characters(categories=["L", "N"], include_characters="._-"), min_size=1, max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
envelopes = st.dictionaries(st.sampled_from(["model", "version", "info", "wrt", "é"]), json_values)


def assert_same(received: np.ndarray, sent: np.ndarray) -> None:
    """Equal bit for bit, except that one NaN is as good as another where a format spells it out."""
    assert received.dtype == sent.dtype
    assert received.shape == sent.shape
    np.testing.assert_array_equal(received, sent)
    np.testing.assert_array_equal(np.signbit(received[received == 0]), np.signbit(sent[sent == 0]))


def binary(codec: Codec, message: Message) -> Message:
    """The message, so that the codec keeps dtypes and empty shapes."""
    return Message({**message.envelope, "encoding": "base64"}, message.arrays) if codec.name == "json" else message


@each_codec
@moderate
@given(envelope=envelopes, arrays=st.dictionaries(names, any_arrays, max_size=3))
def test_what_is_encoded_is_decoded_again(codec, envelope, arrays):
    sent = binary(codec, Message(envelope, {f"inputs.{name}": array for name, array in arrays.items()}))
    received = codec.decode(codec.encode(sent))
    assert received.envelope == sent.envelope
    assert received.arrays.keys() == sent.arrays.keys()
    for path, array in sent.arrays.items():
        assert_same(received.arrays[path], array)
        assert received.arrays[path].flags.c_contiguous
        assert received.arrays[path].flags.aligned
        assert received.arrays[path].dtype.isnative


@each_codec
@moderate
@given(array=floats)
@example(array=np.array([0x15AE43FD], np.uint32).view(np.float32))
@example(array=np.array([5e-324, 1.7976931348623157e308, -0.0, 0.1, 2**53 + 1.0]))
def test_floats_are_bit_equal_in_the_default_encoding_too(codec, array):
    received = codec.decode(codec.encode(Message({}, {"outputs.y": array}))).arrays["outputs.y"]
    if array.size == 0:
        assert received.size == 0
        return
    assert_same(received.astype(array.dtype), array)


@each_codec
@each_dtype
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (1, 1, 1), (2, 3)])
def test_every_dtype_and_odd_shape(codec, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    sent = binary(codec, Message({}, {"jacobian": array, "inputs.state.gru.h": array}))
    received = codec.decode(codec.encode(sent))
    assert_same(received.arrays["jacobian"], array)
    assert_same(received.arrays["inputs.state.gru.h"], array)


@each_codec
@pytest.mark.parametrize("base64", [False, True])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">f8").reshape(2, 3) / 7,
        np.arange(24.0).reshape(4, 6)[::2, ::-3],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0).reshape(2, 3).T,
        np.broadcast_to(1.5, (2, 3)),
    ],
    ids=["big-endian", "strided", "fortran", "transposed", "broadcast"],
)
def test_arrays_lie_in_memory_as_they_like(codec, array, base64):
    envelope = {"encoding": "base64"} if base64 else {}
    received = codec.decode(codec.encode(Message(envelope, {"inputs.x": array}))).arrays["inputs.x"]
    assert_same(received, array.astype("=f8"))


@each_codec
@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.array([1j]), np.array(["2020"], "M8[D]")], ids=repr
)
def test_what_is_not_numbers_is_not_sent(codec, array):
    with pytest.raises(
        InvalidArray, match=r"^inputs\.x: dtype .* can't be sent; convert it to one of float64"
    ) as caught:
        codec.encode(Message({}, {"inputs.x": array}))
    assert caught.value.path == "inputs.x"


@each_codec
@pytest.mark.parametrize("body", [b"", b"\0", b"{", b"PK", b"\xff" * 100, b"[]", b"null"])
def test_rubbish_is_malformed(codec, body):
    with pytest.raises(PushforwardError) as caught:
        codec.decode(body)
    assert caught.value.slug == "malformed-body"


@each_codec
@pytest.mark.parametrize("base64", [False, True])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_body_never_raises_anything_but_our_errors(codec, base64, data):
    envelope = {"model": "m", "encoding": "base64"} if base64 else {"model": "m"}
    arrays = {
        "inputs.x": np.linspace(0, 1, 6).reshape(2, 3),
        "inputs.n": np.array([True, False]),
        "jacobian": np.array(7),
    }
    body = bytearray(codec.encode(Message(envelope, arrays)))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedBody, InvalidRequest, TooLarge):
        codec.decode(bytes(body[: data.draw(st.integers(0, len(body)))]))


@each_codec
def test_envelopes_are_not_nested_without_end(codec):
    deep = [1]
    for _ in range(50):
        deep = [deep]
    with pytest.raises(PushforwardError, match="nested deeper"):
        codec.decode(codec.encode(Message({"wrt": deep})))


@each_codec
def test_names_and_media_types_are_distinct(codec):
    assert codecs()[codec.name] is codec
    assert sum(other.media_type == codec.media_type for other in codecs().values()) == 1


def test_by_field_nests_names_as_json_does():
    x, h, j = np.zeros(1), np.zeros(2), np.zeros(3)
    assert Message({}, {"inputs.x": x, "inputs.state.gru.h": h, "jacobian": j}).by_field() == {
        "inputs": {"x": x, "state.gru.h": h},
        "jacobian": j,
    }
