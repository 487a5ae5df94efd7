"""Right-answer checks that know nothing of autodiff: the adjoint identity, central differences, and their tolerances.

Everything here is NumPy on dictionaries of arrays, so that an operator over many names, a program behind HTTP and a
function of TensorFlow are checked alike.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]
Function = Callable[[Arrays], Arrays]
"""The function itself: inputs to outputs."""
Rule = Callable[[Arrays, Arrays], Arrays]
"""A JVP, `(inputs, tangents) -> tangents of outputs`, or a VJP, `(inputs, cotangents) -> cotangents of inputs`."""


@dataclass(frozen=True)
class Tolerances:
    """What may be left over in one dtype: relative to the largest number compared.

    `adjoint` is for `adjoint_error`, `difference` for a JVP against `central_difference`, `equality` for two ways to
    compute one thing, such as strategies, `joined` for a call that was computed with others against the same alone. In
    float32 the latter is relative to 1 if that is more: a score is a sum of numbers that cancel each other.
    """

    adjoint: float
    difference: float
    equality: float
    joined: float


# Differences in float16 see a wrong sign or a missing factor, little more: check such a model in a wider dtype, too.
TOLERANCES: Mapping[str, Tolerances] = {
    "float64": Tolerances(adjoint=1e-12, difference=1e-6, equality=1e-12, joined=1e-14),
    "float32": Tolerances(adjoint=1e-5, difference=5e-3, equality=1e-5, joined=1e-6),
    "float16": Tolerances(adjoint=1e-2, difference=5e-1, equality=1e-2, joined=1e-2),
}


def adjoint_error(jvp: Rule, vjp: Rule, inputs: Arrays, *, wrt: Iterable[str] | None = None, seed: int = 0) -> float:
    """Measure |⟨u, J v⟩ - ⟨Jᵀ u, v⟩| relative to the magnitudes, in one random direction v and codirection u.

    The dot-product test of Claerbout, Earth Soundings Analysis (1992), ch. 5; for derivative code, Griewank and
    Walther, Evaluating Derivatives (doi:10.1137/1.9780898717761), ch. 3. It proves that two rules belong together, not
    that they are right: two rules wrong alike pass, so use it beside `central_difference`.

    Args:
        jvp: tangents of the inputs named in `wrt` to tangents of the outputs.
        vjp: cotangents of all outputs to cotangents of the inputs named in `wrt`.
        inputs: the point.
        wrt: names of the inputs that move; all floating ones if not given.
        seed: of the directions.
    """
    rng = np.random.default_rng(seed)
    tangents = random_like({name: inputs[name] for name in _moving(inputs, wrt)}, rng)
    pushed = jvp(inputs, tangents)
    cotangents = random_like(pushed, rng)
    pulled = vjp(inputs, cotangents)
    return adjoint_gap(cotangents, pushed, pulled, tangents)


def adjoint_gap(cotangents: Arrays, pushed: Arrays, pulled: Arrays, tangents: Arrays) -> float:
    """Return |⟨u, J v⟩ - ⟨Jᵀ u, v⟩| relative to the magnitudes, NaN if anything is not finite.

    Args:
        cotangents: u.
        pushed: J v.
        pulled: Jᵀ u.
        tangents: v.
    """
    gap = abs(inner(cotangents, pushed) - inner(pulled, tangents))
    return relative(gap, norm(cotangents) * norm(pushed), norm(pulled) * norm(tangents))


def relative(gap: float, *sizes: float) -> float:
    """Divide by the largest of several sizes, or by nothing if all are 0; NaN if one of them is not finite."""
    size = float(np.max(sizes))
    return float("nan") if not np.isfinite(size) else gap / size if size else gap


def central_difference(
    function: Function, inputs: Arrays, tangents: Arrays, *, step: float | None = None
) -> dict[str, np.ndarray]:
    """Compute (f(x + s v) - f(x - s v)) / 2s, an approximation of the JVP good to about the square of the step.

    Args:
        function: inputs to outputs.
        inputs: the point; names without a tangent stay where they are.
        tangents: the direction v.
        step: s; `difference_step` if not given.
    """
    moved = {name: np.asarray(inputs[name]) for name in tangents}
    if step is None:
        step = difference_step(inputs, tangents)
    ends = [
        function({**inputs, **{n: (x + sign * step * tangents[n]).astype(x.dtype) for n, x in moved.items()}})
        for sign in (1, -1)
    ]
    return {name: (_wide(up) - _wide(ends[1][name])) / (2 * step) for name, up in ends[0].items()}


def difference_step(inputs: Arrays, tangents: Arrays, *, dtype: str | None = None) -> float:
    """Choose the step of a central difference.

    The step that balances truncation against rounding is the cube root of the machine epsilon, scaled to x: Press et
    al., Numerical Recipes, 3rd ed. (2007), sec. 5.7. No array of the direction moves further than that allows.

    Args:
        inputs: the point x, by at least the names of the direction.
        tangents: the direction v.
        dtype: the coarsest dtype computed in; if not given, the coarsest of the inputs that move.
    """
    moved = {name: np.asarray(inputs[name]) for name in tangents}
    epsilon = max(np.finfo(t).eps for t in ([dtype] if dtype else [x.dtype for x in moved.values()]))
    # Arrays that don't move allow any step.
    sizes = [(max(1.0, largest({name: x})), largest({name: tangents[name]})) for name, x in moved.items()]
    return float(np.cbrt(epsilon)) * min((x / v for x, v in sizes if v), default=max(x for x, _ in sizes))


def compare(found: Arrays, wanted: Arrays, *, floor: float = 0.0) -> float:
    """Return the largest difference in any array, relative to the largest number of that array.

    Args:
        found: what is checked.
        wanted: the right answer.
        floor: the smallest magnitude to divide by; give it where an array may be zero but for rounding.

    Returns:
        0 for equal arrays, infinity if one has a NaN or an infinity where the other has not.

    Raises:
        ValueError: if names or shapes differ.
    """
    if set(found) != set(wanted):
        raise ValueError(f"expected the names {sorted(wanted)}, got {sorted(found)}")
    return max((_difference(name, found[name], wanted[name], floor) for name in wanted), default=0.0)


def random_like(arrays: Arrays, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw a direction: standard normal numbers in the shapes and dtypes of `arrays`."""
    return {n: rng.normal(size=np.shape(a)).astype(np.asarray(a).dtype) for n, a in arrays.items()}


