"""What is planned: every entry once, known zeros not at all, within the budget, in the cheaper mode."""

from dataclasses import replace
from itertools import pairwise

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.operators import _links, _plan
from app.operators._plan import Chunk, make_plan
from app.operators._sides import Side
from app.operators._slices import parse, select
from app.operators._task import Task
from models.model import Model
from models.signature import Array

L = keras.layers
INDEX = st.one_of(
    st.integers(-3, 2).map(str),
    st.sampled_from([":", "::-1", "::2", "1:", ":2", "1::3", "-2:", ":-1", "::-2", "2:0:-1"]),
)


def side(name, time, features, index, timed=True, batched=True):
    sizes, axes = ((time, features), ("time", "feature")) if timed else ((features,), ("feature",))
    array = Array(name, (None, *sizes), "float64", ("batch", *axes), True)
    selection = select(parse(f"{name}[{index}]" if index else name, "of"), axes, sizes, "of")
    return Side((array,), selection, batched, timed)


def task(of, wrt, *, batch=1, length=6, causal=True, stepwise=True, initial=False, **sizes):
    sizes = {"width": 10, "numbers": 4, "flops": 100, "block_bytes": 2**28, "chunk_bytes": 2**28} | sizes
    return Task(of, wrt, batch, length, causal, stepwise, initial, dtype="float64", **sizes)


def times(side):
    """The time of each element; of what has none, after everything in `of` and before everything in `wrt`."""
    if not side.timed:
        return np.full(side.count, np.inf if side.arrays[0].name == "y" else -1)
    return np.array(side.selection.picks[0])[np.arange(side.count) // side.per_step]


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(4, 9),
    batch=st.integers(1, 4),
    of_index=INDEX,
    wrt_index=INDEX,
    kinds=st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
    shape=st.sampled_from([(True, True), (True, False), (False, False)]),
    batched=st.booleans(),
    block_bytes=st.sampled_from([1, 50, 300, 1000, 2**28]),
    chunk_bytes=st.sampled_from([1, 300, 1000, 5000, 2**28]),
    mode=st.sampled_from(["auto", "forward", "reverse"]),
    cut=st.booleans(),
)
def test_every_entry_once_but_for_known_zeros(
    length, batch, of_index, wrt_index, kinds, shape, batched, block_bytes, chunk_bytes, mode, cut
):
    causal, stepwise = shape
    of = side("y", length, 3, of_index, kinds[0] and causal)
    wrt = side("x", length, 3, wrt_index, kinds[1] and causal, batched=batched or (kinds[1] and causal))
    sizes = {"block_bytes": block_bytes, "chunk_bytes": chunk_bytes}
    t = task(of, wrt, batch=batch, length=length, causal=causal, stepwise=stepwise, **sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plan, "_MOST_CUT", 10**6 if cut else 0)
        plan = make_plan(t, mode)
    assert (plan.kinds is not None) == cut
    counts = np.zeros((batch, of.count, wrt.count), int)
    ends = []
    for block in plan.blocks:
        assert (block.samples[1] - block.samples[0] == 1) or block.rows == (0, of.count)
        ends.append((block.samples[0] * of.count + block.rows[0], (block.samples[1] - 1) * of.count + block.rows[1]))
        entries = (block.samples[1] - block.samples[0]) * (block.rows[1] - block.rows[0]) * wrt.count
        assert entries * 8 <= max(block_bytes, wrt.count * 8)
        for chunk in block.chunks:
            assert block.samples[0] <= chunk.samples[0] < chunk.samples[1] <= block.samples[1]
            assert block.rows[0] <= chunk.rows[0] < chunk.rows[1] <= block.rows[1]
            counts[tuple(slice(*part) for part in (chunk.samples, chunk.rows, chunk.columns))] += 1
            for part, one in ((chunk.rows, of), (chunk.columns, wrt)):
                if one.timed:
                    start, stop = one.span(part)
                    assert chunk.window[0] <= start < stop <= chunk.window[1]
            fixed = sum(piece.length or 0 for piece in chunk.pieces)
            assert sum(piece.length is None for piece in chunk.pieces) == 1
            assert fixed <= chunk.window[1] - chunk.window[0]
            assert batched or wrt.batched or plan.mode == "forward" or chunk.samples[1] - chunk.samples[0] == 1
    assert ends[0][0] == 0
    assert ends[-1][1] == batch * of.count
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    assert counts.max(initial=0) <= 1
    zero = times(of)[:, np.newaxis] < times(wrt)
    assert not np.any((counts == 0) & ~zero)
    if cut:
        assert plan.count == sum(1 for block in plan.blocks for _ in block.chunks)
    if block_bytes == chunk_bytes == 2**28 or not cut:
        again = 1 if cut else of.count  # all columns for each block of rows
        assert plan.passes <= (wrt.count * again if plan.mode == "forward" else of.count)
        assert plan.steps <= plan.passes * length


