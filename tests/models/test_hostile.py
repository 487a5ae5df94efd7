"""Archives that somebody made to do harm are refused, with the reason, and do none."""

import resource

import pytest

from models.archive._limits import Limits
from models.loader import load, prove
from pushforward.errors import MalformedBody, UnsafeModel
from tests.hostile import HOSTILE, marker, plain, with_config, write

CLASSES = {400: MalformedBody, 422: UnsafeModel}


def test_what_they_are_made_of_is_harmless(tmp_path):
    model = load("m", write(tmp_path, *plain(tmp_path)))
    assert [a.name for a in model.signature.states] == ["state.gru.h"]


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_before_anything_is_built(name, tmp_path, monkeypatch):
    make, status, words = HOSTILE[name]
    path = make(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CLASSES[status]) as caught:
        load("m", path)
    assert type(caught.value) is CLASSES[status]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert len(str(caught.value)) < 600
    assert not marker(tmp_path).exists()
    assert {p: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 300_000  # kB


@pytest.mark.parametrize("name", ["lambda_with_code", "external_link"])
def test_refused_in_the_child_with_the_same_reason(name, tmp_path):
    make, status, words = HOSTILE[name]
    with pytest.raises(CLASSES[status]) as caught:
        prove("m", make(tmp_path))
    assert all(word in str(caught.value) for word in words)


def test_the_child_may_not_take_more_memory_than_it_may(tmp_path):
    def change(config, layers):
        repeat = {"module": "keras.layers", "class_name": "RepeatVector", "config": {"name": "r", "n": 10**7}}
        layers.append(repeat)

    bomb, before = with_config(tmp_path, change), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsafeModel, match=r"memory|bytes, which is the limit"):
        prove("m", bomb, limits=Limits(memory_bytes=150_000_000))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_the_child_may_not_take_longer_than_it_may(tmp_path):
    with pytest.raises(UnsafeModel, match=r"longer than 0\.2 s"):
        prove("m", write(tmp_path, *plain(tmp_path)), limits=Limits(seconds=0.2))
