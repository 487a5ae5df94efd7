"""Names, shapes, dtypes and axes of everything that can go into a model, come out of it or be differentiated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from pushforward.errors import InvalidArray, NotDifferentiable, UnknownName

STRATEGIES = ("scan", "unrolled", "reverse")

LENGTHS = "/lengths"
"""The name among a model's inputs of how many steps each row has; Keras allows no slash in names of its own."""


@dataclass(frozen=True)
class Array:
    """One named array; None in `shape` is a free axis. Shapes include the batch axis, except for parameters."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    axes: tuple[str, ...]
    differentiable: bool

    def describe(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "axes": list(self.axes),
            "differentiable": self.differentiable,
        }

    @property
    def layout(self) -> str:
        """The shape as people write it, `(batch, time, 4)`."""
        return f"({', '.join(a if n is None else str(n) for a, n in zip(self.axes, self.shape, strict=True))})"


@dataclass(frozen=True)
class Signature:
    """All arrays of a model.

    `states` are final states as outputs and initial states as inputs; `wired` names those whose initial value another
    layer computes, so that a request cannot give it. `hidden` is the state after each step: an output, or, as an input,
    a zero perturbation added there; so is the output of an Embedding. `parameters` can be directions and gradients, but
    not values. `obstacle` says why the model can't be run step by step, its states handed on; None if it can. `mixing`
    says why rows of a batch may know of each other; None if they don't. `padding` says why rows can't have lengths of
    their own, shorter ones padded at the end; None if they can. With `one_length` all sequences have as many
    steps as the one input that is a sequence; without, only a run of the model tells how many each has.
    """

    inputs: tuple[Array, ...]
    states: tuple[Array, ...]
    hidden: tuple[Array, ...]
    parameters: tuple[Array, ...]
    outputs: tuple[Array, ...]
    wired: frozenset[str]
    causal: bool
    one_length: bool
    obstacle: str | None
    mixing: str | None
    padding: str | None
    dtype: str

    @property
    def arrays(self) -> list[Array]:
        """All of them."""
        return [*self.inputs, *self.states, *self.hidden, *self.parameters, *self.outputs]

    @property
    def sequences(self) -> list[Array]:
        """The inputs that have a time axis."""
        return [a for a in self.inputs if "time" in a.axes]

    @property
    def after_steps(self) -> dict[str, str]:
        """The name of each state after every step, by the state's own: `hidden.gru.h` by `state.gru.h`."""
        return {s.name: "hidden." + s.name.removeprefix("state.") for s in self.states}

    def describe(self) -> dict[str, Any]:
        """Return the JSON form."""
        groups = ("inputs", "states", "hidden", "parameters", "outputs")
        return {
            **{group: [a.describe() for a in getattr(self, group)] for group in groups},
            "wired": sorted(self.wired),
            "causal": self.causal,
            "stepwise": self.obstacle is None,
            "obstacle": self.obstacle,
            "rowwise": self.mixing is None,
            "ragged": self.padding is None,
            "ragged_obstacle": self.padding,
            "dtype": self.dtype,
            "strategies": ["auto", *STRATEGIES],
        }

    def given(self, name: str, path: str) -> Array:
        """Look up an array whose value a request may give: an input or an initial state.

        Raises:
            UnknownName: with the reason and the names that exist.
        """
        if name.startswith(("param.", "hidden.")) and self._find(name, [*self.parameters, *self.hidden]):
            reason = (
                "weights can't be overridden in a request" if name[0] == "p" else "it is always a zero perturbation"
            )
            raise UnknownName(f"{name} can be a direction or a gradient, not an input: {reason}", path=path)
        if name in self.wired:
            raise UnknownName(
                f"{name} can't be given: another layer of the model computes this initial state", path=path
            )
        return self._known(name, [*self.inputs, *self.states], path, "among the inputs")

    def source(self, name: str, path: str) -> Array:
        """Look up an array that can be differentiated with respect to: on the input side.

        Raises:
            UnknownName: if there is none.
            NotDifferentiable: if it holds integers.
        """
        states = [s for s in self.states if s.name not in self.wired]
        array = self._known(name, [*self.inputs, *states, *self.hidden, *self.parameters], path, "on the input side")
        if array.differentiable:
            return array
        places = [a.name for a in self.hidden if a.name.endswith(".output")]
        hint = f"ask at the embedding's output, {places[0]}" if places else "ask for what it is turned into"
        raise NotDifferentiable(
            f"{name} holds {array.dtype}, which has no tangent; {hint}",
            path=path,
            expected=places or "a floating-point array of the input side",
            received=array.dtype,
        )

    def target(self, name: str, path: str) -> Array:
        """Look up an array on the output side.

        Raises:
            UnknownName: if there is none.
        """
        return self._known(name, [*self.outputs, *self.states, *self.hidden], path, "on the output side")

    def group(self, name: str, initial: bool) -> list[Array]:
        """Return the states that `state`, or `state.<layer>`, stands for, in order; none if it is another name.

        Args:
            name: the name.
            initial: only those whose initial value is not computed by another layer.
        """
        if name != "state" and self._find(name, self.states):
            return []
        return [
            s
            for s in self.states
            if (name == "state" or s.name.startswith(f"{name}."))
            and name.startswith("state")
            and len(s.shape) == 2
            and not (initial and s.name in self.wired)
        ]

    def _find(self, name: str, among: Iterable[Array]) -> Array | None:
        return next((a for a in among if a.name == name), None)

    def _known(self, name: str, among: Sequence[Array], path: str, side: str) -> Array:
        found = self._find(name, among)
        if found is not None:
            return found
        names = [a.name for a in among]
        close = get_close_matches(str(name), names, 1)
        meant = f"; did you mean {close[0]}?" if close else ";"
        shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise UnknownName(
            f"there is no {str(name)[:80]!r} {side}{meant} there are: {shown}",
            path=path,
            expected=names,
        )


