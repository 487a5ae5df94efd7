"""The README is complete, and what it shows runs: everything a user can set, send or get has its name in it."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn

from app import faces
from app.main import create_app
from app.problems import STATUS
from app.settings import Settings, table, variable
from pushforward import errors
from pushforward._registry import scan
from pushforward.wire import codecs

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHOWN_URL = "http://127.0.0.1:8000"
PROBLEMS = [c for c in errors.by_slug.values() if c not in (errors.PushforwardError, errors.ConnectionFailed)]


def files(package):
    return [path.stem for path in sorted((ROOT / package).glob("[!_]*.py"))]


def block(name):
    """What stands between the markers of this name, without the fences; the code, and the output below it."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", README, re.DOTALL)
    assert found, f"README.md has no block {name}"
    return found[1].strip()


def fenced(name):
    return re.findall(r"^```(\w*)\n(.*?)^```", block(name), re.DOTALL | re.MULTILINE)


def mentions(word):
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", README)


def test_settings_are_those_of_the_server():
    assert block("settings") == table()


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting(field):
    assert mentions(variable(field))


@pytest.mark.parametrize("name", files("app/operators"))
def test_every_operator(name):
    assert mentions(f"/{name}")


@pytest.mark.parametrize("name", [path.replace("_", "-") for path in files("models/zoo")])
def test_every_built_in_model(name):
    assert mentions(name)


@pytest.mark.parametrize("codec", codecs().values(), ids=lambda codec: codec.name)
def test_every_media_type(codec):
    assert mentions(codec.media_type)


@pytest.mark.parametrize("name", scan(faces, "FACE"))
def test_every_face(name):
    assert mentions(name)


@pytest.mark.parametrize("error", PROBLEMS, ids=lambda error: error.slug)
def test_every_problem_type(error):
    assert mentions(error.slug)
    assert any(parent in STATUS for parent in error.__mro__)
    assert len((error.__doc__ or "").splitlines()) > 2


def test_links_lead_to_files():
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", README, re.MULTILINE))
    assert {name for pair in named for name in pair if name} <= targets


@pytest.fixture(scope="module")
def url():
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(Settings(models=("seed-gru", "stacked-rnn"), warm=False)),
            host="127.0.0.1",
            port=0,
            log_config=None,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


EXAMPLES = [("curl", ["sh", "-eu"]), *((name, [sys.executable, "-"]) for name in ("python", "jacobian", "chunked"))]


@pytest.mark.parametrize(("name", "command"), EXAMPLES)
def test_example_runs_and_prints_what_the_readme_says(url, name, command):
    (_, code), *output = fenced(f"example:{name}")
    assert SHOWN_URL in code
    run = subprocess.run(
        command, input=code.replace(SHOWN_URL, url), capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert output, "the README shows no output"
    assert numbers(run.stdout) == pytest.approx(numbers(output[0][1]), rel=1e-9)
    assert words(run.stdout) == words(output[0][1])


# Times differ from run to run, and whether a program was there already; so may the layout.
VARYING = r'"(?:queue_ms|compute_ms|compiled)": ?[\w.]+,?|x-request-id: .*|date: .*'
NUMBER = r"(?<![\w.])-?\d+\.?\d*(?:e-?\d+)?(?![\w.])"


def numbers(text):
    return [float(number) for number in re.findall(NUMBER, re.sub(VARYING, "", text))]


def words(text):
    return re.findall(r"[A-Za-z_]+", re.sub(NUMBER, "", re.sub(VARYING, "", text)))
