import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from app.operators._operator import Work
from app.operators._rows import Layout
from app.programs import Programs, use_threads
from models.signature import Array
from pushforward.errors import InvalidArray, Overloaded

X = Array("x", (None, None, 2), "float64", ("batch", "time", "feature"), True)
LAYOUT = Layout({"inputs.x": X.axes}, {"outputs.y": X.axes}, padded=True)
TOKENS = Array("x", (None, None), "int32", ("batch", "time"), False)


def make_model(spec=X, name="m", version=1):
    groups = dict.fromkeys(("states", "hidden", "parameters", "outputs"), ())
    return SimpleNamespace(name=name, version=version, signature=SimpleNamespace(inputs=(spec,), **groups))


class Counted:
    """A program that counts how often it is traced."""

    def __init__(self, function):
        self.function, self.traces = function, 0

    def __call__(self, arrays):
        self.traces += 1
        return {"outputs.y": self.function(arrays["inputs.x"])}

    def work(self, x, key="key", exact=False, layout=None):
        x = np.asarray(x)
        free = (None, None, *x.shape[2:])
        strategy = "unrolled" if exact else "scan"
        shapes = {"inputs.x": x.shape if exact else free}
        return Work(key, lambda: self, {"inputs.x": x}, shapes, len(x), strategy, (), layout=layout)


@pytest.fixture
def double():
    return Counted(lambda x: 2 * x)


def test_one_trace_for_every_batch_and_time(double):
    programs = Programs(compiled=0)
    for batch, time in ((1, 1), (2, 3), (5, 4)):
        x = np.random.default_rng(batch).standard_normal((batch, time, 2))
        found, compiled = programs.run(make_model(), "evaluate", double.work(x))
        np.testing.assert_array_equal(found["outputs.y"], 2 * x)
        assert not compiled
    assert double.traces == 1


def test_a_shape_that_comes_often_is_compiled_and_stays_so(double):
    programs, often, seldom = Programs(patience=3), np.ones((1, 2, 2)), np.ones((1, 3, 2))
    run = [programs.run(make_model(), "evaluate", double.work(x))[1] for x in (often, seldom, often, often, seldom)]
    assert run == [False, False, False, True, False]
    assert double.traces == 2
    assert programs.run(make_model(), "evaluate", double.work(often))[1]
    assert not programs.run(make_model(), "evaluate", double.work(often, key="other"))[1]
    assert programs.counts == {"graph": 2, "compiled": 1}


def test_the_number_of_compiled_programs_is_bounded(double, monkeypatch):
    monkeypatch.setattr("app.compiled._IDLE", 0)
    programs, x = Programs(compiled=2), np.ones((1, 1, 2))
    for key in range(4):
        assert programs.run(make_model(), "evaluate", double.work(x, key))[1]
    assert programs.counts == {"graph": 0, "compiled": 2}
    assert programs.run(make_model(), "evaluate", double.work(x, 3))[1]
    assert programs.compiled.count == 4


def test_warming_compiles_the_sizes_that_were_told(double):
    programs, x = Programs(patience=3), np.ones((1, 3, 2))
    programs.warm(make_model(), "evaluate", double.work(x))
    assert programs.counts == {"graph": 1, "compiled": 0}
    programs.warm(make_model(), "evaluate", double.work(x, layout=LAYOUT), [(4, 6)])
    assert programs.counts == {"graph": 1, "compiled": 1}
    assert double.traces == 2
    for rows, time, compiled in ((4, 6, True), (4, 5, True), (4, 4, False), (5, 6, False)):
        x = np.random.default_rng(rows).normal(size=(rows, time, 2))
        found, by_xla = programs.run(make_model(), "evaluate", double.work(x, layout=LAYOUT))
        assert by_xla == compiled, (rows, time)
        np.testing.assert_array_equal(found["outputs.y"], 2 * x)


