"""Where time is in each array of a model, and whether the model can be cut there, read from its description."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pushforward.errors import InvalidRequest, UnknownName


@dataclass(frozen=True)
class Spec:
    """An array of the signature.

    Attributes:
        name: Its name.
        rank: How many axes it has, the batch's included.
        time: Which of them is time; None if none is.
        differentiable: Whether it has tangents.
    """

    name: str
    rank: int
    time: int | None
    differentiable: bool

    def axis(self, rank: int) -> int:
        """Where time is in an array of this rank, which may hold stacked directions in front."""
        if self.time is None:
            raise ValueError(f"{self.name} has no time axis")
        return self.time + rank - self.rank


@dataclass(frozen=True)
class Layout:
    """A model that can be cut in time.

    Attributes:
        name: The model's name.
        version: The version that this describes.
        sequence: Its one input that has a time axis.
        inputs: Its inputs, in order.
        states: What one piece leaves to the next, in order.
        outputs: The model's own outputs, in order.
        sources: Everything on the input side, by name.
        targets: Everything on the output side, by name.
    """

    name: str
    version: int
    sequence: Spec
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    sources: Mapping[str, Spec]
    targets: Mapping[str, Spec]

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> "Layout":
        """Read a model's description.

        Raises:
            InvalidRequest: if the model can't be cut in time; the text says why.
        """
        name = str(description.get("name"))
        if not description.get("stepwise"):
            raise _uncut(name, description.get("obstacle") or "it does not work step by step")
        inputs, states, hidden, outputs, parameters = (
            _specs(description, group) for group in ("inputs", "states", "hidden", "outputs", "parameters")
        )
        sequence = next((s for s in inputs if s.time is not None), None)
        if sequence is None:
            raise _uncut(name, "no input has a free time axis; build it with one, keras.Input((None, features))")
        return cls(
            name,
            int(description["version"]),
            sequence,
            tuple(s.name for s in inputs),
            tuple(s.name for s in states),
            tuple(s.name for s in outputs),
            {s.name: s for s in (*inputs, *states, *hidden, *parameters)},
            {s.name: s for s in (*outputs, *states, *hidden)},
        )

    @property
    def model(self) -> str:
        """What requests call this version, whichever comes after it."""
        return f"{self.name}@{self.version}"

    @property
    def moving_states(self) -> list[str]:
        """The states that have tangents."""
        return [name for name in self.states if self.sources[name].differentiable]

    def source(self, name: str, path: str) -> Spec:
        """Look up an array of the input side.

        Raises:
            UnknownName: if there is none.
        """
        return _known(self.sources, name, path)

    def target(self, name: str, path: str) -> Spec:
        """Look up an array of the output side.

        Raises:
            UnknownName: if there is none.
        """
        return _known(self.targets, name, path)


def _known(specs: Mapping[str, Spec], name: str, path: str) -> Spec:
    if name not in specs:
        raise UnknownName(
            f"there is no {name!r} in this model; there are: {', '.join(specs)}", path=path, expected=list(specs)
        )
    return specs[name]


def _specs(description: Mapping[str, Any], group: str) -> list[Spec]:
    entries: Iterable[Mapping[str, Any]] = description[group]
    return [Spec(a["name"], len(a["shape"]), _time(a), a["differentiable"]) for a in entries]


def _time(array: Mapping[str, Any]) -> int | None:
    # An axis of a fixed size is not what pieces of any length could be joined along: the image in the last state of a
    # ConvLSTM, for one, passes for a sequence by its rank.
    axes = array["axes"]
    return axes.index("time") if "time" in axes and array["shape"][axes.index("time")] is None else None


def _uncut(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name!r} can't be computed piece by piece: {reason}; send the whole sequence in one request", path="model"
    )
