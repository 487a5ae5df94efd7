"""The engine: a call comes in, is checked against its model, waits for the compute thread, and leaves as an answer."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import app.operators
from app import answers
from app.batcher import Batcher
from app.calls import Answer, Call, Streamed
from app.kinds import Kinds
from app.metrics import Metrics, labelled
from app.operators._operator import Arrays, Check, Item, Job, Operator, Whole
from app.programs import Programs, device, use_threads
from app.registration import Hooks, Registration
from app.registry import Registry, Version
from app.runs import Runs, Usage
from app.settings import Settings
from app.warming import warm
from models.model import Model
from pushforward._registry import scan
from pushforward.errors import Draining, Overloaded

# An array up to this size is computed before the answer to the request begins, so that `info` tells how.
AT_ONCE_BYTES = 8_000_000

# Checking copies arrays to the model's dtype; above this many bytes that is no longer done on the event loop.
_INLINE_BYTES = 1_000_000

# How often sizes must have come lately before a program is compiled for them.
_PATIENCE = 3


class Engine:
    """Answers calls: checks them, and has them computed on a thread of its own, so that the event loop stays free.

    Args:
        settings: which models to load, how many calls may wait, how long one may take.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._registry = Registry()
        self._operators: dict[str, Operator] = scan(app.operators, "OPERATOR")
        self._metrics = Metrics()
        programs = Programs(settings.compiled_programs, patience=_PATIENCE, background=True)
        batcher = Batcher(settings.batch_rows, settings.batch_wait_us / 1e6)
        self._runs = Runs(programs, batcher, self._metrics)
        self._kinds = Kinds()
        self._pending = 0
        self._metrics.watch("calls", "Calls that were accepted and are not answered yet.", lambda: self._pending)
        self._idle = asyncio.Event()
        self._draining = False
        self._device = ""
        self._registration: Registration | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> "Engine":
        """Make an engine; `start` loads the models."""
        return cls(settings)

    @property
    def models(self) -> Mapping[str, Model]:
        """The registered models by name."""
        return self._registry.models

    @property
    def operators(self) -> Mapping[str, Operator]:
        """The operators by name."""
        return self._operators

    async def start(self) -> None:
        """Load the models and, if the settings say so, build the programs that most requests will need.

        Raises:
            UnknownModel: if the settings name a built-in model that there is not.
            BlockingIOError: if another process uses the directory of models.
        """
        await self._runs.on_thread(self._load)
        registration = await asyncio.to_thread(
            Registration.from_settings, self._settings, self._registry, Hooks(come=self._warm, gone=self._forget)
        )
        self._registration = registration
        self._metrics.watch(
            "archives_skipped", "Archives on disk that could not be served.", lambda: registration.skipped
        )
        await registration.start()

    async def close(self) -> None:
        """Refuse new calls and finish those that were accepted."""
        self._draining = True
        if self._registration is not None:
            await self._registration.close()
        if self._pending:
            await self._idle.wait()
        await self._runs.close()

    def admit(self) -> None:
        """Refuse a call that would find no place, before its body is read; one that is not refused has none yet.

        Raises:
            Overloaded: if as many calls wait as may.
            Draining: while shutting down.
        """
        if self._draining:
            raise Draining(
                "the server is shutting down; send the request to another one, or again later", retry_after_s=5
            )
        waiting = self._pending + self._runs.orphans
        if waiting >= self._settings.queue_size:
            raise Overloaded(f"{waiting} calls are waiting, as many as may; try again later", retry_after_s=1)

    async def __call__(self, call: Call) -> Answer:
        """Answer one call.

        An array of more than `AT_ONCE_BYTES` is not computed before the answer's blocks are asked for.

        Raises:
            UnknownModel: if there is no such model or version.
            InvalidRequest: if the arrays don't fit the model's signature.
            Overloaded: if too many calls wait; Draining while shutting down.
            DeadlineExceeded: if it takes longer than it may.
        """
        self.admit()
        version, operator = self._registry.find(call.model), self._operators[call.operator]
        usage = Usage()
        limit = min(call.timeout_s or self._settings.timeout_s, self._settings.timeout_s)
        self._pending += 1
        try:
            try:
                async with asyncio.timeout(limit):
                    model = version.loaded or await self._loading(version)
                    job = self._kinds.prepare(operator, model, call) or await self._check(operator, model, call)
                    if job.plan_only:
                        return answers.answer(model, job, {}, self._about(job))
                    answers.check_size(job, self._settings, AT_ONCE_BYTES)
                    if job.whole is not None and job.whole.nbytes > AT_ONCE_BYTES:
                        return self._streamed(model, operator.name, job, job.whole, call, usage)
                    arrays, findings = await self._compute(model, operator.name, job, usage)
            except TimeoutError:
                raise answers.late(limit, self._settings) from None
            self._learn(model, operator.name, job, usage)
            return answers.answer(model, job, arrays, self._about(job), answers.measured(job, usage, arrays) | findings)
        finally:
            self._done()

    def listing(self) -> list[dict[str, Any]]:
        """Sum up each registered model."""
        return self._registry.listing()

    async def describe(self, name: str) -> dict[str, Any]:
        """Describe one model, named with or without its version: its signature, its strategies and its versions."""
        await self._loading(self._registry.find(name))
        return self._registry.describe(name)

    @property
    def registration(self) -> Registration:
        """What registers and removes models, once the engine is started."""
        assert self._registration is not None  # noqa: S101  # requests come after the start
        return self._registration

    def metrics_page(self) -> bytes:
        """Write the engine's measures in the text format of Prometheus."""
        return self._metrics.page()

    def count(self, operator: str, model: str, status: int, seconds: float) -> None:
        """Count a request that was answered or refused."""
        # Of names that nobody registered there is no end.
        name, _, _ = model.partition("@")
        known = name if name in self._registry else "unknown"
        labelled(self._metrics.requests, operator, known, status).inc()
        labelled(self._metrics.request_seconds, operator, known).observe(seconds)

    async def _check(self, operator: Operator, model: Model, call: Call) -> Job:
        job = await self._prepare(operator, model, call)
        if self._registry.holds(model):
            self._kinds.learn(operator, model, call, job)
        return job

    async def _loading(self, version: Version) -> Model:
        # A thread of its own, so that the models that are loaded are computed meanwhile.
        return version.loaded or await asyncio.to_thread(version.model)

    async def _prepare(self, operator: Operator, model: Model, call: Call) -> Job:
        size = sum(array.nbytes for group in call.arrays.values() for array in group.values())
        if not model.signature.one_length:  # sizes may only be known once the model has run
            return await self._runs.on_thread(lambda: operator.prepare(model, call))
        if size <= _INLINE_BYTES and operator.quick:
            return operator.prepare(model, call)
        return await asyncio.to_thread(operator.prepare, model, call)

    async def _compute(
        self, model: Model, operator: str, job: Job, usage: Usage
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if job.work is not None:
            arrays = dict(await self._runs.work(model, operator, job.work, usage))
        else:
            arrays = job.joined(await self._runs.gather(model, operator, job.steps, usage))
        if job.check is None:
            return arrays, {}
        (findings,) = await self._runs.gather(model, operator, partial(_checking, job.check, arrays), usage)
        return arrays, {"check": findings}

    def _streamed(self, model: Model, operator: str, job: Job, whole: Whole, call: Call, usage: Usage) -> Answer:
        end = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        own: float | None = None

        def limit() -> float:
            nonlocal own
            left = self._settings.timeout_s if end is None else end - time.monotonic()
            own = call.timeout_s if left < self._settings.timeout_s else None
            return min(left, self._settings.timeout_s)

        async def blocks() -> AsyncGenerator[np.ndarray, None]:
            self._pending += 1
            try:
                async with aclosing(self._runs.items(model, operator, job.steps, usage, limit)) as items:
                    async for item in items:
                        yield item
            except TimeoutError:
                raise answers.late(own or self._settings.timeout_s, self._settings) from None
            finally:
                self._done()
            self._learn(model, operator, job, usage)

        answer = answers.answer(model, job, {}, self._about(job), {"streamed": True})
        return replace(answer, streamed=Streamed(whole.field, whole.shape, whole.dtype, blocks()))

    def _learn(self, model: Model, operator: str, job: Job, usage: Usage) -> None:
        self._runs.learn(job.flops, usage)
        labelled(self._metrics.queue_seconds, operator, model.name).observe(usage.queued or 0.0)
        labelled(self._metrics.compute_seconds, operator, model.name).observe(usage.computed)

    def _about(self, job: Job) -> dict[str, Any]:
        about: dict[str, Any] = {"device": self._device}
        return about if job.whole is None else about | {"seconds": float(f"{self._runs.seconds(job.flops):.3g}")}

    def _load(self) -> None:
        use_threads(self._settings.threads)
        self._device = device()
        self._registry.add_built_in(self._settings.models)
        for model in self._registry.models.values():
            self._warm_now(model, self._operators.values())

    def _warm_now(self, model: Model, operators: Iterable[Operator]) -> None:
        if self._settings.warm:
            warm(self._runs.programs, model, operators, self._settings.warm_shapes)

    async def _warm(self, model: Model) -> None:
        for operator in self._operators.values():  # one a turn, so that calls of other models have theirs between
            await self._runs.on_thread(partial(self._warm_now, model, [operator]))

    async def _forget(self, model: Model) -> None:
        self._kinds.forget(model)
        await self._runs.on_thread(partial(self._runs.programs.forget, model))
        if model.name not in self._registry:
            self._metrics.forget(model.name)

    def _done(self) -> None:
        self._pending -= 1
        if self._draining and self._pending == 0:
            self._idle.set()


def _checking(check: Check, arrays: Mapping[str, np.ndarray]) -> Generator[Item, Arrays, None]:
    yield (yield from check(arrays))
