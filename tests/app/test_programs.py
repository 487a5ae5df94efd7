from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from app.operators._operator import Work
from app.programs import Programs, Recent
from models.signature import Array
from pushforward.errors import InvalidArray

X = Array("x", (None, None, 2), "float64", ("batch", "time", "feature"), True)
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

    def work(self, x, key="key", exact=False):
        x = np.asarray(x)
        free = (None, None, *x.shape[2:])
        strategy = "unrolled" if exact else "scan"
        return Work(key, lambda: self, {"inputs.x": x}, {"inputs.x": x.shape if exact else free}, len(x), strategy, ())


@pytest.fixture
def double():
    return Counted(lambda x: 2 * x)


def test_recent_keeps_what_was_used_last():
    recent = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]
    recent.put("c", 4)
    assert (len(recent), recent.get("c")) == (2, 4)


def test_one_trace_for_every_batch_and_time(double):
    programs = Programs(compiled_shapes=0)
    for batch, time in ((1, 1), (2, 3), (5, 4)):
        x = np.random.default_rng(batch).standard_normal((batch, time, 2))
        found, compiled = programs.run(make_model(), "evaluate", double.work(x))
        np.testing.assert_array_equal(found["outputs.y"], 2 * x)
        assert not compiled
    assert double.traces == 1


def test_the_first_shapes_of_a_program_are_compiled_and_stay_so(double):
    programs = Programs(compiled_shapes=2)
    shapes = [np.ones((1, time, 2)) for time in (1, 2, 3)]
    for _ in range(3):
        assert [programs.run(make_model(), "evaluate", double.work(x))[1] for x in shapes] == [True, True, False]
    assert double.traces == 3
    assert programs.run(make_model(), "evaluate", double.work(shapes[2], key="other"))[1]


def test_the_number_of_compiled_programs_is_bounded(double):
    programs, x = Programs(limit=2), np.ones((1, 1, 2))
    assert [programs.run(make_model(), "evaluate", double.work(x, key))[1] for key in range(4)] == [True] * 2 + [
        False
    ] * 2
    assert [programs.run(make_model(), "evaluate", double.work(x, key))[1] for key in range(4)] == [True] * 2 + [
        False
    ] * 2


def test_warming_settles_nothing(double):
    programs, x = Programs(), np.ones((1, 3, 2))
    programs.warm(make_model(), "evaluate", double.work(x))
    assert programs.run(make_model(), "evaluate", double.work(x))[1]
    assert double.traces == 2


@pytest.mark.parametrize("strategy", ["unrolled", "reverse"])
def test_only_the_loop_is_compiled(double, strategy):
    work = replace(double.work(np.ones((1, 3, 2))), strategy=strategy)
    assert not Programs().run(make_model(), "evaluate", work)[1]


@pytest.mark.parametrize(
    "change", [{"operator": "jvp"}, {"key": "other"}, {"version": 2}, {"name": "n"}, {"dtype": "float32"}], ids=str
)
def test_what_a_program_depends_on(double, change):
    programs, x = Programs(compiled_shapes=0), np.ones((2, 3, 2))
    programs.run(make_model(), "evaluate", double.work(x))
    model = make_model(name=change.get("name", "m"), version=change.get("version", 1))
    work = double.work(x.astype(change.get("dtype", "float64")), change.get("key", "key"))
    found, compiled = programs.run(model, change.get("operator", "evaluate"), work)
    assert not compiled
    assert found["outputs.y"].dtype == change.get("dtype", "float64")
    assert double.traces == 2


def test_an_exact_program_is_traced_for_each_shape(double):
    programs = Programs(compiled_shapes=0)
    for time in (1, 2):
        programs.run(make_model(), "evaluate", double.work(np.ones((1, time, 2)), exact=True))
    assert double.traces == 2


def test_the_number_of_programs_is_bounded(double):
    programs = Programs(limit=3, compiled_shapes=0)
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