def test_rows_and_steps_are_padded_to_a_compiled_program(double):
    programs, rng = Programs(patience=2), np.random.default_rng(0)
    for rows, time, compiled in ((5, 7, False), (6, 8, True), (5, 8, True), (6, 7, True), (2, 3, False)):
        x = rng.normal(size=(rows, time, 2))
        found, by_xla = programs.run(make_model(), "evaluate", double.work(x, layout=LAYOUT))
        assert by_xla == compiled, (rows, time)
        np.testing.assert_array_equal(found["outputs.y"], 2 * x)


def test_works_that_are_run_together(double):
    programs, rng = Programs(compiled=0), np.random.default_rng(0)
    arrays = [rng.normal(size=(rows, time, 2)) for rows, time in ((1, 7), (3, 8), (2, 5))]
    works = [double.work(x, layout=LAYOUT) for x in arrays]
    found, _ = programs.run_group(make_model(), "evaluate", works)
    assert double.traces == 1
    for x, part in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(part["outputs.y"], 2 * x)


def test_what_padding_spoils_in_reverse_mode_is_computed_alone():
    import tensorflow as tf

    # Zero cotangents at the padded steps, times what is infinite there.
    spoiled = Counted(lambda x: x * tf.reduce_sum(0 * tf.math.log(tf.abs(x)), [1, 2], keepdims=True) + x)
    layout = replace(LAYOUT, pulled=True)
    arrays = [np.ones((1, 7, 2)), np.full((1, 8, 2), 2.0)]
    works = [spoiled.work(x, layout=layout) for x in arrays]
    found, _ = Programs(compiled=0).run_group(make_model(), "evaluate", works)
    for x, part in zip(arrays, found, strict=True):
        np.testing.assert_array_equal(part["outputs.y"], x)


def test_compiling_in_the_background_keeps_nobody_waiting(double):
    programs, x, wait = Programs(background=True), np.ones((1, 3, 2)), threading.Event()

    def slow(arrays):
        if threading.current_thread().name.startswith("compiler"):
            assert wait.wait(30)
        return double(arrays)

    work = replace(double.work(x), build=lambda: slow)
    programs._graph(make_model(), "evaluate", work)
    assert not programs.run(make_model(), "evaluate", work)[1]
    assert not programs.run(make_model(), "evaluate", work)[1]
    wait.set()
    programs.close()
    assert programs.run(make_model(), "evaluate", work)[1]
    assert double.traces == 2


def test_what_can_not_be_compiled_is_tried_once():
    import tensorflow as tf

    strings = Counted(lambda x: tf.strings.to_number(tf.strings.as_string(x), tf.float64))
    programs, x = Programs(), np.ones((1, 3, 2))
    for _ in range(3):
        found, compiled = programs.run(make_model(), "evaluate", strings.work(x))
        assert not compiled
        np.testing.assert_array_equal(found["outputs.y"], x)
    assert strings.traces == 2


def test_too_little_memory_is_an_error_of_this_request(double):
    import tensorflow as tf

    programs = Programs(compiled=0)
    greedy = Counted(lambda x: tf.reduce_sum(tf.zeros([tf.shape(x)[1], 10**9, 10**6], tf.float64)) + x)
    with pytest.raises(Overloaded, match="not enough memory for 1 rows"):
        programs.run(make_model(), "evaluate", greedy.work(np.ones((1, 3, 2)), "greedy"))
    assert programs.run(make_model(), "evaluate", double.work(np.ones((1, 3, 2))))[0]["outputs.y"].shape == (1, 3, 2)


@pytest.mark.parametrize("strategy", ["unrolled", "reverse"])
def test_only_the_loop_is_compiled(double, strategy):
    work = replace(double.work(np.ones((1, 3, 2))), strategy=strategy)
    assert not Programs().run(make_model(), "evaluate", work)[1]


