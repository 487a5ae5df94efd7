"""Versions on disk: whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from app.store import Damaged, Record, Store, check_name, digest
from pushforward.errors import InvalidRequest

BYTES = b"archive " * 1000


def record(name, version, archive):
    return Record(name, version, digest(archive), archive.stat().st_size, "2026-01-01T00:00:00+00:00", None, {"a": [1]})


def put(store, name, content=BYTES):
    with store.workspace() as directory:
        archive = directory / "it"
        archive.write_bytes(content)
        return store.put(archive, record(name, store.next(name), archive))


def listed(store):
    found, damaged = store.versions()
    return [(s.record.name, s.record.version) for s in found], damaged


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "made" / "here")
    yield store
    store.close()


def test_versions_outlast_the_store(store, tmp_path):
    assert [put(store, name).record.version for name in ("b", "a", "a")] == [1, 1, 2]
    store.close()
    again = Store(tmp_path / "made" / "here")
    found, damaged = again.versions()
    assert [(s.record.name, s.record.version) for s in found] == [("a", 1), ("a", 2), ("b", 1)]
    assert damaged == []
    assert found[0].archive.read_bytes() == BYTES
    assert found[0].record == record("a", 1, found[0].archive)
    again.close()


def test_the_tenth_version_comes_after_the_ninth(store):
    for _ in range(11):
        put(store, "a")
    assert listed(store)[0] == [("a", n) for n in range(1, 12)]


def test_a_number_is_not_given_twice(store, tmp_path):
    for _ in range(3):
        put(store, "a")
    store.remove("a", 3)
    store.remove("a", 1)
    assert listed(store) == ([("a", 2)], [])
    store.close()
    again = Store(tmp_path / "made" / "here")
    assert put(again, "a").record.version == 4
    again.remove("a", 4)
    again.remove("a", 2)
    assert listed(again) == ([], [])
    assert again.next("a") == 5
    again.close()


def test_a_store_without_a_directory_is_gone_when_it_is_closed():
    store = Store(None)
    archive = put(store, "a").archive
    assert not store.lasting
    assert archive.exists()
    store.close()
    assert not archive.exists()


def test_another_process_may_not_use_the_directory(store, tmp_path):
    with pytest.raises(BlockingIOError, match="another server uses this directory of models"):
        Store(tmp_path / "made" / "here")


def flipped(archive):
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)


DAMAGES = {
    "a flipped bit": flipped,
    "a truncated archive": lambda archive: archive.write_bytes(BYTES[:-1]),
    "no archive": lambda archive: archive.unlink(),
    "no record": lambda archive: archive.with_name("record.json").unlink(),
    "half a record": lambda archive: archive.with_name("record.json").write_text('{"name": "a", "ver'),
    "another record": lambda archive: archive.with_name("record.json").write_text('{"name": "a"}'),
    "a record that is no object": lambda archive: archive.with_name("record.json").write_text("[1]"),
    "a record that is no text": lambda archive: archive.with_name("record.json").write_bytes(b"\xff\xfe\x00"),
    "the record of another version": lambda archive: archive.with_name("record.json").write_text(
        json.dumps({**json.loads(archive.with_name("record.json").read_text()), "version": 7})
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_version_is_listed_apart_and_left_alone(store, damage):
    put(store, "a")
    broken = put(store, "a")
    put(store, "b")
    DAMAGES[damage](broken.archive)
    before = sorted(broken.archive.parent.iterdir())
    found, (error,) = listed(store)
    assert found == [("a", 1), ("b", 1)]
    assert str(broken.archive.parent) in str(error)
    assert sorted(broken.archive.parent.iterdir()) == before
    assert store.next("a") == 3


def test_what_else_lies_there_is_no_version(store, tmp_path):
    put(store, "a")
    root = tmp_path / "made" / "here"
    (root / "readme").write_text("not a model")
    (root / "a" / "02").mkdir()
    (root / "a" / "notes").mkdir()
    (root / "a" / "2").write_text("no directory")
    assert listed(store) == ([("a", 1)], [])


def test_a_check_after_the_fact(store):
    stored = put(store, "a")
    stored.check()
    with pytest.raises(Damaged, match="SHA-256"):
        replace(stored, record=replace(stored.record, sha256="0" * 64)).check()


@pytest.mark.parametrize("name", ["a", "A-b_c.7", "7", "x" * 100])
def test_names(name):
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a@1", "ä", "x" * 101, "a\n"])
def test_names_that_no_model_can_have(name):
    with pytest.raises(InvalidRequest, match="letters, digits"):
        check_name(name)


# Puts and removes, and tells of each once it is done.
BUSY = """
import sys
from pathlib import Path
from tests.app.test_store import Store, put
store = Store(Path(sys.argv[1]))
while True:
    kept = put(store, "a", b"x" * 300_000).record.version
    print("put", kept, flush=True)
    if kept % 3 == 0:
        store.remove("a", kept - 1)
        print("removed", kept - 1, flush=True)
"""


def test_whenever_the_process_is_killed_what_it_told_is_true(tmp_path):
    directory, expected, last = tmp_path / "store", set(), 0
    for delay in (0.05, 0.0, 0.013, 0.002, 0.031, 0.007):
        busy = subprocess.Popen([sys.executable, "-c", BUSY, str(directory)], stdout=subprocess.PIPE, text=True)
        assert busy.stdout is not None
        told = [busy.stdout.readline()]
        time.sleep(delay)
        os.kill(busy.pid, signal.SIGKILL)
        told += busy.stdout.read().splitlines()
        busy.stdout.close()
        busy.wait()
        for line in told:
            what, number = line.split()
            (expected.add if what == "put" else expected.remove)(int(number))
        last = max(last, *expected)
        store = Store(directory)
        found, damaged = listed(store)
        assert damaged == []
        numbers = {number for _, number in found}
        # What was going on when it was killed may have been done or not; nothing else differs.
        assert len(numbers ^ expected) <= 1
        assert max(numbers | expected) <= last + 1
        assert store.next("a") > max(numbers)
        assert not any((directory / ".work").iterdir())
        store.close()
        expected, last = numbers, max(last, *numbers)
