"""`POST /jacobian`: one block of the Jacobian of each sample, `[b, i, j] = d of[b, i] / d wrt[b, j]`."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from app.calls import Call
from app.operators import _check
from app.operators import _reading as reading
from app.operators._blocks import Run
from app.operators._chained import Chained
from app.operators._lengths import LENGTHS_PATH
from app.operators._operator import Job, Whole
from app.operators._plan import MODES, make_plan
from app.operators._sides import Side
from app.operators._slices import Slice, parse, select
from app.operators._task import Task
from models.model import Model
from pushforward.errors import NotDifferentiable

# What a block may take, of which a stream holds a few at once, and what a chunk may hold while it is computed.
BLOCK_BYTES = 32_000_000
CHUNK_BYTES = 24_000_000

# Compiling takes seconds for every new size of a slice; with less to do, a program that is not compiled takes
# milliseconds.
_WORTH_COMPILING = 2e7

# Copies of one-hot directions and of their results, which are transposed and cut.
_COPIES = 3

SLICE = "an array's name and NumPy's basic indexing of its axes without the batch axis, such as `y[-1, :]`"


class _Jacobian:
    name = "jacobian"
    summary = "A block of the Jacobian of each sample"
    description = (
        f"`of` and `wrt` are slices: {SLICE}. An integer drops its axis; axes at the end may be left out. The answer "
        "has the shape `(batch, *of, *wrt)`, entry `[b, i, j]` is d of[b, i] / d wrt[b, j], and `axes` names its axes. "
        "`state` and `state.<layer>` are all states, and all of a layer's, side by side in the order that `order` "
        "tells. With `plan` nothing is computed: `info` tells shape, bytes, mode, passes and an estimate of seconds. "
        "A large Jacobian as safetensors is sent while it is computed."
    )
    request_fields: Sequence[str] = ("inputs",)
    response_fields: Sequence[str] = ("jacobian",)
    options: Mapping[str, Mapping[str, Any]] = {
        "of": {"type": "string", "description": f"What is differentiated, on the output side: {SLICE}."},
        "wrt": {"type": "string", "description": f"With respect to what, on the input side: {SLICE}."},
        "mode": {
            "enum": ["auto", *MODES],
            "default": "auto",
            "description": "forward: a pass per element of `wrt`; reverse: one per element of `of`; auto: the cheaper.",
        },
        "plan": {"type": "boolean", "default": False, "description": "Only tell what would be computed."},
        "check": _check.OPTION,
    }
    required: Sequence[str] = ("inputs", "of", "wrt")
    quick = False
    answer_members: Mapping[str, Mapping[str, Any]] = {
        "axes": {"type": "array", "items": {"type": "string"}, "description": "The name of each axis."},
        "order": {
            "type": "object",
            "description": "For a side of several states: the range of each along its axis, such as `lstm.c[64:128]`.",
        },
    }

    def prepare(self, model: Model, call: Call) -> Job:
        casts: list[str] = []
        feeds = reading.read_inputs(model, call, casts)
        of = self._side(model, parse(call.options.get("of"), "of"), "of", feeds)
        wrt = self._side(model, parse(call.options.get("wrt"), "wrt"), "wrt", feeds)
        mode = reading.read_choice(call, "mode", ["auto", *MODES])
        signature = model.signature
        sequences = [a.name for a in signature.sequences]
        task = Task(
            of=of,
            wrt=wrt,
            batch=next(iter(feeds.values())).shape[0],
            length=feeds[f"inputs.{sequences[0]}"].shape[1] if len(sequences) == 1 else 1,
            causal=signature.causal and signature.one_length,
            # A padded step repeats an output that a later piece of the sequence would not know.
            stepwise=signature.obstacle is None and LENGTHS_PATH not in feeds,
            initial=all(a.name in {s.name for s in signature.states} for a in wrt.arrays),
            width=_width(model, of, wrt),
            numbers=_numbers(model, of, wrt),
            flops=2 * sum(prod(n or 1 for n in p.shape) for p in signature.parameters),
            dtype=of.arrays[0].dtype,
            block_bytes=BLOCK_BYTES,
            chunk_bytes=CHUNK_BYTES,
        )
        plan = make_plan(task, mode)
        flops = task.flops * plan.steps * task.batch
        if plan.links is None:
            run = Run(model, feeds, task, plan, flops > _WORTH_COMPILING)
        else:
            run = Chained(model, feeds, task, plan.links, flops > _WORTH_COMPILING)
        axes = ["batch", *of.selection.labels, *wrt.selection.labels]
        order = {name: side.order for name, side in (("of", of), ("wrt", wrt)) if side.order}
        return Job(
            steps=run.steps,
            rows=plan.passes * task.batch,
            strategy="scan",
            casts=casts,
            whole=Whole("jacobian", task.shape, task.dtype),
            flops=flops,
            info={
                "mode": plan.mode,
                "passes": plan.passes,
                "steps": plan.steps,
                "chunks": plan.count,
                "shape": list(task.shape),
                "bytes": task.nbytes,
                "why": plan.why,
            },
            extra={"axes": axes, **({"order": order} if order else {})},
            plan_only=reading.read_flag(call, "plan"),
            check=_check.of_blocks(model, feeds, {"jacobian": (of, wrt)}) if reading.read_flag(call, "check") else None,
        )

    def example(self, model: Model) -> dict[str, Any]:
        s = model.signature
        of = next((a for a in (*s.outputs, *s.states, *s.hidden) if a.differentiable), None)
        if of is None:
            raise NotDifferentiable(f"model {model.name!r} has nothing on its output side that holds real numbers")
        return {
            "model": model.name,
            "inputs": reading.example_input(model),
            "of": of.name,
            "wrt": reading.example_source(model).name,
        }

    def _side(self, model: Model, part: Slice, path: str, feeds: reading.Feeds) -> Side:
        signature = model.signature
        arrays = signature.group(part.name, path == "wrt")
        if not arrays:
            found = signature.target(part.name, path) if path == "of" else signature.source(part.name, path)
            if not found.differentiable:
                raise NotDifferentiable(f"{found.name} holds {found.dtype}, which has no derivative", path=path)
            arrays = [found]
        sized = [reading.sized(a, feeds, model) for a in arrays]
        batched = sized[0].axes[:1] == ("batch",)
        sizes, axes = sized[0].shape[batched:], sized[0].axes[batched:]
        if len(sized) > 1:
            sizes = (sum(a.shape[-1] or 0 for a in sized),)
        if None in sizes:
            sizes = model.sizes(part.name, {p.partition(".")[2]: f for p, f in feeds.items()})
        selection = select(part, axes, [n or 0 for n in sizes], path)
        timed = signature.causal and signature.one_length and batched and axes[:1] == ("time",)
        return Side(tuple(sized), selection, batched, timed)


def _numbers(model: Model, of: Side, wrt: Side) -> int:
    """Count the numbers of all states side by side; 0 if they can't be, or NumPy has no fast products of them."""
    states = model.signature.states
    dtypes = {a.dtype for a in (*states, *of.arrays, *wrt.arrays)}
    if not all(len(s.shape) == 2 for s in states) or dtypes not in ({"float32"}, {"float64"}):
        return 0
    return sum(s.shape[-1] or 0 for s in states)


def _width(model: Model, of: Side, wrt: Side) -> int:
    """Count the numbers that a direction holds at each step: a stack of states, and one-hot and transposed copies."""
    hidden = [prod(n or 1 for n in a.shape[2:]) for a in model.signature.hidden]
    sides = [prod(side.selection.sizes[1:]) for side in (of, wrt) if "time" in side.selection.axes]
    return max(1, sum(hidden) + _COPIES * sum(sides))


OPERATOR = _Jacobian()
