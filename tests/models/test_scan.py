"""The scan primitive against the same steps written out one after the other, in every mode and nesting."""

from functools import cache, partial
from itertools import product as every

import numpy as np
import pytest
import tensorflow as tf

from models import _tf, scan
from models._tf import stacked_accumulator
from models.gradcheck import TOLERANCES, adjoint_error, central_difference, compare

T, B, F, H = 4, 2, 3, 2
TIGHT = TOLERANCES["float64"].equality
Forward = tf.autodiff.ForwardAccumulator
# consts W, U; carry h, s; xs x, v: tensors of several ranks, some of them used in more than one place.
SHAPES = {"W": (F, H), "U": (H, H), "h": (B, H), "s": (B,), "x": (T, B, F), "v": (T, B)}
FREE = {"W": (F, H), "U": (H, H), "h": (None, H), "s": (None,), "x": (None, None, F), "v": (None, None)}
OUT_SHAPES = [(B, H), (B,), (T, B, H), (T, B)]


def draw(seed, shapes):
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.normal(size=s)) for s in shapes]


POINT, TANGENT, OTHER = (draw(seed, SHAPES.values()) for seed in (0, 1, 2))
COTANGENT = draw(3, OUT_SHAPES)


def step(consts, carry, x):
    (w, u), (h, s), (x, v) = consts, carry, x
    new = tf.tanh(x @ w + h @ u)
    s = s * v + tf.reduce_sum(new * h, -1)
    return [new, s], [new * s[:, tf.newaxis], s]


def written_out(function, consts, carry, xs, reverse=False):
    steps, rows = xs[0].shape[0], {}
    for i in reversed(range(steps)) if reverse else range(steps):
        carry, rows[i] = function(consts, carry, [x[i] for x in xs])
    return carry, [tf.stack(column) for column in zip(*(rows[i] for i in range(steps)), strict=True)]


def outputs(loop, flat, **options):
    final, ys = loop(step, flat[:2], flat[2:4], flat[4:], **options)
    return [*final, *ys]


def scalar(run, flat):
    return tf.add_n([tf.reduce_sum(tf.sin(y) * c) for y, c in zip(run(flat), COTANGENT, strict=True)])


def jvp(run, flat, tangent):
    with Forward(flat, tangent) as accumulator:
        found = run(flat)
    return [found, accumulator.jvp(found)]


def jvp_of_xs(run, flat, tangent):
    with Forward(flat[4], tangent[4]) as accumulator:
        found = run(flat)
    return accumulator.jvp(found)


def vjp(run, flat, _):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = run(flat)
    return [found, tape.gradient(found, flat, output_gradients=COTANGENT)]


def stacked(run, flat, tangent, places=range(6)):
    """K = 3 directions at once; one after the other where the loop is written out."""
    flat_k = [flat[i] for i in places]
    many = [tf.stack([tangent[i], OTHER[i], 0 * tangent[i]]) for i in places]
    if run.args[0] is written_out:
        single = []
        for k in range(3):
            with Forward(flat_k, [t[k] for t in many]) as accumulator:
                found = run(flat)
            single.append(accumulator.jvp(found, "zero"))
        return [tf.stack(column) for column in zip(*single, strict=True)]
    with stacked_accumulator(flat_k, many) as accumulator:
        found = run(flat)
    return accumulator.jvp(found)


def stacked_xs(run, flat, tangent):
    return stacked(run, flat, tangent, places=[4])


def stacked_start(run, flat, tangent):
    return stacked(run, flat, tangent, places=[2])


def gradient(run, flat):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        loss = scalar(run, flat)
    return tape.gradient(loss, flat)


def forward_over_reverse(run, flat, tangent):
    with Forward(flat, tangent) as accumulator:
        found = gradient(run, flat)
    return accumulator.jvp(found)


def reverse_over_reverse(run, flat, tangent):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        found = gradient(run, flat)
    return tape.gradient(found, flat, output_gradients=tangent)


def reverse_over_forward(run, flat, tangent):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        with Forward(flat, tangent) as accumulator:
            loss = scalar(run, flat)
        slope = accumulator.jvp(loss)
    return tape.gradient(slope, flat)


def forward_over_forward(run, flat, tangent):
    with Forward(flat, OTHER) as outer:
        with Forward(flat, tangent) as inner:
            found = run(flat)
        slopes = inner.jvp(found)
    return outer.jvp(slopes)


SIGNATURE = [[tf.TensorSpec(s, tf.float64) for s in FREE.values()]] * 2
MODES = {
    "eager": lambda f: f,
    "graph": lambda f: tf.function(f, autograph=False),
    "free": lambda f: tf.function(f, autograph=False, input_signature=SIGNATURE),
    "xla": lambda f: tf.function(f, autograph=False, jit_compile=True),
    "free xla": lambda f: tf.function(f, autograph=False, jit_compile=True, input_signature=SIGNATURE),
}


