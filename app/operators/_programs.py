"""The tensor programs of derivatives, shared by the operators: forward mode, reverse mode and reverse over reverse."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import tensorflow as tf

from models import _tf
from models.model import Model
from pushforward.errors import InvalidArray

Tensors = dict[str, tf.Tensor]
Run = Callable[[Tensors], Tensors]


def primals_of(arrays: Mapping[str, tf.Tensor], field: str = "inputs") -> Tensors:
    """Select the arrays of one field, by name."""
    return {path.partition(".")[2]: t for path, t in arrays.items() if path.startswith(field + ".")}


def by_field(**fields: Tensors) -> Tensors:
    """Join fields of named tensors into tensors by path."""
    return {f"{field}.{name}": t for field, group in fields.items() for name, t in group.items()}


def point_of(model: Model, given: Tensors, sources: Sequence[str]) -> Tensors:
    """Return the values of `sources`, each a tensor of its own, where the request or the model says."""
    return {n: tf.identity(given[n] if n in given else model.default(n, given)) for n in sources}


def push(run: Run, point: Tensors, tangents: Tensors, stacked: bool) -> tuple[Tensors, Tensors]:
    """Compute outputs and their tangents in forward mode; with `stacked`, K directions against one primal pass."""
    make = _tf.stacked_accumulator if stacked else tf.autodiff.ForwardAccumulator
    tangents = _of_shapes("tangents", tangents, point)
    names = list(tangents)
    with make([point[n] for n in names], [tangents[n] for n in names]) as accumulator:
        outputs = run(point)
    count = tf.shape(tangents[names[0]])[0] if stacked else None
    return outputs, {n: _or_zeros(accumulator.jvp(t), t, count) for n, t in outputs.items()}


def push_each(run: Run, point: Tensors, tangents: Tensors) -> tuple[Tensors, Tensors]:
    """Compute outputs and their tangents one direction after another, as an unrolled loop has to."""

    def one(directions: Tensors) -> Tensors:
        return push(run, {n: tf.identity(t) for n, t in point.items()}, directions, stacked=False)[1]

    outputs = run(point)
    return outputs, tf.map_fn(one, tangents, fn_output_signature={n: _spec(t) for n, t in outputs.items()})


def push_by_reverse(run: Run, point: Tensors, tangents: Tensors, stacked: bool) -> tuple[Tensors, Tensors]:
    """Compute outputs and their tangents by reverse mode alone.

    The pullback u -> Jᵀu is linear in u, so its own pullback, at any u, is t -> Jt (J. Townsend, 2017, "A new trick for
    calculating Jacobian vector products", https://j-towns.github.io/2017/06/12/A-new-trick.html).
    """
    tangents = _of_shapes("tangents", tangents, point)
    names = list(tangents)
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape() as inner:
            inner.watch([point[n] for n in names])
            outputs = run(point)
        seeds = {n: tf.zeros_like(t) for n, t in outputs.items()}
        outer.watch(list(seeds.values()))
        pulled = inner.gradient(
            list(outputs.values()), [point[n] for n in names], list(seeds.values()), unconnected_gradients="zero"
        )

    def one(directions: Tensors) -> Tensors:
        found = outer.gradient(
            pulled, list(seeds.values()), [directions[n] for n in names], unconnected_gradients="zero"
        )
        return dict(zip(outputs, found, strict=True))

    if not stacked:
        return outputs, one(tangents)
    return outputs, tf.map_fn(one, tangents, fn_output_signature={n: _spec(t) for n, t in outputs.items()})


def pull(run: Run, point: Tensors, cotangents: Tensors, wrt: Sequence[str], stacked: bool) -> tuple[Tensors, Tensors]:
    """Compute outputs and the cotangents of `wrt` in reverse mode; with `stacked`, K cotangents on one primal pass."""
    sources = [point[n] for n in wrt]
    # Weights that nobody asked for are constants: variables that are read must not be watched.
    with tf.GradientTape(persistent=stacked, watch_accessed_variables=False) as tape:
        tape.watch(sources)
        with _tf.cutting(tape) if stacked else nullcontext() as links:
            outputs = run(point)
    cotangents = _of_shapes("cotangents", cotangents, outputs)
    ends = [(outputs[n], g) for n, g in cotangents.items()]
    if links is None:
        found = tape.gradient([t for t, _ in ends], sources, [g for _, g in ends], unconnected_gradients="zero")
        return outputs, {n: tf.convert_to_tensor(t) for n, t in zip(wrt, found, strict=True)}
    count = tf.shape(ends[0][1])[0]
    for link in reversed(links):
        given = _pull_each(tape, ends, link.outputs)
        if any(g is not None for g in given):
            pulled = link.backward(link.inputs, link.outputs, *given)
            ends += [(t, g) for t, g in zip(link.inputs, pulled, strict=True) if g is not None]
    found = _pull_each(tape, ends, sources)
    return outputs, {n: _or_zeros(g, t, count) for n, g, t in zip(wrt, found, sources, strict=True)}


def _pull_each(
    tape: tf.GradientTape, ends: Sequence[tuple[tf.Tensor, tf.Tensor]], sources: Sequence[tf.Tensor]
) -> list[tf.Tensor | None]:
    """Pull stacked cotangents back through ordinary operations; None for a source that nothing depends on."""
    places: list[int] = []

    def one(cotangents: list[tf.Tensor]) -> list[tf.Tensor]:
        found = tape.gradient([t for t, _ in ends], sources, cotangents)
        places[:] = [i for i, g in enumerate(found) if g is not None]
        # Never empty, which a vectorised function may not be.
        return [tf.zeros([]), *(tf.convert_to_tensor(found[i]) for i in places)]

    _, *stacked = tf.vectorized_map(one, [g for _, g in ends])
    result: list[tf.Tensor | None] = [None] * len(sources)
    for i, g in zip(places, stacked, strict=True):
        result[i] = _tf.shaped(g, tf.TensorShape([None]) + sources[i].shape)
    return result


def _of_shapes(field: str, directions: Tensors, arrays: Tensors) -> Tensors:
    """Refuse a direction that has not the size of its array, where that is not known before the model runs."""
    checked: Tensors = {}
    for name, direction in directions.items():
        array = arrays[name]
        own = direction.shape[direction.shape.rank - array.shape.rank :]
        if own.is_fully_defined() and array.shape.is_fully_defined():
            if own != array.shape:
                raise InvalidArray(
                    f"expected the shape of {name}, {tuple(array.shape)}, got {tuple(own)}", path=f"{field}.{name}"
                )
            checked[name] = direction
            continue
        size, text = tf.shape(direction)[-array.shape.rank :], f"{name} and its direction must have one shape"
        with tf.control_dependencies([tf.debugging.assert_equal(size, tf.shape(array), text)]):
            checked[name] = tf.identity(direction)
    return checked


def _spec(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _or_zeros(tangent: tf.Tensor | None, primal: tf.Tensor, count: tf.Tensor | None) -> tf.Tensor:
    if tangent is not None:
        return tangent
    shape = tf.shape(primal)
    return tf.zeros(shape if count is None else tf.concat([[count], shape], 0), primal.dtype)