def fit(array: np.ndarray, spec: Array, path: str, casts: list[str]) -> np.ndarray:
    """Check one array against its specification and bring it to the specified dtype.

    Args:
        array: what a request holds.
        spec: what is expected; axes of a batch or time may have any size from 1 up.
        path: where the array stands in the request, for messages.
        casts: a note is appended here if precision or type changes.

    Raises:
        InvalidArray: naming the array, what was expected, what came and what to change.
    """
    shape = array.shape
    if len(shape) != len(spec.shape):
        raise _misfit(path, spec, shape, _rank_hint(shape, spec))
    for size, wanted, axis in zip(shape, spec.shape, spec.axes, strict=True):
        if wanted is not None and size != wanted:
            raise _misfit(path, spec, shape, f"axis {axis} must have size {wanted}, not {size}")
        if wanted is None and size == 0:
            raise _misfit(path, spec, shape, f"axis {axis} must not be empty")
    return cast(array, spec.dtype, path, casts)


def cast(array: np.ndarray, dtype: str, path: str, casts: list[str]) -> np.ndarray:
    """Bring an array to the model's dtype, noting the cast; refuse what would change its meaning."""
    wanted = np.dtype(dtype)
    if array.dtype == wanted:
        return array
    kinds = {"f": "fiub", "i": "iu", "u": "iu", "b": "b"}.get(wanted.kind, wanted.kind)
    if array.dtype.kind not in kinds:
        raise InvalidArray(
            f"expected numbers that convert to {dtype}, got {array.dtype}; send {dtype}",
            path=path,
            expected=dtype,
            received=str(array.dtype),
        )
    if wanted.kind in "iu" and array.size and not _fits(array, wanted):
        raise InvalidArray(f"expected values that fit {dtype}, got some beyond its range", path=path, expected=dtype)
    with np.errstate(over="ignore"):
        found = array.astype(wanted)
    if wanted.kind == "f" and np.count_nonzero(np.isinf(found)) > np.count_nonzero(np.isinf(array)):
        raise InvalidArray(f"expected values that fit {dtype}, got some beyond its range", path=path, expected=dtype)
    casts.append(f"{path}: {array.dtype} to {dtype}")
    return found


def _fits(array: np.ndarray, dtype: np.dtype) -> bool:
    info = np.iinfo(dtype)
    return int(array.min()) >= info.min and int(array.max()) <= info.max


def _rank_hint(shape: tuple[int, ...], spec: Array) -> str:
    missing = len(spec.shape) - len(shape)
    if missing == 1 and spec.shape[-1] is not None and shape[-1:] != spec.shape[-1:]:
        return f"add a {spec.axes[-1]} axis"
    if missing == 1 and spec.axes[0] == "batch":
        return "add a batch axis in front"
    return f"the array must have {len(spec.shape)} axes, not {len(shape)}"


def _misfit(path: str, spec: Array, shape: tuple[int, ...], hint: str) -> InvalidArray:
    return InvalidArray(
        f"expected shape {spec.layout}, got {shape}; {hint}",
        path=path,
        expected=list(spec.shape),
        received=list(shape),
    )
