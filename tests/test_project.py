import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def test_the_wheel_holds_only_the_client(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"pushforward"}


def test_no_test_folder_is_a_package():
    # With an __init__.py pytest would put tests/ on the path, and `import models` would find tests/models.
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_name_versions_and_hashes_but_no_place(lock):
    text = lock.read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|@ file", text)
    pins = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert pins
    assert all(re.match(r"[a-z0-9.-]+==\S+", pin) and "--hash=sha256:" in pin for pin in pins)


def test_every_make_command_is_explained():
    targets = re.findall(r"^([a-z-]+):.*?(## .*)?$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"demo", "serve", "test", "check", "bench"} <= {name for name, _ in targets}
    assert [name for name, text in targets if not text] == []
