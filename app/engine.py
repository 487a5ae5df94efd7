"""The engine: a call comes in, is checked against its model, waits for the compute thread, and leaves as an answer."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import app.operators
import models.zoo
from app.calls import Answer, Arrays, Call
from app.operators._operator import Operator, Work
from app.programs import Programs, device
from app.settings import Settings, variable
from models.loader import load_directory
from models.model import Model
from pushforward._registry import scan
from pushforward.errors import DeadlineExceeded, Draining, NotDifferentiable, Overloaded, UnknownModel, UnsafeModel
from pushforward.wire._arrays import DTYPES

# Checking copies arrays to the model's dtype; above this many bytes that is no longer done on the event loop.
_INLINE_BYTES = 1_000_000


class Engine:
    """Answers calls, one at a time on a thread of its own, so that the event loop stays free.

    Args:
        settings: which models to load, how many calls may wait, how long one may take.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._models: dict[str, Model] = {}
        self._summaries: dict[str, str] = {}
        self._operators: dict[str, Operator] = scan(app.operators, "OPERATOR")
        self._programs = Programs(compiled_shapes=settings.compiled_shapes)
        self._compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._pending = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._device = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> "Engine":
        """Make an engine; `start` loads the models."""
        return cls(settings)

    @property
    def models(self) -> Mapping[str, Model]:
        """The registered models by name."""
        return self._models

    @property
    def operators(self) -> Mapping[str, Operator]:
        """The operators by name."""
        return self._operators

    async def start(self) -> None:
        """Load the models and, if the settings say so, build the programs that most requests will need."""
        await asyncio.get_running_loop().run_in_executor(self._compute, self._load)

    async def close(self) -> None:
        """Refuse new calls and finish those that were accepted."""
        self._draining = True
        await self._idle.wait()
        await asyncio.to_thread(self._compute.shutdown, wait=True)

    async def __call__(self, call: Call) -> Answer:
        """Answer one call.

        Raises:
            UnknownModel: if there is no such model or version.
            InvalidRequest: if the arrays don't fit the model's signature.
            Overloaded: if too many calls wait; Draining while shutting down.
            DeadlineExceeded: if it takes longer than it may.
        """
        if self._draining:
            raise Draining(
                "the server is shutting down; send the request to another one, or again later", retry_after_s=5
            )
        if self._pending >= self._settings.queue_size:
            raise Overloaded(f"{self._pending} calls are waiting, as many as may; try again later", retry_after_s=1)
        model, operator = self._find(call.model), self._operators[call.operator]
        largest = self._settings.timeout_s
        limit = min(call.timeout_s or largest, largest)
        try:
            async with asyncio.timeout(limit):
                arrays, info = await self._answer(model, operator, call)
        except TimeoutError:
            remedy = "give a larger timeout_s" if limit < largest else f"raise the server's {variable('timeout_s')}"
            raise DeadlineExceeded(
                f"the answer was not ready within {limit:g} s; send fewer rows, or {remedy}", expected=f"{limit:g} s"
            ) from None
        return Answer(model.name, model.version, arrays, info)

    def listing(self) -> list[dict[str, Any]]:
        """Sum up each registered model."""
        return [
            {"name": m.name, "version": m.version, "dtype": m.dtype, "summary": self._summaries[m.name]}
            for m in self._models.values()
        ]

    def describe(self, name: str) -> dict[str, Any]:
        """Describe one model, named with or without its version: its signature and its strategies."""
        model = self._find(name)
        head = {"name": model.name, "version": model.version, "summary": self._summaries[model.name]}
        return {**head, **model.signature.describe()}

    def _find(self, name: str) -> Model:
        base, at, version = name.partition("@")
        model = self._models.get(base)
        if model is None:
            raise UnknownModel(
                f"{base[:80]!r} is not registered; there are: {', '.join(self._models)}",
                path="model",
                expected=list(self._models),
            )
        if at and version != str(model.version):
            raise UnknownModel(
                f"{base!r} has no version {version[:20]!r}; it has: {model.version}",
                path="model",
                expected=[model.version],
            )
        return model

    async def _answer(self, model: Model, operator: Operator, call: Call) -> tuple[Arrays, dict[str, Any]]:
        self._enter()
        try:
            work = await self._prepare(operator, model, call)
            future = self._compute.submit(self._run, model, operator.name, work, time.perf_counter())
        except BaseException:
            self._leave()
            raise
        # A call that nobody waits for any more still occupies the thread, so it counts until it is done.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave))
        return await asyncio.wrap_future(future)

    async def _prepare(self, operator: Operator, model: Model, call: Call) -> Work:
        size = sum(array.nbytes for group in call.arrays.values() for array in group.values())
        if size <= _INLINE_BYTES:
            return operator.prepare(model, call)
        return await asyncio.to_thread(operator.prepare, model, call)

    def _run(self, model: Model, operator: str, work: Work, submitted: float) -> tuple[Arrays, dict[str, Any]]:
        start = time.perf_counter()
        found, compiled = self._programs.run(model, operator, work)
        end = time.perf_counter()
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for path, array in found.items():
            field, _, name = path.partition(".")
            arrays.setdefault(field, {})[name] = array
        info = {
            "strategy": work.strategy,
            "dtype": model.dtype,
            "device": self._device,
            "rows": work.rows,
            "batch_rows": work.rows,
            "queue_ms": round((start - submitted) * 1e3, 3),
            "compute_ms": round((end - start) * 1e3, 3),
            "compiled": compiled,
            "nonfinite": sum(int(a.size - np.isfinite(a).sum()) for a in found.values()),
            "casts": list(work.casts),
        }
        return arrays, info

    def _load(self) -> None:
        self._device = device()
        entries = scan(models.zoo, "MODEL")
        wanted = self._settings.models if self._settings.models is not None else tuple(entries)
        for name in wanted:
            if name not in entries:
                raise UnknownModel(f"PUSHFORWARD_MODELS names {name!r}; built in are: {', '.join(entries)}")
            self._register(entries[name].load(), entries[name].summary)
        directory = self._settings.models_dir
        if directory is not None:
            if not directory.is_dir():
                raise NotADirectoryError(f"{variable('models_dir')} is {str(directory)!r}, which is no directory")
            for model in load_directory(directory):
                self._register(model, "loaded from a .keras archive")
        if self._settings.warm:
            for model in self._models.values():
                self._warm(model)

    def _register(self, model: Model, summary: str) -> None:
        if model.name in self._models:
            raise ValueError(f"two models are named {model.name!r}; rename one")
        signature = model.signature
        arrays = (*signature.inputs, *signature.states, *signature.hidden, *signature.parameters, *signature.outputs)
        foreign = next((a for a in arrays if a.dtype not in DTYPES), None)
        if foreign is not None:
            raise UnsafeModel(
                f"model {model.name!r}: {foreign.name} holds {foreign.dtype}, which no format can carry; save it with "
                "the dtype policy float32 or mixed_float16"
            )
        self._models[model.name] = model
        self._summaries[model.name] = summary

    def _warm(self, model: Model) -> None:
        for operator in self._operators.values():
            try:
                request = operator.example(model)
            except NotDifferentiable:
                continue  # This operator has nothing to do on this model.
            fields = operator.request_fields
            arrays = {f: {n: np.asarray(a) for n, a in request.get(f, {}).items()} for f in fields}
            options = {name: value for name, value in request.items() if name not in (*fields, "model")}
            call = Call(model.name, operator.name, arrays, options)
            self._programs.warm(model, operator.name, operator.prepare(model, call))

    def _enter(self) -> None:
        self._pending += 1
        self._idle.clear()

    def _leave(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._idle.set()
