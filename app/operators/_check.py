"""`"check": true`: the numbers of an answer against the adjoint identity and against central differences."""

from collections.abc import Generator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from app.operators._measure import Compared, Measured, measure, of_field, value_of
from app.operators._operator import Arrays, Check, Work
from app.operators._sides import Side
from models.gradcheck import adjoint_gap, inner, largest, norm, random_like, relative
from models.model import Model

OPTION: Mapping[str, Any] = {
    "type": "boolean",
    "default": False,
    "description": "Also check this very answer: `info.check` tells the adjoint identity's error and the error against "
    "central differences, both relative and along one random direction, with masks held fixed; the step used; and "
    "whether the errors are tolerable. An error is null, and `note` says why, where it can't be told.",
}

# Equal requests get equal checks.
_SEED = 20

_Finding = Generator[Work, Arrays, dict[str, Any]]


def of_tangents(model: Model, work: Work, stacked: bool) -> Check:
    """Make the check of a JVP: v is the request's direction, or a random combination of its stacked directions.

    Args:
        model: the model.
        work: what computed the answer, from `inputs.*` and `tangents.*`.
        stacked: whether there are several directions.
    """

    def check(answer: Arrays) -> _Finding:
        rng = np.random.default_rng(_SEED)
        v = of_field(work.feeds, "tangents")
        pushed = {n: a for n, a in of_field(answer, "tangents").items() if a.dtype.kind == "f"}
        if stacked:
            v, pushed = _combine(v, pushed, rng)
        u = random_like(pushed, rng)
        found = yield from measure(model, of_field(work.feeds, "inputs"), v, u)
        differences = found.differences
        errors = [differences[name].error(a) for name, a in pushed.items()]
        return found.report(adjoint_gap(u, pushed, found.reverse, v), _worst(errors), differences.values())

    return _quietly(check)


def of_cotangents(model: Model, work: Work, stacked: bool) -> Check:
    """Make the check of a VJP: u is the request's codirection, or a random combination of its stacked ones.

    The direction v is half random, half along the answer: the product of the answer with many random numbers alone is
    so small, beside their sizes, that errors in it would not be seen.

    Args:
        model: the model.
        work: what computed the answer, from `inputs.*` and `cotangents.*`.
        stacked: whether there are several codirections.
    """

    def check(answer: Arrays) -> _Finding:
        rng = np.random.default_rng(_SEED)
        u, pulled = of_field(work.feeds, "cotangents"), of_field(answer, "cotangents")
        if stacked:
            u, pulled = _combine(u, pulled, rng)
        inputs = of_field(work.feeds, "inputs")
        v = _scaled(model, inputs, _towards(pulled, rng))
        found = yield from measure(model, inputs, v, u)
        slopes = {name: c.found for name, c in found.differences.items()}
        gap = abs(inner(u, slopes) - inner(pulled, v))
        floor = sum(norm({name: u[name]}) * c.floor for name, c in found.differences.items())
        error = relative(gap, _bound(u, slopes), _bound(pulled, v), floor)
        kinks_only = all(c.kinks.all() for c in found.differences.values())
        adjoint = adjoint_gap(u, found.forward, pulled, v)
        return found.report(adjoint, None if kinks_only else error, found.differences.values())

    return _quietly(check)


def of_blocks(model: Model, inputs: Arrays, blocks: Mapping[str, tuple[Side, Side]]) -> Check:
    """Make the check of blocks of the Jacobian at one point: v moves all elements of their columns, u of their rows.

    The blocks of each row are summed, so they must be all by which v reaches it: of several columns, each row needs the
    blocks of all. So the four matrices of a state-space model are checked together, with all steps as one batch.

    Args:
        model: the model.
        inputs: the point, by path.
        blocks: for each path in the answer, what is differentiated and with respect to what. The array there has as
            many numbers, in the same order, as `(batch, *of, *wrt)`.
    """

    def check(answer: Arrays) -> _Finding:
        rng = np.random.default_rng(_SEED)
        given = of_field(inputs, "inputs")
        batch = next(iter(given.values())).shape[0]
        rows = {of.selection.name: of for of, _ in blocks.values()}
        columns = {wrt.selection.name: wrt for _, wrt in blocks.values()}
        v, u = _scaled(model, given, _draw(columns, batch, rng)), _draw(rows, batch, rng)
        found = yield from measure(model, given, v, u)
        pushed = {name: np.zeros((batch, of.count)) for name, of in rows.items()}
        pulled = {name: np.zeros_like(_taken(v, wrt), np.float64) for name, wrt in columns.items()}
        for path, (of, wrt) in blocks.items():
            block = np.asarray(answer[path], np.float64).reshape(batch, of.count, wrt.count)
            # A parameter is one for all samples.
            axes = "bc" if wrt.batched else "c"
            pushed[of.selection.name] += np.einsum(f"brc,{axes}->br", block, _taken(v, wrt))
            pulled[wrt.selection.name] += np.einsum(f"brc,br->{axes}", block, _taken(u, of))
        # A whole block knows both products, so each is compared number by number: for any other factor at once.
        ahead = _distance(pushed, {name: _taken(found.forward, of) for name, of in rows.items()})
        back = _distance(pulled, {name: _taken(found.reverse, wrt) for name, wrt in columns.items()})
        differences = {name: _compared(found, of) for name, of in rows.items()}
        errors = [differences[name].error(a) for name, a in pushed.items()]
        return found.report(float(np.max([ahead, back])), _worst(errors), differences.values())

    return _quietly(check)


