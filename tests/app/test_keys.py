import hmac
import subprocess
import sys
from hashlib import sha256

import pytest

from app import keys

TEXTS = ["pf_one", "pf_two", "pf_three"]


def digest(text):
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def write(tmp_path):
    def write(*lines):
        path = tmp_path / "keys.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


def test_a_file_of_keys(write):
    path = write("# ours", "", f"use:{digest('pf_one')}:alice", f"  admin:{digest('pf_two')}  ")
    found = keys.read(path)
    assert len(found) == 2
    first, second = found.find("pf_one"), found.find("pf_two")
    assert (first.role, first.name) == ("use", "alice")
    assert (second.role, second.name) == ("admin", "-")
    assert found.find("pf_on") is None
    assert found.find("") is None


def test_admin_may_do_what_use_may_and_not_the_other_way_round():
    _, use = keys.make("a", "use")
    _, admin = keys.make("b", "admin")
    assert [use.grants("use"), use.grants("admin")] == [True, False]
    assert [admin.grants("use"), admin.grants("admin")] == [True, True]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("use", "1 parts"),
        ("use:0:name:more", "4 parts"),
        (f"owner:{digest('x')}", "role than use or admin"),
        (f"use:{digest('x')[:-1]}", "63 characters"),
        (f"use:{digest('x').upper()}", "lower-case"),
        (f"use:{digest('x')}:two words", "name"),
        (f"use:{digest('x')}:", "name"),
    ],
)
def test_a_damaged_line_is_named_and_not_quoted(write, line, reason):
    path = write("# comment", f"use:{digest('pf_one')}", line)
    with pytest.raises(keys.InvalidKeyFile, match=reason) as caught:
        keys.read(path)
    assert f"{path}, line 3" in str(caught.value)


def test_a_key_pasted_into_the_file_is_not_quoted(write):
    text, _ = keys.make("a", "use")
    with pytest.raises(keys.InvalidKeyFile) as caught:
        keys.read(write(text))
    assert text not in str(caught.value)
    with pytest.raises(keys.InvalidKeyFile) as caught:
        keys.read(write(f"use:{text}:a"))
    assert text not in str(caught.value)


def test_a_key_that_is_there_twice(write):
    line = f"use:{digest('x')}"
    with pytest.raises(keys.InvalidKeyFile, match=r"line 3: .* line 1"):
        keys.read(write(line, "", f"admin:{digest('x')}:other"))


def test_a_file_that_locks_everybody_out(write):
    with pytest.raises(keys.InvalidKeyFile, match=r"at least one key.*python -m app\.keys"):
        keys.read(write("# none yet"))


def test_a_file_that_can_t_be_read(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing", tmp_path, binary):
        with pytest.raises(keys.InvalidKeyFile, match="PUSHFORWARD_API_KEYS_FILE") as caught:
            keys.read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("given", [*TEXTS, "pf_onf", "unknown", ""])
def test_every_stored_hash_is_compared_whichever_matches(write, monkeypatch, given):
    compared = []

    def compare(stored, digest):
        compared.append(stored)
        return hmac.compare_digest(stored, digest)

    found = keys.read(write(*(f"use:{digest(text)}:k{i}" for i, text in enumerate(TEXTS))))
    monkeypatch.setattr(keys, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    assert (found.find(given) is not None) == (given in TEXTS)
    assert [stored.hex() for stored in compared] == [digest(text) for text in TEXTS]


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "app.keys", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("arguments", "role"), [([], "use"), (["--role", "admin"], "admin")])
def test_the_command_keeps_the_key_out_of_the_file(tmp_path, arguments, role):
    made = command("alice@lab", *arguments)
    assert made.returncode == 0, made.stderr
    key = made.stderr.split()[-1]
    assert key not in made.stdout
    path = tmp_path / "keys.txt"
    path.write_text(made.stdout)
    found = keys.read(path).find(key)
    assert (found.role, found.name) == (role, "alice@lab")
    assert command("alice@lab").stderr.split()[-1] != key


@pytest.mark.parametrize("arguments", [[], ["two words"], ["a:b"], ["alice", "--role", "owner"]])
def test_the_command_refuses_what_the_file_could_not_hold(arguments):
    made = command(*arguments)
    assert made.returncode == 2
    assert made.stdout == ""
