"""Jacobians without HTTP, right answers for them row by row, and random slices."""

from dataclasses import dataclass

import numpy as np
import pytest

from app.calls import Call
from app.operators import jacobian
from app.operators._operator import Job, Work
from app.programs import Programs


@dataclass(frozen=True)
class Solved:
    """A Jacobian, its job, how many chunks it took and which blocks it came in."""

    array: np.ndarray
    job: Job
    chunks: int
    blocks: list[np.ndarray]


@pytest.fixture(scope="module")
def programs():
    """Graphs only: XLA takes seconds for each shape."""
    return Programs(compiled=0)


@pytest.fixture
def drive(programs):
    """Run a generator of works; return what it yields besides, and what it returns."""

    def drive(model, steps):
        items, found = [], None
        while True:
            try:
                item = steps.send(found)
            except StopIteration as end:
                return items, end.value
            found = None
            if isinstance(item, Work):
                found, _ = programs.run(model, "driven", item)
            else:
                items.append(item)

    return drive


@pytest.fixture
def prepare(monkeypatch):
    """Plan one Jacobian: `prepare(model, {"x": x}, "y[-1]", "x", mode="forward", budget=3000)`."""

    def prepare(model, inputs, of, wrt, *, budget=None, **options):
        call = Call(model.name, "jacobian", {"inputs": inputs}, {"of": of, "wrt": wrt, **options})
        with monkeypatch.context() as patch:
            if budget is not None:
                patch.setattr(jacobian, "BLOCK_BYTES", budget)
                patch.setattr(jacobian, "CHUNK_BYTES", budget)
            return jacobian.OPERATOR.prepare(model, call)

    return prepare


@pytest.fixture
def solve(prepare, programs):
    """Plan one Jacobian and compute it, as the engine does."""

    def solve(model, inputs, of, wrt, **options):
        job = prepare(model, inputs, of, wrt, **options)
        steps, blocks, chunks, found = job.steps(), [], 0, None
        while True:
            try:
                item = steps.send(found)
            except StopIteration:
                break
            found = None
            if isinstance(item, Work):
                found, _ = programs.run(model, "jacobian", item)
                chunks += item.key[0] in ("forward", "reverse", "chain")  # besides, the states before a window
            else:
                blocks.append(item)
        array = np.concatenate([block.reshape(-1) for block in blocks])
        assert {block.dtype.name for block in blocks} == {job.whole.dtype}
        return Solved(array.reshape(job.whole.shape), job, chunks, blocks)

    return solve


@pytest.fixture(scope="session")
def in_float64():
    """Make a network of float64 layers, always with the same weights: `in_float64(make)`."""
    import keras

    def in_float64(make):
        policy = keras.config.dtype_policy()
        keras.utils.set_random_seed(4)
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        try:
            return make()
        finally:
            keras.config.set_floatx("float32")
            keras.config.set_dtype_policy(policy)

    return in_float64


@pytest.fixture(scope="session")
def by_rows():
    """Compute a whole Jacobian row by row and sample by sample, with TensorFlow's tape around any function.

    `by_rows(function, point, "param.gru.kernel", shared=True)`: `function` takes the tensors of `point` by name and
    returns one tensor; what is shared has no batch axis.
    """
    import tensorflow as tf

    def by_rows(function, point, wrt, *, shared=False, common=()):
        @tf.function(autograph=False)
        def row(arrays, seed):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                moved = tf.identity(arrays[wrt])
                tape.watch(moved)
                found = function({**arrays, wrt: moved})
            gradient = tape.gradient(found, moved, seed, unconnected_gradients="zero")
            return tf.convert_to_tensor(gradient)

        shared_names = {*common, *([wrt] if shared else [])}
        samples = []
        for b in range(next(a.shape[0] for n, a in point.items() if n not in shared_names)):
            one = {n: tf.constant(a if n in shared_names else a[b : b + 1]) for n, a in point.items()}
            value = function(one)
            size = value.shape.num_elements()
            seeds = tf.reshape(tf.eye(size, dtype=value.dtype), [size, *value.shape])
            rows = np.stack([row(one, seed).numpy() for seed in seeds])
            rows = rows if shared else rows[:, 0]
            samples.append(rows.reshape(*value.shape[1:], *rows.shape[1:]))
        return np.stack(samples)

    return by_rows


@pytest.fixture(scope="session")
def random_slice():
    """Draw a slice of an array of these sizes: as it is written, and as NumPy's index."""

    def draw(rng, sizes, whole=0.2):
        if rng.random() < whole:
            return "", (slice(None),) * len(sizes)
        texts, index = [], []
        for n in sizes[: rng.integers(1, len(sizes) + 1)] if sizes else ():
            if rng.random() < 0.3:
                index.append(int(rng.integers(-n, n)))
                texts.append(str(index[-1]))
                continue
            start, stop = sorted(int(i) for i in rng.integers(0, n + 1, 2))
            start, stop = (start, stop) if start < stop else (0, n)
            step = int(rng.choice([1, 1, 2, -1]))
            part = slice(start, stop, step) if step > 0 else slice(stop - 1, start - 1 if start else None, step)
            index.append(part)
            texts.append(":".join("" if i is None else str(i) for i in (part.start, part.stop, part.step)))
        index += [slice(None)] * (len(sizes) - len(index))
        return f"[{', '.join(texts)}]" if texts else "", tuple(index)

    return draw


@pytest.fixture(scope="session")
def take():
    """Take NumPy's slices of a whole Jacobian `(batch, *of, *wrt)`: integers drop axes without moving any."""

    def take(whole, of, wrt):
        index = (slice(None), *of, *wrt)
        kept = whole[tuple(slice(i, i + 1 or None) if isinstance(i, int) else i for i in index)]
        return kept.reshape([n for n, i in zip(kept.shape, index, strict=True) if not isinstance(i, int)])

    return take