@pytest.mark.parametrize(
    ("of", "wrt", "mode", "passes", "steps"),
    [
        ("", "", "forward", 18, 18 * 6),
        ("-1", "", "reverse", 3, 3 * 6),
        ("-1", "0", "forward", 3, 3 * 6),
        ("2", "1", "forward", 3, 3 * 2),
        ("2, 0", "", "reverse", 1, 3),
        ("", "4", "forward", 3, 3 * 2),
        ("4", ":2, 1", "forward", 2, 2 * 5),
        ("3:5, 0", "2:4, 0", "forward", 2, 2 * 3),
        ("1", "2", "forward", 0, 0),
    ],
)
def test_the_cheaper_mode_over_the_steps_between(of, wrt, mode, passes, steps):
    plan = make_plan(task(side("y", 6, 3, of), side("x", 6, 3, wrt)))
    assert (plan.mode, plan.passes, plan.steps) == (mode, passes, steps)


def test_rows_times_steps_decide_not_rows_alone():
    """Three outputs at the second step, two inputs at the first of six: reverse mode runs two steps, not six."""
    narrow = make_plan(task(side("y", 6, 3, "1"), side("x", 6, 3, "0, :2")))
    assert (narrow.mode, narrow.steps) == ("forward", 4)
    # In a model that can't start in the middle forward mode runs from the start, too.
    late = task(side("y", 6, 1, ""), side("x", 6, 5, "5"), stepwise=False)
    assert make_plan(late).steps == 30
    assert make_plan(late, "forward").steps == 30
    assert make_plan(late, "reverse").steps == 36


def test_a_model_that_is_not_causal_runs_all_steps():
    of, wrt = side("y", 6, 3, "", timed=False), side("x", 6, 3, "", timed=False)
    plan = make_plan(task(of, wrt, causal=False, stepwise=False))
    assert (plan.passes, plan.steps) == (3, 18)
    assert plan.kinds[0].window == (0, 6)


