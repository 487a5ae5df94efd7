import json

import numpy as np
import pytest

from pushforward.errors import MalformedBody
from pushforward.wire import Message, codecs
from pushforward.wire.safetensors import prefix

oracle = pytest.importorskip("safetensors.numpy")
CODEC = codecs()["safetensors"]


def body(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_the_reference_library_reads_what_we_write():
    arrays = {"inputs.x": np.arange(6.0).reshape(2, 3), "inputs.n": np.array([True]), "A": np.zeros((0, 3), np.float16)}
    read = oracle.load(CODEC.encode(Message({"model": "m"}, arrays)))
    assert read.keys() == arrays.keys()
    for path, array in arrays.items():
        np.testing.assert_array_equal(read[path], array, strict=True)


def test_we_read_what_the_reference_library_writes():
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    message = CODEC.decode(
        oracle.save({"inputs.x": x, "b": np.array(1.5)}, {"envelope": '{"model": "m"}', "format": "np"})
    )
    assert message.envelope == {"model": "m"}
    np.testing.assert_array_equal(message.arrays["inputs.x"], x, strict=True)
    np.testing.assert_array_equal(message.arrays["b"], np.array(1.5), strict=True)


def test_decoding_copies_nothing_that_is_aligned():
    array = CODEC.decode(CODEC.encode(Message({}, {"inputs.x": np.zeros(3), "inputs.n": np.zeros(1, bool)}))).arrays[
        "inputs.x"
    ]
    assert array.base is not None
    assert not array.flags.writeable


def test_the_length_is_known_before_the_numbers_are():
    x = np.arange(6.0).reshape(2, 3)
    message = Message({"model": "m"}, {"jacobian": x})
    assert prefix(message.envelope, {"jacobian": ("float64", (2, 3))}) + x.tobytes() == CODEC.encode(message)


def test_without_metadata_the_envelope_is_empty():
    assert CODEC.decode(body({"x": entry()}, bytes(8))).envelope == {}


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b"", "too few"),
        (b"1234567", "7 bytes are too few"),
        ((2**63).to_bytes(8, "little") + b"{}", "a header of 9223372036854775808 bytes is announced"),
        ((100).to_bytes(8, "little") + b"{}", "truncated, a header of 100 bytes is announced but 2 follow"),
        (body({"x": entry()}, bytes(7)), "x: safetensors: truncated, the array ends at byte 8 of 7"),
        (body({"x": entry()}, bytes(9)), "1 bytes follow the last array"),
        (body({"x": entry(shape=[3])}, bytes(8)), "shape [3] of float32 takes 12 bytes, but there are 8"),
        (body({"x": entry(shape=[2**62, 4])}, bytes(8)), "bytes, but there are 8"),
        (body({"x": entry(shape=[10**4000])}, bytes(8)), "a shape is a list of at most 64 non-negative integers"),
        (body({"x": entry(shape=[2] * 100_000)}, bytes(8)), "a shape is a list of at most 64"),
        (body({"x": entry(shape=[-2])}, bytes(8)), "a shape is a list of at most 64"),
        (body({"x": entry(shape=[2.0])}, bytes(8)), "a shape is a list of at most 64"),
        (body({"x": entry(shape="2")}, bytes(8)), "lists of non-negative integers"),
        (body({"x": entry(shape=[0, 2**62, 4], data_offsets=[0, 0])}), "shape [0, 4611686018427387904, 4]"),
        (body({"x": entry(data_offsets=[8, 0])}, bytes(8)), "lists of non-negative integers"),
        (body({"x": entry(data_offsets=[-8, 0])}, bytes(8)), "lists of non-negative integers"),
        (body({"x": entry(data_offsets=[0])}, bytes(8)), "dtype, shape and two data_offsets"),
        (body({"x": entry(data_offsets=["a", "b"])}, bytes(8)), "lists of non-negative integers"),
        (body({"x": entry(dtype="BF16")}, bytes(8)), "unknown dtype 'BF16'; send one of F64, F32"),
        (body({"x": entry(dtype=["F32"])}, bytes(8)), "unknown dtype"),
        (body({"x": 3}), "dtype, shape and two data_offsets"),
        (body({"x": entry(), "y": entry()}, bytes(8)), "the arrays overlap at byte 0"),
        (body({"x": entry(), "y": entry(data_offsets=[12, 20])}, bytes(20)), "the arrays leave a gap at byte 8"),
        (body(b'{"x": 1, "x": 2}'), "the header names 'x' twice"),
        (body(b"[]"), "the header is not a JSON object"),
        (body(b"{"), "the header is not valid JSON"),
        (body(b"\xff\xfe"), "the header is not valid JSON"),
        (body(b"[" * 100_000), "the header is not valid JSON"),
        (body(b'{"x":' * 100_000), "the header is not valid JSON"),
        (body({"__metadata__": []}), "__metadata__ is not an object"),
        (body({"__metadata__": {"envelope": 3}}), "envelope: the envelope is not a JSON text"),
        (body({"__metadata__": {"envelope": "[]"}}), "envelope: expected a JSON object"),
        (body({"__metadata__": {"envelope": "{"}}), "not valid JSON"),
        (body({"__metadata__": {"envelope": "[" * 100_000}}), "not valid JSON"),
    ],
)
def test_malformed_bodies(damaged, message):
    with pytest.raises(MalformedBody) as caught:
        CODEC.decode(damaged)
    assert message in str(caught.value)


def test_every_truncation_is_noticed():
    whole = CODEC.encode(Message({"model": "m"}, {"inputs.x": np.arange(3.0)}))
    for length in range(len(whole)):
        with pytest.raises(MalformedBody):
            CODEC.decode(whole[:length])
