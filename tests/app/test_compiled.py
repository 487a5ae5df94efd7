"""Which programs are compiled, how many are kept, and what is remembered of those that can't be."""

import pytest

from app.compiled import Compiled, Popular, Recent


def test_recent_keeps_what_was_used_last():
    recent = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]
    recent.put("c", 4)
    assert (len(recent), recent.get("c")) == (2, 4)


def test_popular_is_what_came_several_times_lately():
    popular = Popular(patience=3, window=5)
    assert [popular(key) for key in "aababbbb"] == [False, False, False, True, False, True, True, True]
    for key in "cdefg":
        popular(key)
    assert not popular("a")
    assert len(popular._counts) == 5


def test_of_several_wishes_the_first_that_is_popular_is_made():
    compiled = Compiled(8, 2, background=False)
    assert compiled.wish({"exact 1": lambda: 1, "bucket": lambda: 10}) is None
    assert compiled.wish({"exact 2": lambda: 2, "bucket": lambda: 10}) == ("bucket", 10)
    assert compiled.find(["exact 3", "bucket"]) == ("bucket", 10)
    assert compiled.wish({"exact 1": lambda: 1, "bucket": lambda: 10}) == ("exact 1", 1)
    assert compiled.find(["exact 1", "bucket"]) == ("exact 1", 1)


def test_replacing_comes_to_an_end(monkeypatch):
    """XLA does not give back what it compiled."""
    monkeypatch.setattr("app.compiled._IDLE", 0)
    compiled = Compiled(2, 1, background=False)
    made = [compiled.wish({key: lambda key=key: key}) for key in range(20)]
    assert sum(found is not None for found in made) == compiled.count == 10
    assert len(compiled) == 2


def test_only_what_is_not_used_makes_room(monkeypatch):
    monkeypatch.setattr("app.compiled._IDLE", 5)
    compiled = Compiled(2, 1, background=False)

    def call(key):
        return compiled.find([key]) or compiled.wish({key: lambda: key})

    assert [call(key) for key in "abcabcabc"] == [("a", "a"), ("b", "b"), None] * 3
    assert [call(key) for key in "bcbcbcbc"] == [("b", "b"), None] + [("b", "b"), ("c", "c")] * 3
    assert compiled.find(["a"]) is None


@pytest.mark.parametrize("background", [False, True])
def test_what_fails_is_not_tried_again(background, caplog):
    compiled, tries = Compiled(2, 1, background), []

    def fail():
        tries.append(1)
        raise RuntimeError("no")

    for _ in range(3):
        assert compiled.wish({"a": fail}) is None
        if background and len(tries) < 1:
            compiled._thread.submit(lambda: None).result()
    compiled.close()
    assert len(tries) == 1
    assert "could not be compiled" in caplog.text