@pytest.mark.parametrize(
    "mode", [pytest.param("auto", marks=pytest.mark.slow), "forward", pytest.param("reverse", marks=pytest.mark.slow)]
)
def test_terabytes_are_planned_with_few_cuts(mode, monkeypatch):
    cuts = []
    monkeypatch.setattr(_plan, "Chunk", lambda *fields: cuts.append(fields) or Chunk(*fields))
    long = side("y", 1403, 200, ""), side("x", 1403, 200, "")
    t = task(*long, batch=100, length=1403, block_bytes=2**25, numbers=0)  # of states that can't be chained
    plan = make_plan(replace(t, chunk_bytes=2**24), mode)
    assert t.nbytes == 62_989_088_000_000
    # Forward mode runs all columns again for each block of rows.
    if mode == "forward":
        times = -(-280_600 // (2**25 // (280_600 * 8)))
        assert (plan.mode, plan.passes, plan.steps) == ("forward", 280_600 * times, 280_600 * times * 1403)
        assert len(cuts) <= 2
    else:
        # Half of them, as rows of early steps don't run the late ones.
        assert (plan.mode, plan.passes, plan.steps) == ("reverse", 280_600, 196_989_612)
        assert len(cuts) <= _plan._MOST_CUT


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_forced_mode_is_said(mode):
    plan = make_plan(task(side("y", 6, 3, "-1"), side("x", 6, 3, "")), mode)
    assert plan.mode == mode
    assert plan.why == f"{mode} mode was asked for"


def wide(inputs, outputs):
    layers = [keras.Input((None, inputs)), L.GRU(3, name="gru"), L.Dense(outputs, name="dense")]
    return Model("wide", keras.Sequential(layers))


def test_56_inputs_and_21252_outputs(prepare, solve):
    model, x = wide(56, 21_252), {"x": np.random.default_rng(0).normal(size=(1, 1, 56)).astype("float32")}
    info = prepare(model, x, "y", "x", plan=True).info
    assert (info["mode"], info["passes"], info["shape"]) == ("forward", 56, [1, 21_252, 1, 56])
    assert info["bytes"] == 21_252 * 56 * 4
    assert info["why"] == (
        "forward mode takes 56 passes over 56 steps per sample, reverse mode takes 21252 passes over 21252 steps"
    )
    found = solve(model, x, "y", "x")
    rows = solve(model, x, "y[:21252:5000]", "x", mode="reverse").array
    np.testing.assert_allclose(found.array[:, ::5000], rows, rtol=0, atol=1e-6)


def test_500_inputs_and_1_output(prepare):
    x = {"x": np.zeros((1, 125, 4), "float32")}
    info = prepare(wide(4, 1), x, "y", "x", plan=True).info
    assert (info["mode"], info["passes"], info["shape"]) == ("reverse", 1, [1, 1, 125, 4])
    assert info["why"].startswith("reverse mode takes 1 passes over 125 steps per sample, forward mode takes 500 ")


def test_several_inputs_of_one_step_share_a_pass_over_the_batch(solve):
    """A pass takes all samples along."""
    model = wide(4, 2)
    found = solve(model, {"x": np.zeros((7, 3, 4), "float32")}, "y", "x[1]", mode="forward")
    assert found.chunks == 1
    assert (found.job.info["passes"], found.job.info["steps"], found.job.rows) == (4, 8, 28)


@pytest.mark.parametrize("most", [100_000, 0])
def test_large_plans_count_what_forward_mode_runs_anew_for_each_block(monkeypatch, most):
    monkeypatch.setattr(_plan, "_MOST_CUT", most)
    sides = side("y", 600, 4, ""), side("x", 600, 4, "")
    large = task(*sides, length=600, numbers=0, block_bytes=2**20, chunk_bytes=2**18)
    plan = make_plan(large)
    assert plan.mode == "reverse"
    assert make_plan(large, "forward").steps > 3 * plan.steps


@settings(max_examples=300, deadline=None)
@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 5),
    of_index=INDEX,
    wrt_index=INDEX,
    initial=st.booleans(),
    block_bytes=st.sampled_from([300, 2000, 10_000, 2**28]),
    chunk_bytes=st.sampled_from([1, 1000, 20_000, 2**28]),
)
def test_links_cover_the_window_within_the_budget(
    length, batch, of_index, wrt_index, initial, block_bytes, chunk_bytes
):
    length = max(length, 4)
    of, wrt = side("y", length, 3, of_index), side("x", length, 3, wrt_index, timed=not initial)
    t = task(of, wrt, batch=batch, length=length, initial=initial, block_bytes=block_bytes, chunk_bytes=chunk_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_links, "_WORTH_CHAINING", 0)
        links = _links.cut(t)
    start, stop = 0 if initial else min(times(wrt)), max(times(of)) + 1
    falling = any(one.timed and one.selection.picks[0].step < 0 for one in (of, wrt))
    if start >= stop or falling or 4 * wrt.count * 8 > block_bytes:
        assert links is None
        return
    assert links.window == (start, stop)
    assert (links.runs - 1) * links.length < stop - start <= links.runs * links.length
    directions = 4 + (0 if initial else links.size * wrt.per_step)
    held = links.samples * links.length * directions * t.width * 8
    assert held <= chunk_bytes or (links.samples, links.length) == (1, 1)
    assert links.samples * t.block_rows * wrt.count * 8 <= max(block_bytes, wrt.count * 8)
    assert links.samples == 1 or t.block_rows == of.count
    assert links.samples * 4 * wrt.count * 8 <= block_bytes  # what is handed on


def test_a_chain_of_all_steps_runs_no_columns_anew():
    """dh_t/dh_0 of 200 units at 1,403 steps: 200 passes, though the answer comes in many blocks."""
    of, wrt = side("y", 1403, 200, ""), side("x", 1403, 200, "", timed=False)
    sizes = {"width": 800, "numbers": 200, "flops": 2 * 200 * 210, "block_bytes": 2**25, "chunk_bytes": 2**24}
    t = task(of, wrt, batch=100, length=1403, initial=True, **sizes)
    plan = make_plan(t)
    assert t.nbytes == 44_896_000_000
    assert (plan.mode, plan.passes, plan.links.samples) == ("forward", 200, 1)
    assert 200 * 1403 < plan.steps < 3 * 200 * 1403
    # More to hand on than a block may take: as before, for each block anew.
    assert make_plan(replace(t, block_bytes=2**17), "forward").links is None


def test_what_a_chain_takes_is_what_it_runs_and_what_its_products_take():
    sides = side("y", 40, 3, ""), side("x", 40, 3, "")
    links = _links.cut(task(*sides, length=40, flops=10**6))
    assert (links.count, links.size) == (8, 5)
    # Each link has directions for its 15 inputs and for 4 states. Of 120 columns half take part on average.
    products = 2 * 60 * 4 * (120 + 8 * 4)
    assert links.steps == 40 * (15 + 4) + products // 10**6
    assert _links.cut(task(*sides, length=40, flops=10**4 * 5)).steps == 40 * (15 + 4) + products // (5 * 10**4)
    assert products // (5 * 10**4) == 1
