"""What comes out of a group of joined works is what each gives alone."""

import numpy as np
import pytest

from app.programs import Programs
from models.zoo import bi_gru, lstm_last, seed_gru, stacked_rnn
from tests.app.joining import Kind, assert_same, key

MODELS = {module.MODEL.name: module.MODEL for module in (seed_gru, stacked_rnn, lstm_last, bi_gru)}
# Lengths of one bucket.
TIMES = (9, 10, 11, 12)


@pytest.fixture(scope="module")
def zoo():
    return {name: entry.load() for name, entry in MODELS.items()}


@pytest.fixture(scope="module")
def graphs():
    return Programs(compiled=0)


def members(rng, kind, most=3):
    """Two to four calls of a kind, of different lengths where they may be joined."""
    times = TIMES if kind.padded else rng.choice(TIMES, 1)
    return [kind.work(rng, rng.integers(1, most + 1), rng.choice(times)) for _ in range(rng.integers(2, 5))]


def check(programs, graphs, kind, works):
    found, compiled = programs.run_group(kind.model, kind.operator, works)
    for work, part in zip(works, found, strict=True):
        assert_same(part, graphs.run(kind.model, kind.operator, work)[0], kind.model.dtype)
    return compiled


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 20))])
@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
@pytest.mark.parametrize("name", MODELS)
def test_a_group_gives_what_each_gives_alone(zoo, graphs, name, operator, seed):
    rng = np.random.default_rng([seed, *map(ord, name + operator)])
    strategy = rng.choice(["scan", "scan", "reverse"])
    kind = Kind.draw(rng, zoo[name], operator, strategy=str(strategy))
    for _ in range(5):
        works = members(rng, kind)
        assert len({key(work) for work in works}) == 1
        assert not check(graphs, graphs, kind, works)


@pytest.mark.parametrize("operator", ["evaluate", "jvp", "vjp"])
@pytest.mark.parametrize("name", MODELS)
def test_lengths_are_joined_only_where_steps_at_the_end_change_nothing(zoo, name, operator):
    for seed in range(50):
        rng = np.random.default_rng([seed, *map(ord, name + operator)])
        kind = Kind.draw(rng, zoo[name], operator)
        keys = {key(kind.work(rng, 1, time)) for time in TIMES}
        assert len(keys) == (1 if kind.padded else len(TIMES)), kind
        assert key(kind.work(rng, 1, 13)) not in keys


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 5))])
@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("stacked-rnn", "vjp"),
        ("lstm-last", "jvp"),
        *(
            pytest.param(name, operator, marks=pytest.mark.slow)
            for name in MODELS
            for operator in ("evaluate", "jvp", "vjp")
            if (name, operator) not in (("stacked-rnn", "vjp"), ("lstm-last", "jvp"))
        ),
    ],
)
def test_a_compiled_program_that_is_larger_than_the_group(zoo, graphs, name, operator, seed):
    """With rows that are filled up with zeros and, where that changes nothing, steps as well."""
    rng = np.random.default_rng([seed, *map(ord, name + operator)])
    kind = Kind.draw(rng, zoo[name], operator)
    compiled = Programs(patience=10**9)
    for time in (12, 11):  # The longest, or one that is shorter than the program where it can be.
        works = [kind.work(rng, rows, time if i == 0 or not kind.padded else time - i) for i, rows in enumerate((2, 3))]
        if time == 12 or not kind.padded:
            compiled.warm(kind.model, operator, works[0], [(6, time)])
        assert check(compiled, graphs, kind, works)