@pytest.mark.parametrize(
    "change", [{"operator": "jvp"}, {"key": "other"}, {"version": 2}, {"name": "n"}, {"dtype": "float32"}], ids=str
)
def test_what_a_program_depends_on(double, change):
    programs, x = Programs(compiled=0), np.ones((2, 3, 2))
    programs.run(make_model(), "evaluate", double.work(x))
    model = make_model(name=change.get("name", "m"), version=change.get("version", 1))
    work = double.work(x.astype(change.get("dtype", "float64")), change.get("key", "key"))
    found, compiled = programs.run(model, change.get("operator", "evaluate"), work)
    assert not compiled
    assert found["outputs.y"].dtype == change.get("dtype", "float64")
    assert double.traces == 2


def test_an_exact_program_is_traced_for_each_shape(double):
    programs = Programs(compiled=0)
    for time in (1, 2):
        programs.run(make_model(), "evaluate", double.work(np.ones((1, time, 2)), exact=True))
    assert double.traces == 2


def test_the_number_of_programs_is_bounded(double):
    programs = Programs(graphs=3, compiled=0)
    x = np.ones((1, 1, 2))
    for key in range(9):
        programs.run(make_model(), "evaluate", double.work(x, key))
    assert (len(programs._graphs), double.traces) == (3, 9)
    programs.run(make_model(), "evaluate", double.work(2 * np.ones((1, 2, 2)), 0))
    assert double.traces == 10


def test_a_value_that_the_model_refuses_is_an_error_of_the_request():
    import tensorflow as tf

    lookup = Counted(lambda x: tf.gather(tf.constant([1.0, 2.0]), x))
    programs = Programs()
    for _ in range(3):
        with pytest.raises(
            InvalidArray, match=r"model 'm' can't take these values or sizes: indices\[0,0\] = 2 is not in"
        ) as e:
            programs.run(make_model(TOKENS), "evaluate", lookup.work(np.array([[2]], np.int32)))
        assert e.value.path == "inputs"
        assert "function_node" not in e.value.detail
    found, compiled = programs.run(make_model(TOKENS), "evaluate", lookup.work(np.array([[1]], np.int32)))
    assert (found["outputs.y"].tolist(), compiled) == ([[2.0]], False)


@pytest.mark.parametrize("exact", [False, True])
def test_a_size_that_the_model_refuses_is_an_error_of_the_request_every_time(exact):
    import tensorflow as tf

    narrow = Counted(lambda x: tf.nn.conv1d(x, tf.ones((3, 2, 1), tf.float64), 1, "VALID"))
    programs = Programs()
    for _ in range(3):
        with pytest.raises(InvalidArray, match=r"(?i)size.* negative|negative .*size") as e:
            programs.run(make_model(), "evaluate", narrow.work(np.ones((1, 1, 2)), exact=exact))
        assert ".py" not in e.value.detail
    found, _ = programs.run(make_model(), "evaluate", narrow.work(np.ones((1, 4, 2)), exact=exact))
    assert found["outputs.y"].shape == (1, 2, 1)


def test_what_xla_does_not_know_stays_a_graph():
    import tensorflow as tf

    text = Counted(lambda x: tf.strings.to_number(tf.strings.as_string(x), tf.float64))
    programs, x = Programs(), np.ones((1, 3, 2))
    for _ in range(4):
        found, compiled = programs.run(make_model(), "evaluate", text.work(x))
        np.testing.assert_array_equal(found["outputs.y"], x)
        assert not compiled
    assert text.traces == 2  # The graph, and once in vain.


def test_an_error_of_ours_is_not_blamed_on_the_request():
    def wrong(x):
        raise ValueError("a slip")

    with pytest.raises(ValueError, match="a slip"):
        Programs().run(make_model(), "evaluate", Counted(wrong).work(np.ones((1, 1, 2))))


def test_threads_that_come_too_late_are_told(caplog):
    tf.zeros(1)  # from here on TensorFlow does not change its mind
    had = tf.config.threading.get_intra_op_parallelism_threads()
    use_threads(had + 1)
    assert "stays" in caplog.text
    assert tf.config.threading.get_intra_op_parallelism_threads() == had
