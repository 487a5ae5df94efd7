"""The command line against the real server: in its process, over HTTP, and with a server that is a little wrong."""

import json
import subprocess
import sys

import httpx2
import numpy as np
import pytest
from typer.testing import CliRunner

from models.gradcheck import compare
from pushforward.cli._app import make_app
from pushforward.wire import codecs
from tests.app.serving import serving

CODEC = codecs()["safetensors"]
X = np.random.default_rng(3).normal(size=(2, 20, 4))


@pytest.fixture
def run(server, monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_URL", "http://testserver")
    app = make_app()

    def run(*arguments, transport=server._transport):
        return CliRunner().invoke(app, [str(a) for a in arguments], obj=transport)

    return run


@pytest.fixture
def file(tmp_path):
    def file(**fields):
        path = tmp_path / f"in-{len(list(tmp_path.glob('in-*')))}.npz"
        np.savez(path, **{f"{field}.{name}": a for field, named in fields.items() for name, a in named.items()})
        return path

    return file


class Wrong(httpx2.BaseTransport):
    """The real server, with arrays of an operator's answers off by a factor."""

    def __init__(self, server, operators, prefix, factor=1.001):
        self._server, self._operators, self._prefix, self._factor = server._transport, operators, prefix, factor

    def handle_request(self, request):
        response = self._server.handle_request(request)
        if request.url.path.strip("/") not in self._operators:
            return response
        message = CODEC.decode(response.read())
        for path, array in message.arrays.items():
            if path.startswith(self._prefix):
                message.arrays[path] = (array * self._factor).astype(array.dtype)
        return httpx2.Response(
            200, content=CODEC.encode(message), headers={"Content-Type": CODEC.media_type}, request=request
        )


@pytest.mark.parametrize("model", ["stacked-rnn", "lstm-last"])
def test_check_of_a_right_server_and_of_wrong_ones(run, server, model):
    right = run("check", model)
    assert right.exit_code == 0, right.output
    assert right.stdout.count(" ok ") == (11 if model == "stacked-rnn" else 10)
    for operators, prefix in (
        (("jvp",), "tangents."),
        (("vjp",), "cotangents."),
        (("evaluate",), "outputs."),
        (("jvp", "vjp"), ("tangents.", "cotangents.")),
        (("vjp",), "cotangents.param."),
    ):
        wrong = run("check", model, transport=Wrong(server, operators, prefix))
        assert wrong.exit_code == 1, (operators, prefix, wrong.output)
        assert wrong.stderr.startswith(f"error: {model}: wrong with respect to ")
        assert "WRONG" in wrong.stdout


def test_check_of_a_server_that_gives_zeros_or_nothing_finite(run, server):
    zero = run("check", "stacked-rnn", transport=Wrong(server, ("jvp", "vjp", "evaluate"), ("",), 0.0))
    assert (zero.exit_code, "all derivatives of 'stacked-rnn' are zero" in zero.stderr) == (1, True)
    for operators in (("jvp",), ("vjp",), ("evaluate",)):
        assert run("check", "stacked-rnn", transport=Wrong(server, operators, "", np.nan)).exit_code == 1


def test_models(run):
    found = run("models")
    assert found.exit_code == 0
    assert "stacked-rnn" in found.stdout
    listed = json.loads(run("models", "--json").stdout)
    assert {"seed-gru", "bi-gru"} <= {model["name"] for model in listed}
    shown = run("models", "bi-gru").stdout
    assert "not step by step" in shown
    assert "state.bi.forward.h" in shown


@pytest.mark.parametrize("chunk", [(), ("--chunk", 6)], ids=["whole", "pieces"])
def test_products_from_file_to_file(run, file, tmp_path, server, chunk):
    out = tmp_path / "out.npz"
    state = np.full((2, 4), 0.5)
    names = ("--output", "y", "--output", "state.rnn_2.h")
    inputs = {"x": X, "state.rnn_1.h": state}
    found = run("jvp", "stacked-rnn", file(inputs=inputs, tangents={"x": X}), "-o", out, *names, *chunk)
    assert found.exit_code == 0, found.output
    pushed = dict(np.load(out))
    assert json.loads(str(pushed.pop("envelope")))["model"] == "stacked-rnn"
    assert pushed.keys() == {"outputs.y", "tangents.y", "outputs.state.rnn_2.h", "tangents.state.rnn_2.h"}
    wrt = ("--wrt", "x", "--wrt", "param.rnn_1.kernel")
    found = run("vjp", "stacked-rnn", file(inputs=inputs, cotangents={"y": X}), "-o", out, *wrt, *chunk)
    assert found.exit_code == 0, found.output
    pulled = np.load(out)
    assert pulled["cotangents.param.rnn_1.kernel"].shape == (4, 4)
    # The adjoint identity says that these belong together.
    assert np.vdot(X, pushed["tangents.y"]) == pytest.approx(np.vdot(pulled["cotangents.x"], X), rel=1e-12)


@pytest.mark.parametrize("name", ["out.npy", "out.npz"])
def test_a_jacobian(run, file, tmp_path, name):
    asked = ("jacobian", "stacked-rnn", file(inputs={"x": X}), "--of", "y[-1]", "--wrt", "x[2:4, 0]")
    found = run(*asked, "-o", tmp_path / name)
    assert found.exit_code == 0, found.output
    read = np.load(tmp_path / name)
    jacobian = read if name.endswith("npy") else read["jacobian"]
    assert jacobian.shape == (2, 4, 2)
    tangent = np.zeros_like(X)
    tangent[:, 2, 0] = 1
    run("jvp", "stacked-rnn", file(inputs={"x": X}, tangents={"x": tangent}), "-o", tmp_path / "jvp.npz")
    assert compare({"y": jacobian[:, :, 0]}, {"y": np.load(tmp_path / "jvp.npz")["tangents.y"][:, -1]}) <= 1e-12
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in-0.npz", "in-1.npz", "jvp.npz", name])
    planned = run(*asked, "--plan")
    assert planned.stdout.startswith("(2, 4, 2), 128 bytes, ")


def test_what_goes_wrong_is_told_in_a_line(run, file, tmp_path):
    good = file(inputs={"x": X}, tangents={"x": X})
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"no archive")
    for arguments, code, message in (
        (("jvp", "nobody", good, "-o", tmp_path / "o.npz"), 3, "model: 'nobody' is not registered"),
        (("jvp", "bi-gru", good, "-o", tmp_path / "o.npz", "--chunk", 5), 3, "model: 'bi-gru' can't be computed piece"),
        (("vjp", "stacked-rnn", good, "-o", tmp_path / "o.npz"), 2, "got one named 'tangents.x'"),
        (("jvp", "stacked-rnn", file(inputs={"x": X}), "-o", tmp_path / "o.npz"), 2, "got none of tangents"),
        (("jvp", "stacked-rnn", bad, "-o", tmp_path / "o.npz"), 2, f"{bad}: npz: not a readable archive"),
        (("jvp", "stacked-rnn", tmp_path / "none.npz", "-o", tmp_path / "o.npz"), 2, "No such file"),
        (("jacobian", "stacked-rnn", good, "--of", "y", "--wrt", "x"), 2, "got one named 'tangents.x'"),
        (("models", "--key", "a b"), 2, "api_key"),
        (("models", "nobody"), 3, "nobody"),
        (("delete", "nobody"), 3, ""),
        (("jvp", "stacked-rnn"), 2, "Missing argument"),
    ):
        found = run(*arguments)
        assert (found.exit_code, message in found.stderr) == (code, True), (arguments, found.output)
        if "Missing" not in message:
            assert found.stderr.startswith("error: ")
            assert found.stderr.count("\n") == 1
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.slow
def test_a_real_server_and_the_command_itself():
    with serving(models="stacked-rnn", compiled_programs=0, warm="false") as server:

        def command(*arguments):
            line = [sys.executable, "-m", "pushforward.cli", *arguments, "--url", server.url]
            return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)

        found = command("check", "stacked-rnn")
        assert found.returncode == 0, found.stderr
    gone = command("models")
    assert (gone.returncode, gone.stderr.startswith("error: can't reach")) == (3, True)


@pytest.mark.slow
def test_a_model_comes_and_goes(tmp_path):
    import keras

    layers = [keras.Input((None, 2)), keras.layers.LSTM(3, return_sequences=True)]
    keras.Sequential(layers).save(tmp_path / "mine.keras")
    with serving(models="stacked-rnn", warm="false", model_dir=tmp_path / "models") as server:

        def command(*arguments):
            return CliRunner().invoke(make_app(), [*map(str, arguments), "--url", server.url])

        asked = ("register", "mine", tmp_path / "mine.keras", "--dtype", "float64")
        found = command(*asked)
        assert (found.exit_code, found.stdout.startswith("mine@1, float64")) == (0, True), found.output
        again = command(*asked, "--no-replace")
        assert (again.exit_code, again.stderr.startswith("error: ")) == (3, True), again.output
        assert command(*asked).stdout.startswith("mine@2, ")
        checked = command("check", "mine")
        assert checked.exit_code == 0, checked.output
        assert command("delete", "mine", "--version", 1).exit_code == 0
        assert command("models", "mine@1").exit_code == 3
        assert command("delete", "mine").exit_code == 0
        assert command("models", "mine").exit_code == 3