def joined(findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the findings of checks of one answer: the worst of each error, and all notes."""
    first, *rest = findings
    found = dict(first)
    for other in rest:
        for error in ("adjoint", "difference"):
            known = [e for e in (found[error], other[error]) if e is not None]
            # An error that could not be told is no smaller than one that could, unless nothing but kinks hid it.
            found[error] = max(known) if len(known) == 2 or (other["passed"] and found["passed"] and known) else None
        found["passed"] = found["passed"] and other["passed"]
        notes = dict.fromkeys(f["note"] for f in (found, other) if "note" in f)
        found |= {"note": "; ".join(notes)} if notes else {}
    return found


def _worst(errors: list[float | None]) -> float | None:
    known = [e for e in errors if e is not None]
    return float(np.max(known)) if known else None


def _distance(a: Arrays, b: Arrays) -> float:
    return relative(norm({name: a[name] - b[name] for name in a}), norm(a), norm(b))


def _bound(a: Arrays, b: Arrays) -> float:
    """Bound an inner product, tighter than all norms at once where arrays differ in size."""
    return sum(norm({name: a[name]}) * norm({name: b[name]}) for name in a)


def _towards(arrays: Arrays, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw a direction that is half random and half along `arrays`, so that their product does not vanish."""
    lengths = {name: norm({name: a}) / np.sqrt(a.size) for name, a in arrays.items()}
    drawn = random_like(arrays, rng)
    return {n: (drawn[n] + a / (lengths[n] or 1.0)).astype(a.dtype) for n, a in arrays.items()}


def _scaled(model: Model, inputs: Arrays, direction: Arrays) -> dict[str, np.ndarray]:
    """Let each array move in proportion to its own numbers, so that one step is small in all of them, and seen."""
    sizes = {name: max(1.0, largest({name: value_of(model, inputs, name)})) for name in direction}
    return {name: (a * sizes[name]).astype(a.dtype) for name, a in direction.items()}


def _combine(
    directions: Arrays, results: Arrays, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Combine stacked directions, and likewise what came of them; each counts alike, however long it is."""
    count = next(iter(directions.values())).shape[0]
    lengths = np.array([norm({name: a[k] for name, a in directions.items()}) for k in range(count)])
    weights = rng.normal(size=count) / np.where(lengths > 0, lengths, 1.0)
    combined = ({n: np.tensordot(weights, a, 1).astype(a.dtype) for n, a in g.items()} for g in (directions, results))
    direction, result = combined
    return direction, result


def _draw(sides: Mapping[str, Side], batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw random numbers at the elements of slices, zero elsewhere, as arrays by the model's names."""
    found: dict[str, np.ndarray] = {}
    for side in sides.values():
        front, sizes = ((batch,) if side.batched else ()), side.selection.sizes
        flat = np.zeros((*front, prod(sizes)))
        flat[..., _places(side)] = rng.normal(size=(*front, side.count))
        ends = np.cumsum([a.shape[-1] or 0 for a in side.arrays[:-1]]) if len(side.arrays) > 1 else None
        whole = flat.reshape(*front, *sizes)
        parts = [whole] if ends is None else np.split(whole, ends, -1)
        found |= {a.name: part.astype(a.dtype) for a, part in zip(side.arrays, parts, strict=True)}
    return found


def _taken(arrays: Arrays, side: Side) -> np.ndarray:
    """Take the elements of a slice, `(batch, elements)` or `(elements,)`, of arrays by the model's names."""
    parts = [arrays[a.name] for a in side.arrays]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
    return whole.reshape(*whole.shape[: side.batched], -1)[..., _places(side)]


def _places(side: Side) -> np.ndarray:
    sizes = side.selection.sizes
    elements = side.selection.elements().T
    return np.asarray(np.ravel_multi_index(tuple(elements), sizes)) if sizes else np.zeros(1, np.int64)


def _compared(found: Measured, side: Side) -> Compared:
    own = {a.name: found.differences[a.name] for a in side.arrays}
    slopes, kinks = {n: c.found for n, c in own.items()}, {n: c.kinks for n, c in own.items()}
    return Compared(_taken(slopes, side), _taken(kinks, side), max(c.floor for c in own.values()))


def _quietly(check: Check) -> Check:
    """Let numbers that are not finite be what a check finds, not a warning of NumPy."""

    def quiet(answer: Arrays) -> _Finding:
        checking, found = check(answer), None
        while True:
            # Never across a yield: the setting belongs to the thread, where other calls are run meanwhile.
            with np.errstate(all="ignore"):
                try:
                    work = next(checking) if found is None else checking.send(found)
                except StopIteration as end:
                    return end.value
            found = yield work

    return quiet
