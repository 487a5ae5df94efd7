import io
import pickle
import zipfile

import numpy as np
import pytest

from pushforward.errors import MalformedBody, TooLarge
from pushforward.wire import Message, codecs

CODEC = codecs()["npz"]


def saved(save=np.savez, **arrays: object) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def archive(entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return buffer.getvalue()


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


def test_numpy_reads_what_we_write():
    x = np.arange(6, dtype=">f4").reshape(2, 3).T
    with np.load(io.BytesIO(CODEC.encode(Message({"model": "é"}, {"inputs.x": x, "file": x})))) as read:
        np.testing.assert_array_equal(read["inputs.x"], x)
        np.testing.assert_array_equal(read["file"], x)
        assert str(read["envelope"]) == '{"model":"é"}'


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_we_read_what_numpy_writes(save):
    arrays = {
        "inputs.x": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "inputs.b": np.arange(3, dtype=">i2"),
        "A": np.array(2.5),
    }
    message = CODEC.decode(saved(save, envelope=np.array('{"model": "m"}'), **arrays))
    assert message.envelope == {"model": "m"}
    for path, array in arrays.items():
        np.testing.assert_array_equal(message.arrays[path], array)
        assert message.arrays[path].flags.c_contiguous
        assert message.arrays[path].dtype.isnative


def test_the_same_message_is_the_same_bytes():
    message = Message({"model": "m"}, {"inputs.x": np.zeros(3)})
    assert CODEC.encode(message) == CODEC.encode(message)


def test_a_pickled_object_is_never_loaded():
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    bomb = npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickle.dumps(Bomb()))
    with pytest.raises(
        MalformedBody, match=r"^inputs\.x: npz: the entry is a pickled object, which is never loaded"
    ) as caught:
        CODEC.decode(archive({"inputs.x.npy": bomb}))
    assert caught.value.path == "inputs.x"
    with pytest.raises(MalformedBody, match=r"^envelope: "):
        CODEC.decode(archive({"envelope.npy": bomb}))


def test_sizes_are_checked_before_anything_is_unpacked():
    bomb = saved(np.savez_compressed, **{"inputs.x": np.zeros(10**7), "inputs.y": np.zeros(10**7)})
    assert len(bomb) < 10**6
    with pytest.raises(TooLarge, match=r"unpacks to 160\d+ bytes, the limit is 100000000"):
        CODEC.decode(bomb, max_bytes=10**8)


def test_an_entry_that_unpacks_to_more_than_it_declares_is_noticed():
    bomb = bytearray(archive({"inputs.x.npy": bytes(10**6)}, zipfile.ZIP_DEFLATED))
    for position in (bomb.find(b"PK\x01\x02") + 24, 22):
        bomb[position : position + 4] = (1000).to_bytes(4, "little")
    with pytest.raises(MalformedBody):
        CODEC.decode(bytes(bomb))


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(compression):
    with pytest.raises(MalformedBody, match=r"^inputs\.x: npz: compressed otherwise than numpy\.savez_compressed does"):
        CODEC.decode(archive({"inputs.x.npy": b"rubbish"}, compression))


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (npy(HEADER, bytes(15)), "shape [2] of float64 takes 16 bytes, but there are 15"),
        (npy(HEADER.replace("(2,)", "(10**9,)"), bytes(16)), "not a .npy entry"),
        (npy(HEADER.replace("(2,)", "(1000000000000,)"), bytes(16)), "takes 8000000000000 bytes, but there are 16"),
        (npy(HEADER.replace("(2,)", "(-2,)"), bytes(16)), "the header does not fit the data"),
        (npy(HEADER.replace("(2,)", "(" + "1," * 100 + ")"), bytes(8)), "the header does not fit the data"),
        (npy(HEADER.replace("<f8", "<c16"), bytes(32)), "dtype complex128 can't be read"),
        (npy(HEADER.replace("<f8", "<U2"), bytes(16)), "can't be read; use one of float64"),
        (npy(HEADER.replace("'<f8'", "[('a', '<f4'), ('b', '<f4')]"), bytes(16)), "can't be read"),
        (npy(HEADER.replace("<f8", "nonsense"), bytes(16)), "not a .npy entry"),
        (npy(HEADER, bytes(16), b"\x09\x09"), "not a .npy entry"),
        (npy("(" * 5000), "not a .npy entry"),
        (npy("__import__('os').getpid()"), "not a .npy entry"),
        (b"", "not a .npy entry"),
        (b"\x93NUMPY\x01\x00\xff\xff", "not a .npy entry"),
        (b"rubbish", "not a .npy entry"),
    ],
)
def test_headers_that_lie(entry, message):
    with pytest.raises(MalformedBody) as caught:
        CODEC.decode(archive({"inputs.x.npy": entry}))
    assert message in str(caught.value)
    assert caught.value.path == "inputs.x"


@pytest.mark.parametrize(
    "value", [np.array(["{}"]), np.array(3), np.array("["), np.array("[]"), np.array("[" * 100_000)]
)
def test_bad_envelopes(value):
    with pytest.raises(MalformedBody):
        CODEC.decode(saved(envelope=value))


def test_entries_twice():
    buffer = io.BytesIO(saved(**{"inputs.x": np.zeros(1)}))
    with zipfile.ZipFile(buffer, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("inputs.x.npy", b"")
    with pytest.raises(MalformedBody, match=r"^inputs\.x: npz: the archive has this entry twice"):
        CODEC.decode(buffer.getvalue())


def test_entries_are_counted_before_they_are_read():
    with pytest.raises(MalformedBody, match=r"^npz: the archive has 4097 entries, at most 4096 are allowed$"):
        CODEC.decode(archive({f"inputs.x{number}.npy": b"" for number in range(4097)}))


def test_every_truncation_is_noticed():
    whole = CODEC.encode(Message({"model": "m"}, {"inputs.x": np.arange(3.0)}))
    for length in range(len(whole)):
        with pytest.raises(MalformedBody):
            CODEC.decode(whole[:length])
