"""A directory to which archives are copied."""

import os

from app.watch import Watch


def write(path, content, stamp):
    path.write_bytes(content)
    os.utime(path, ns=(stamp, stamp))


def test_what_comes_is_taken_once_it_rests(tmp_path):
    watch = Watch(tmp_path, 1.0)
    write(tmp_path / "a.keras", b"1", 1)
    write(tmp_path / "a.txt", b"1", 1)
    assert watch.all() == [tmp_path / "a.keras"]
    assert watch.settled() == []
    write(tmp_path / "b.keras", b"1", 1)
    assert watch.settled() == []
    write(tmp_path / "b.keras", b"12", 2)  # is being written
    assert watch.settled() == []
    assert watch.settled() == [tmp_path / "b.keras"]
    assert watch.settled() == []


def test_what_changes_is_taken_again(tmp_path):
    watch = Watch(tmp_path, 1.0)
    write(tmp_path / "a.keras", b"1", 1)
    watch.all()
    write(tmp_path / "a.keras", b"2", 2)
    assert [watch.settled() for _ in range(3)] == [[], [tmp_path / "a.keras"], []]


def test_what_goes_and_comes_again_is_taken_again(tmp_path):
    watch = Watch(tmp_path, 1.0)
    write(tmp_path / "a.keras", b"1", 1)
    watch.all()
    (tmp_path / "a.keras").unlink()
    assert watch.settled() == []
    write(tmp_path / "a.keras", b"1", 1)
    assert [watch.settled() for _ in range(3)] == [[], [tmp_path / "a.keras"], []]


def test_a_directory_that_comes_later(tmp_path):
    watch = Watch(tmp_path / "later", 1.0)
    assert watch.all() == watch.settled() == []
    (tmp_path / "later").mkdir()
    write(tmp_path / "later" / "a.keras", b"1", 1)
    assert [watch.settled() for _ in range(2)] == [[], [tmp_path / "later" / "a.keras"]]


def test_a_link_to_nothing_is_not_there(tmp_path):
    (tmp_path / "a.keras").symlink_to(tmp_path / "nowhere")
    assert Watch(tmp_path, 1.0).all() == []
