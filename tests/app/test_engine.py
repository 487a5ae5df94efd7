import asyncio
import threading
import time

import numpy as np
import pytest
from fastapi.testclient import TestClient

import app.engine
from app.calls import Call
from app.main import create_app
from app.settings import Settings
from pushforward.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    Overloaded,
    TooLarge,
    UnknownModel,
)

X = np.linspace(-1, 1, 12).reshape(1, 3, 4)


def call(model="stacked-rnn", operator="evaluate", timeout_s=None, x=X, **options):
    return Call(model, operator, {"inputs": {"x": x}}, options, timeout_s)


class Gate:
    """Programs that take as long as the test wants."""

    def __init__(self):
        self.started, self.open, self.runs = threading.Event(), threading.Event(), 0

    def run(self, model, operator, work):
        (found,), compiled = self.run_group(model, operator, [work])
        return found, compiled

    def run_group(self, model, operator, works):
        self.runs += 1
        self.started.set()
        assert self.open.wait(30)
        return [{"outputs.y": work.feeds["inputs.x"]} for work in works], False

    def close(self):
        pass


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def make_engine(engine, gate):
    """An engine with `stacked-rnn`, which loads in no time, and with programs that wait at the gate."""

    def make(**settings):
        made = app.engine.Engine.from_settings(Settings(models=(), warm=False, **settings))
        made._registry.add(engine.models["stacked-rnn"], "a test's")
        made._runs.programs = gate
        return made

    return make


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def test_answers(make_engine, gate):
    async def main():
        engine = make_engine()
        await engine.start()
        gate.open.set()
        answer = await engine(call())
        assert (answer.model, answer.version) == ("stacked-rnn", 1)
        np.testing.assert_array_equal(answer.arrays["outputs"]["y"], X)
        assert answer.info["rows"] == 1
        await engine.close()

    run(main())


def test_the_event_loop_is_free_while_the_compute_thread_is_not(make_engine, gate):
    async def main():
        engine = make_engine()
        task = asyncio.create_task(engine(call()))
        await asyncio.to_thread(gate.started.wait)
        start = time.perf_counter()
        with pytest.raises(UnknownModel):
            await engine(call("none-such"))
        assert time.perf_counter() - start < 0.1
        gate.open.set()
        await task
        await engine.close()

    run(main())


@pytest.mark.parametrize(
    ("own", "largest", "remedy"),
    [
        (0.05, 60, "give a larger timeout_s"),
        (60, 0.05, "raise the server's PUSHFORWARD_TIMEOUT_S"),
        (None, 0.05, "raise the server's PUSHFORWARD_TIMEOUT_S"),
    ],
)
def test_deadline(make_engine, gate, own, largest, remedy):
    async def main():
        engine = make_engine(timeout_s=largest)
        with pytest.raises(
            DeadlineExceeded, match=rf"within 0\.05 s; send fewer rows, ask for less at once, or {remedy}$"
        ):
            await engine(call(timeout_s=own))
        gate.open.set()
        await engine.close()

    run(main())


def test_a_call_whose_time_is_up_while_it_waits_is_never_run(make_engine, gate):
    async def main():
        engine = make_engine()
        first = asyncio.create_task(engine(call()))
        await asyncio.to_thread(gate.started.wait)
        with pytest.raises(DeadlineExceeded):
            await engine(call(timeout_s=0.05))
        gate.open.set()
        await first
        await engine.close()
        assert gate.runs == 1

    run(main())


def test_a_call_whose_caller_left_while_it_waits_is_never_run(make_engine, gate):
    async def main():
        engine = make_engine()
        first = asyncio.create_task(engine(call()))
        await asyncio.to_thread(gate.started.wait)
        second, third = (asyncio.create_task(engine(call())) for _ in range(2))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(first, third)
        assert second.cancelled()
        await engine.close()
        assert gate.runs == 2

    run(main())


def test_full_queue(make_engine, gate):
    async def main():
        engine = make_engine(queue_size=2)
        accepted = [asyncio.create_task(engine(call())) for _ in range(2)]
        await asyncio.to_thread(gate.started.wait)
        with pytest.raises(Overloaded, match="2 calls are waiting") as refused:
            await engine(call())
        assert refused.value.retry_after_s >= 1
        gate.open.set()
        await asyncio.gather(*accepted)
        await engine(call())
        await engine.close()

    run(main())


def test_a_call_that_nobody_waits_for_still_takes_its_place_in_the_queue(make_engine, gate):
    async def main():
        engine = make_engine(queue_size=1)
        with pytest.raises(DeadlineExceeded):
            await engine(call(timeout_s=0.05))
        with pytest.raises(Overloaded):
            await engine(call())
        gate.open.set()
        await engine._runs._batcher._idle.wait()
        await engine(call())
        await engine.close()

    run(main())