def numbered(structure):
    return {str(i): tf.convert_to_tensor(t).numpy() for i, t in enumerate(tf.nest.flatten(structure))}


@cache
def wanted(product, reverse=False):
    run = partial(product, partial(outputs, written_out, reverse=reverse))
    if product is forward_over_forward:  # nested accumulators are silently wrong in eager mode
        run = tf.function(run, autograph=False)
    return numbered(run(POINT, TANGENT))


def error(product, mode, reverse=False):
    run = MODES[mode](partial(product, partial(outputs, scan, reverse=reverse)))
    return compare(numbered(run(POINT, TANGENT)), wanted(product, reverse))


def name(value):
    return getattr(value, "__name__", str(value)).replace(" ", "_")


@pytest.mark.parametrize(
    ("product", "mode"),
    [
        *every((jvp, vjp), MODES),
        (stacked, "eager"),
        *(pytest.param(stacked, mode, marks=pytest.mark.slow) for mode in ("free", "xla")),
        *[(jvp_of_xs, "graph"), (stacked_xs, "eager"), (stacked_start, "eager")],
        pytest.param(stacked_xs, "free xla", marks=pytest.mark.slow),
    ],
    ids=name,
)
def test_first_derivatives(product, mode):
    assert error(product, mode) <= TIGHT


@pytest.mark.parametrize(
    ("product", "mode"),
    [
        pytest.param(forward_over_reverse, "xla", marks=pytest.mark.slow),
        (reverse_over_reverse, "eager"),
        (reverse_over_forward, "free"),
    ],
    ids=name,
)
def test_second_derivatives(product, mode):
    assert error(product, mode) <= TIGHT


@pytest.mark.parametrize("mode", ["graph", pytest.param("xla", marks=pytest.mark.slow)])
def test_two_accumulators_inside_a_function(mode):
    assert error(forward_over_forward, mode) <= TIGHT


@pytest.mark.parametrize("product", [jvp, vjp, reverse_over_reverse], ids=name)
def test_reverse_direction(product):
    assert compare(wanted(product, True), wanted(product)) > 1e-3
    assert error(product, "free", reverse=True) <= TIGHT


def test_unrolled_strategy():
    for product in (jvp, vjp):
        run = tf.function(partial(product, partial(outputs, scan, unrolled=True)), autograph=False)
        assert compare(numbered(run(POINT, TANGENT)), wanted(product)) <= TIGHT
        assert not loops(run.get_concrete_function(POINT, TANGENT))


def test_unrolled_needs_a_known_number_of_steps():
    run = tf.function(lambda flat, _: outputs(scan, flat, unrolled=True), autograph=False, input_signature=SIGNATURE)
    with pytest.raises(ValueError, match="known number of time steps"):
        run(POINT, TANGENT)


def test_known_sizes_stay_known():
    traced = tf.function(partial(outputs, scan), autograph=False).get_concrete_function(POINT)
    assert [t.shape for t in traced.structured_outputs] == OUT_SHAPES


def test_one_step():
    flat = [*POINT[:4], *(x[:1] for x in POINT[4:])]
    for reverse in (False, True):
        found, right = (numbered(outputs(loop, flat, reverse=reverse)) for loop in (scan, written_out))
        assert compare(found, right) <= TIGHT


def test_adjoint_identity_and_central_differences():
    keys = list(SHAPES)
    at = dict(zip(keys, (t.numpy() for t in POINT), strict=True))
    run = partial(outputs, scan)

    def listed(arrays):
        return [tf.constant(arrays[k]) for k in keys]

    def pushed(inputs, tangents):
        return numbered(jvp(run, listed(inputs), listed(tangents))[1])

    def pulled(inputs, cotangents):
        flat = listed(inputs)
        with tf.GradientTape() as tape:
            tape.watch(flat)
            found = run(flat)
        given = [tf.constant(cotangents[str(i)]) for i in range(4)]
        return {k: g.numpy() for k, g in zip(keys, tape.gradient(found, flat, output_gradients=given), strict=True)}

    assert adjoint_error(pushed, pulled, at) <= TOLERANCES["float64"].adjoint
    direction = dict(zip(keys, (t.numpy() for t in TANGENT), strict=True))
    around = central_difference(lambda arrays: numbered(run(listed(arrays))), at, direction)
    assert compare(pushed(at, direction), around) <= TOLERANCES["float64"].difference


# A tf.function that contains the loop, differentiated from outside.