def inner(a: Arrays, b: Arrays) -> float:
    """Return the inner product of two dictionaries of arrays, in double precision.

    Raises:
        ValueError: if names differ.
    """
    if set(a) != set(b):
        raise ValueError(f"expected the names {sorted(b)}, got {sorted(a)}")
    return sum(float(np.vdot(_wide(a[name]), _wide(b[name]))) for name in a)


def norm(arrays: Arrays) -> float:
    """Return the Euclidean norm of all arrays together."""
    return float(np.sqrt(inner(arrays, arrays)))


def largest(arrays: Arrays) -> float:
    """Return the largest magnitude in any array, 0 if there is none."""
    return max((float(np.abs(_wide(a)).max(initial=0.0)) for a in arrays.values()), default=0.0)


def _difference(name: str, found: np.ndarray, wanted: np.ndarray, floor: float) -> float:
    if np.shape(found) != np.shape(wanted):
        raise ValueError(f"{name}: expected shape {np.shape(wanted)}, got {np.shape(found)}")
    a, b = _wide(found), _wide(wanted)
    different = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not different.any():
        return 0.0
    gap = np.abs(a - b)[different].max()
    finite = np.abs(b[np.isfinite(b)])
    scale = max(floor, finite.max(initial=0.0))
    return float(gap / scale) if np.isfinite(gap) and scale else float("inf")


def _moving(inputs: Arrays, wrt: Iterable[str] | None) -> list[str]:
    return [n for n, a in inputs.items() if np.asarray(a).dtype.kind == "f"] if wrt is None else list(wrt)


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.float64)