def test_an_answer_over_the_limit_is_refused_before_anything_runs(make_engine, gate):
    async def main():
        engine = make_engine(max_response_mb=0.001)
        size = 3 * (8 * 8 + 8 * 4 + 4 * 8 + 4 * 4) * 8
        with pytest.raises(TooLarge, match=rf"{size} bytes, the limit is 1000; .* POST /jvp"):
            await engine(call(operator="transitions"))
        assert gate.runs == 0
        await engine.close()

    run(main())


def test_a_check_of_what_is_too_large_for_it_is_refused_before_anything_runs(make_engine, gate, monkeypatch):
    monkeypatch.setattr(app.engine, "AT_ONCE_BYTES", 1000)

    async def main():
        engine = make_engine()
        for operator, options in (("transitions", {}), ("jacobian", {"of": "y", "wrt": "x"})):
            with pytest.raises(InvalidRequest, match="up to 1000 bytes to check"):
                await engine(call(operator=operator, check=True, **options))
        assert gate.runs == 0
        await engine.close()

    run(main())


def test_a_refused_call_takes_no_place(make_engine, gate):
    async def main():
        engine = make_engine(queue_size=1)
        gate.open.set()
        for x in (X[0], X[:, :, :3]):
            with pytest.raises(Exception, match=r"inputs\.x"):
                await engine(call(x=x))
        await engine(call())
        await engine.close()

    run(main())


def test_draining(make_engine, gate):
    async def main():
        engine = make_engine()
        accepted = [asyncio.create_task(engine(call())) for _ in range(3)]
        await asyncio.to_thread(gate.started.wait)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        with pytest.raises(Draining) as refused:
            await engine(call())
        assert refused.value.retry_after_s >= 1
        gate.open.set()
        await closing
        assert [task.result().model for task in accepted] == ["stacked-rnn"] * 3

    run(main())


def test_an_error_in_a_program_is_the_caller_s_and_the_engine_goes_on(make_engine, gate, monkeypatch):
    async def main():
        engine = make_engine()
        with monkeypatch.context() as patch:
            patch.setattr(gate, "run_group", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await engine(call())
        gate.open.set()
        await engine(call())
        await engine.close()

    run(main())


@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
def test_overload_and_deadline_over_http(make_engine, gate, operator):
    engine = make_engine(queue_size=1)
    with TestClient(create_app(Settings(), engine_factory=lambda _: engine)) as client:
        directions = {"jvp": {"tangents": {"x": X.tolist()}}, "vjp": {"cotangents": {"y": X.tolist()}}}
        request = {"model": "stacked-rnn", "inputs": {"x": X.tolist()}} | directions.get(operator, {})
        late = client.post(f"/{operator}", json=request | {"timeout_s": 0.05})
        full = client.post(f"/{operator}", json=request)
        gate.open.set()
    assert (late.status_code, late.json()["type"]) == (504, "/problems/deadline-exceeded")
    assert "timeout_s" in late.json()["detail"]
    assert "outputs" not in late.json()
    assert (full.status_code, full.json()["type"]) == (503, "/problems/overloaded")
    assert int(full.headers["retry-after"]) >= 1


def test_models_by_name_and_version(engine):
    assert run(engine.describe("seed-gru")) == run(engine.describe("seed-gru@1"))
    assert {model["name"] for model in engine.listing()} == set(engine.models)
    with pytest.raises(UnknownModel, match=r"^model: 'seed-gru' has no version '2'; it has: 1"):
        run(engine.describe("seed-gru@2"))
    with pytest.raises(UnknownModel, match=r"^model: 'none-such' is not registered; there are: .*seed-gru"):
        run(engine.describe("none-such"))


def start(**settings):
    async def main():
        engine = app.engine.Engine.from_settings(Settings(**settings))
        try:
            await engine.start()
            return await engine.describe("tokens")
        finally:
            await engine.close()

    return run(main())


def test_warm_start_with_an_archive_whose_inputs_are_integers(archives):
    description = start(models=(), watch_dir=archives, warm=True)
    assert [(x["dtype"], x["differentiable"]) for x in description["inputs"]] == [("int32", False)]
    assert description["summary"]


def test_a_model_that_is_not_built_in(tmp_path):
    with pytest.raises(UnknownModel, match=r"PUSHFORWARD_MODELS names 'gpt'; built in are: .*seed-gru"):
        start(models=("gpt",))