@tf.function(autograph=False)
def compiled(flat):
    return outputs(scan, flat)


@tf.function(autograph=False)
def compiled_gradient(flat):
    return gradient(partial(outputs, scan), flat)


@tf.function(autograph=False)
def compiled_jvp(flat, tangent):
    with Forward(flat, tangent) as accumulator:
        loss = scalar(partial(outputs, scan), flat)
    return accumulator.jvp(loss)


@pytest.mark.parametrize("product", [jvp, jvp_of_xs, vjp], ids=name)
def test_derivative_around_a_function(product):
    assert compare(numbered(product(compiled, POINT, TANGENT)), wanted(product)) <= TIGHT


@pytest.mark.slow
def test_accumulator_around_a_function_with_a_gradient_inside():
    with Forward(POINT, TANGENT) as accumulator:
        found = compiled_gradient(POINT)
    assert compare(numbered(accumulator.jvp(found)), wanted(forward_over_reverse)) <= TIGHT


def test_tape_around_a_function_with_a_gradient_inside():
    with tf.GradientTape() as tape:
        tape.watch(POINT)
        found = compiled_gradient(POINT)
    assert compare(numbered(tape.gradient(found, POINT, TANGENT)), wanted(reverse_over_reverse)) <= TIGHT


def test_tape_around_a_function_with_a_jvp_inside():
    with tf.GradientTape() as tape:
        tape.watch(POINT)
        slope = compiled_jvp(POINT, TANGENT)
    assert compare(numbered(tape.gradient(slope, POINT)), wanted(reverse_over_forward)) <= TIGHT


def test_gradient_of_a_jvp_with_respect_to_its_tangent():
    """The JVP is linear in the tangent, so this is the VJP."""
    with tf.GradientTape() as tape:
        tape.watch(TANGENT)
        slope = compiled_jvp(POINT, TANGENT)
    found = tape.gradient(slope, TANGENT)
    assert compare(numbered(found), numbered(gradient(partial(outputs, written_out), POINT))) <= TIGHT


# Tensors that are not differentiated.


def counting_step(consts, carry, x):
    (table,), (h, count), (token, v) = consts, carry, x
    count = count + 1
    h = tf.tanh(h * tf.cast(count, h.dtype) + tf.gather(table, token)) + v
    return [h, count], [h, count, token]


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_integer_carry_and_integer_xs(mode):
    table, h, v = draw(5, [(4, H), (B, H), (T, B, H)])
    tokens = tf.constant(np.random.default_rng(1).integers(0, 4, (T, B)).astype("int32"))
    sources, tangent = [table, h, v], draw(6, [(4, H), (B, H), (T, B, H)])

    def products(loop, sources, tangent):
        table, h, v = sources
        with tf.GradientTape() as tape:
            tape.watch(sources)
            final, ys = loop(counting_step, [table], [h, tf.constant(0)], [tokens, v])
            loss = tf.reduce_sum(final[0] * ys[0])
        with Forward(sources, tangent) as accumulator:
            final_, ys_ = loop(counting_step, [table], [h, tf.constant(0)], [tokens, v])
        assert accumulator.jvp(ys_[1]) is None
        slopes = [accumulator.jvp(final_[0]), accumulator.jvp(ys_[0])]
        return tape.gradient(loss, sources), slopes, final, ys

    found = MODES[mode](partial(products, scan))(sources, tangent)
    assert found[2][1] == T
    assert found[3][1].numpy().tolist() == [1, 2, 3, 4]
    assert compare(numbered(found), numbered(products(written_out, sources, tangent))) <= TIGHT


def test_integers_beside_stacked_directions():
    table, h, v, *many = draw(5, [(4, H), (B, H), (T, B, H), (3, 4, H), (3, T, B, H)])
    tokens = tf.zeros((T, B), tf.int32)
    run = partial(scan, counting_step, carry=[h, tf.constant(0)])
    with stacked_accumulator([table, v], many) as accumulator:
        found = run(consts=[table], xs=[tokens, v])[1][0]
    together = accumulator.jvp(found)
    for k in range(3):
        with Forward([table, v], [t[k] for t in many]) as accumulator:
            found = run(consts=[table], xs=[tokens, v])[1][0]
        assert compare({"": together[k].numpy()}, {"": accumulator.jvp(found).numpy()}) <= TIGHT


