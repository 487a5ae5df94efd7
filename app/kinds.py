"""Requests of a kind, which differ in their numbers alone: one is checked in full, the next takes what was found.

Checking takes longer than a small model computes, and analysis programs send the same shapes again and again.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from app.calls import Call
from app.compiled import Recent
from app.operators._operator import Job, Operator
from models.model import Model

# Whose options are longer than this, as text, is not remembered.
_LONGEST = 1000


@dataclass(frozen=True)
class _Kind:
    job: Job
    places: tuple[tuple[str, str, str], ...]
    """Of each array that it feeds: its path, and its field and name in a call."""


class Kinds:
    """The kinds of requests that came lately.

    Only those are remembered whose arrays are taken as they are: what must be converted must be looked at each time.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int = 512) -> None:
        self._known: Recent[_Kind] = Recent(most)

    def prepare(self, operator: Operator, model: Model, call: Call) -> Job | None:
        """Return what `operator.prepare` would, if a call of this kind has been seen."""
        key = _key(operator, model, call)
        if key is None or (kind := self._known.get(key)) is None:
            return None
        arrays = call.arrays
        return kind.job.with_feeds({path: arrays[field][name] for path, field, name in kind.places})

    def learn(self, operator: Operator, model: Model, call: Call, job: Job) -> None:
        """Remember what a call was found to ask for."""
        key = _key(operator, model, call)
        if key is None or job.work is None or job.check is not None:
            return
        given = {
            f"{field}.{name}": (field, name, array)
            for field, group in call.arrays.items()
            for name, array in group.items()
        }
        feeds = job.work.feeds
        if feeds.keys() != given.keys() or any(given[path][2] is not array for path, array in feeds.items()):
            return
        places = tuple((path, *given[path][:2]) for path in feeds)
        _ = job.work.alike  # found out before the arrays are gone
        self._known.put(key, _Kind(job.with_feeds({}), places))

    def forget(self, model: Model) -> None:
        """Forget what was found for a model."""
        self._known.drop(lambda key: key[1] is model)


def _key(operator: Operator, model: Model, call: Call) -> Hashable | None:
    options = repr(call.options) if call.options else ""
    if len(options) > _LONGEST or call.lengths is not None:  # lengths are numbers that decide what is to be done
        return None
    arrays = tuple(
        (field, name, array.shape, array.dtype) for field, group in call.arrays.items() for name, array in group.items()
    )
    return (operator.name, model, options, arrays)
