"""API keys: `python -m app.keys NAME` makes one, a file names those that the server takes, by their hashes alone."""

import argparse
import hmac
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from app.settings import variable

Role = Literal["use", "admin"]

# Each role may do what the ones before it may.
ROLES: tuple[Role, ...] = get_args(Role)

# What leaked keys are searched for by.
_PREFIX = "pf_"

_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)


class InvalidKeyFile(ValueError):
    """The file of keys can't be used; the text names the line, but never quotes it: it may hold a key by mistake."""


@dataclass(frozen=True)
class Key:
    """What the server knows of a key.

    Attributes:
        role: what it may be used for.
        digest: the SHA-256 of the key. A key is 256 random bits, which nobody guesses: no slow hash is needed.
        name: whose it is, for the log.
    """

    role: Role
    digest: bytes
    name: str = "-"

    def grants(self, role: Role) -> bool:
        """Tell whether it may be used for what needs `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def line(self) -> str:
        """The key's line in the file of keys: `role:hash:name`."""
        return f"{self.role}:{self.digest.hex()}:{self.name}"


class Keys:
    """The keys that a server takes."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: str) -> Key | None:
        """Look a key up; the time it takes depends on how long it is, and neither on its text nor on the result."""
        digest = sha256(given.encode()).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key  # and go on: where the loop ends would tell which one it is
        return found


def make(name: str, role: Role) -> tuple[str, Key]:
    """Make a new key: its text, which is stored nowhere, and what the server may know of it."""
    text = _PREFIX + secrets.token_urlsafe(32)
    return text, Key(role, sha256(text.encode()).digest(), name)


def read(path: Path) -> Keys:
    """Read a file of keys: one a line, `role:hash` or `role:hash:name`; empty lines and those with `#` are skipped.

    Raises:
        InvalidKeyFile: if it can't be read, has a line that is no key or one that was there before, or has none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidKeyFile(
            f"{variable('api_keys_file')}: expected a text file that the server may read, got {path}: {reason}"
        ) from None
    lines: dict[bytes, int] = {}
    keys = list(_keys(path, text))
    for number, key in keys:
        if (first := lines.setdefault(key.digest, number)) != number:
            raise InvalidKeyFile(f"{path}, line {number}: expected a new key, got that of line {first}; remove one")
    if not keys:
        raise InvalidKeyFile(
            f"{path}: expected at least one key, got none; make one with `python -m app.keys NAME`, or unset "
            f"{variable('api_keys_file')} to serve without keys"
        )
    return Keys([key for _, key in keys])


def _keys(path: Path, text: str) -> Iterator[tuple[int, Key]]:
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        role, *rest = entry.split(":")
        if len(rest) not in (1, 2):
            wrong = f"{len(rest) + 1} parts between colons"
        elif role not in ROLES:
            wrong = f"another role than {' or '.join(ROLES)}"
        elif not _HASH.fullmatch(rest[0]):
            wrong = f"a hash of {len(rest[0])} characters instead of 64 lower-case hexadecimal digits"
        elif not all(_NAME.fullmatch(name) for name in rest[1:]):
            wrong = "a name that is not 1 to 64 letters, digits and ._@-"
        else:
            yield number, Key(role, bytes.fromhex(rest[0]), *rest[1:])
            continue
        raise InvalidKeyFile(
            f"{path}, line {number}: expected role:hash or role:hash:name, got {wrong}; "
            "`python -m app.keys NAME` makes a key with its line"
        )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected 1 to 64 letters, digits and ._@-, got {text!r}")
    return text


def main() -> None:
    """Make a key: the line for the file goes to stdout, the key itself to stderr, so that `>> FILE` stores no key."""
    parser = argparse.ArgumentParser(
        prog="python -m app.keys",
        description="Make an API key. Its line for the server's file of keys is written to stdout and holds a hash "
        "only; the key itself is shown once, on stderr: python -m app.keys alice >> keys.txt",
    )
    parser.add_argument("name", type=_name, help="whose key it is, for the server's log")
    parser.add_argument("--role", choices=ROLES, default="use", help="what it may be used for (default: %(default)s)")
    arguments = parser.parse_args()
    text, key = make(arguments.name, arguments.role)
    print(f"the key of {key.name}, shown this once: {text}", file=sys.stderr)
    print(key.line)


if __name__ == "__main__":
    main()
