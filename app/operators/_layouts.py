"""Which shapes the programs of a work take, and how it is joined with others: what its kind of request decides."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from app.operators._lengths import LENGTHS_PATH, Feeds
from app.operators._rows import Layout
from models.model import Model
from models.signature import LENGTHS

# How many kinds of requests are remembered.
_KINDS = 512


def free_shapes(model: Model, feeds: Feeds, exact: bool = False) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes that a program takes, with the free axes of the signature; with `exact` these very sizes."""
    if exact:
        return {path: array.shape for path, array in feeds.items()}
    return dict(_free_shapes(model, _ranks(feeds)))


def layout(
    model: Model, feeds: Feeds, outputs: Sequence[str], directions: Sequence[str] = (), wrt: Sequence[str] = ()
) -> Layout | None:
    """Tell how works of an operator can be joined: where their rows and steps are.

    Args:
        model: the model.
        feeds: what a work feeds.
        outputs: the outputs that it returns.
        directions: those that it returns tangents of.
        wrt: those arrays of the input side that it returns cotangents of.

    Returns:
        None if they can't: if rows of the model know of each other, or an array has none, such as a weight's tangent.
    """
    results = [("outputs", outputs), ("tangents", directions), ("cotangents", wrt)]
    paths = tuple(f"{field}.{name}" for field, names in results for name in names)
    return _layout(model, _ranks(feeds), paths)


_Ranks = tuple[tuple[str, int], ...]


def _ranks(feeds: Feeds) -> _Ranks:
    return tuple((path, array.ndim) for path, array in feeds.items())


# Requests of a kind come many times, and what they have in common takes as long to find out as a small model computes.
@lru_cache(_KINDS)
def _free_shapes(model: Model, ranks: _Ranks) -> Mapping[str, tuple[int | None, ...]]:
    specs: dict[str, tuple[int | None, ...]] = {a.name: a.shape for a in model.signature.arrays}
    specs[LENGTHS] = (None,)
    shapes: dict[str, tuple[int | None, ...]] = {}
    for path, rank in ranks:
        field, _, name = path.partition(".")
        stacked = (None,) * (rank - len(specs[name])) if field != "inputs" else ()
        shapes[path] = (*stacked, *specs[name])
    return shapes


@lru_cache(_KINDS)
def _layout(model: Model, ranks: _Ranks, results: tuple[str, ...]) -> Layout | None:
    signature = model.signature
    if signature.mixing is not None:
        return None
    axes = {a.name: a.axes for a in signature.arrays} | {LENGTHS: ("batch",)}
    stacked = any(len(axes[path.partition(".")[2]]) < rank for path, rank in ranks)

    def named(path: str) -> tuple[str, ...]:
        field, _, name = path.partition(".")
        return (*("directions",) * (stacked and field in ("tangents", "cotangents")), *axes[name])

    given, found = {path: named(path) for path, _ in ranks}, {path: named(path) for path in results}
    if not all("batch" in names for names in (*given.values(), *found.values())):
        return None
    by_step = all("time" in axes[path.partition(".")[2]] for path in results if path.startswith("outputs."))
    # More padding changes nothing where padding is skipped.
    padded = LENGTHS_PATH in given or (signature.causal and signature.one_length and by_step)
    return Layout(given, found, padded, pulled=any(path.startswith("cotangents.") for path in results))


def count_rows(feeds: Feeds, directions: int | None) -> int:
    """Count rows: sequences times directions."""
    return next(iter(feeds.values())).shape[0] * (directions or 1)