def test_output_that_does_not_depend_on_the_direction_has_zero_tangent():
    x, h = draw(7, [(T, B, H), (B, H)])

    def step(_, carry, x):
        return [tf.sign(x[0]) + tf.stop_gradient(carry[0])], [tf.ones_like(x[0]), tf.sign(x[0])]

    for mode in ("eager", "graph"):

        def slopes(x, h):
            with Forward([x, h], [x, h]) as accumulator:
                final, ys = scan(step, [], [h], [x])
            return accumulator.jvp([*final, *ys])

        found = MODES[mode](slopes)(x, h)
        assert [t.shape for t in found] == [(B, H), (T, B, H), (T, B, H)]
        assert all(np.all(t == 0) for t in found)


# What the graph holds.


def functions(concrete):
    library = concrete.graph.as_graph_def().library.function
    return {f.signature.name: f for f in library}


def nodes(concrete):
    every = list(concrete.graph.as_graph_def().node)
    return every + [n for f in functions(concrete).values() for n in f.node_def]


def loops(concrete):
    return [n for n in nodes(concrete) if n.op in ("While", "StatelessWhile")]


def jvp_of_final(run, flat):
    with Forward(flat, flat) as accumulator:
        found = run(flat)[0]
    return accumulator.jvp(found)


def gradient_of_final(run, flat):
    with tf.GradientTape() as tape:
        tape.watch(flat)
        loss = tf.reduce_sum(run(flat)[0])
    return tape.gradient(loss, flat)


@pytest.mark.parametrize(("product", "count"), [(outputs, 1), (jvp_of_final, 2), (gradient_of_final, 2)], ids=name)
def test_size_of_the_graph_does_not_depend_on_time(product, count):
    sizes = []
    for steps in (3, 100):  # larger zeros would be made by other nodes
        flat = draw(0, [*list(SHAPES.values())[:4], (steps, B, F), (steps, B)])
        run = partial(outputs, scan) if product is not outputs else scan
        traced = tf.function(partial(product, run), autograph=False).get_concrete_function(flat)
        sizes.append(len(nodes(traced)))
        assert len(loops(traced)) == count
    assert sizes[0] == sizes[1]


def kept_by_the_tape(run, steps):
    """Count the numbers that reverse mode keeps from the forward pass, beyond the function's own inputs.

    A tf.function called under a tape returns, beside its outputs, what its backward function will need. What only
    passes through (IdentityN) is one buffer under several names, so each is traced back to where it was computed.
    """
    flat = draw(0, [*list(SHAPES.values())[:4], (steps, B, F), (steps, B)])
    inner = tf.function(run, autograph=False)
    outer = tf.function(partial(gradient_of_final, inner), autograph=False).get_concrete_function(flat)
    calls = [op for op in outer.graph.get_operations() if op.type in ("PartitionedCall", "StatefulPartitionedCall")]
    forward, backward = calls
    body = functions(outer)[forward.get_attr("f").name]
    made = {node.name: node for node in body.node_def}
    used = {t.name for t in backward.inputs}
    kept = {}
    for argument, tensor in zip(body.signature.output_arg, forward.outputs, strict=True):
        source = body.ret[argument.name]
        while ":" in source and made[source.split(":")[0]].op in ("Identity", "IdentityN"):
            node, _, place = source.split(":")
            source = made[node].input[int(place)]
        if tensor.name in used and ":" in source:
            kept[source] = [steps if n is None else n for n in tensor.shape]
    return sum(int(np.prod(shape)) for shape in kept.values())


CARRIES = B * H + B


def test_tape_keeps_the_carries_and_nothing_else_per_step():
    short, long = (kept_by_the_tape(partial(outputs, scan), steps) for steps in (5, 15))
    assert (long - short) / 10 == CARRIES
    assert short == 5 * CARRIES


def test_the_measure_of_the_tape_sees_what_an_ordinary_loop_keeps():
    short, long = (kept_by_the_tape(partial(outputs, written_out), steps) for steps in (5, 15))
    assert (long - short) / 10 > 2 * CARRIES


@pytest.mark.parametrize(
    "product", [reverse_over_forward, pytest.param(forward_over_forward, marks=pytest.mark.slow)], ids=name
)
def test_nothing_is_lost_when_tensorflow_stops_tracing_exact_shapes(monkeypatch, product):
    """After 32 shapes of an operation its rule is traced for any shape and no longer knows even the rank."""
    monkeypatch.setattr(_tf.forwardprop, "_TRACE_COUNT_LIMIT", 0)
    for rank in (1, 2, 3, 4):
        x = tf.ones([2] * rank, tf.float64)
        for function in (tf.tanh, tf.sigmoid, lambda a: a * a, lambda a: a + a, lambda a: a - 2 * a, lambda a: a + 1):
            with tf.autodiff.ForwardAccumulator(x, x) as accumulator:
                y = function(x)
            assert accumulator.jvp(y) is not None
    assert error(product, "free") <= TIGHT
