"""A sequence of 20,000 steps in pieces: what client and server hold does not grow with it."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest

import pushforward
from tests.app.serving import serving

pytestmark = pytest.mark.slow

SIZE, ROWS, FEATURES = 500, 16, 4
# A piece: 256 kB, and so is each of its tangents, states after each step, and answers. The whole: 10 MB each.
PIECE = SIZE * ROWS * FEATURES * 8


def resident():
    gc.collect()
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1000


def piece(index, seed=0):
    return np.random.default_rng([seed, index]).normal(size=(ROWS, SIZE, FEATURES))


def sweep(client, pieces):
    """All three operators, nothing of them kept but weights' gradients; the numbers of the last piece."""
    long = client.chunked("stacked-rnn", piece, pieces=pieces)
    for found in long.evaluate():
        del found
    for found in long.jvp(lambda i: piece(i, 1)):
        last = found.tangents["y"]
    pulled = long.vjp({"y": lambda i: piece(i, 2)}, wrt=["param.rnn_1.kernel", "state.rnn_1.h"])
    assert pulled.steps == pieces * SIZE
    return last, pulled.cotangents


@pytest.mark.timeout(900)
def test_memory_is_that_of_a_piece():
    with serving(models="stacked-rnn", compiled_programs=0) as server, pushforward.Client(server.url) as client:
        for _ in range(3):
            sweep(client, 3)
        ours, theirs = resident(), server.resident
        last, cotangents = sweep(client, 40)
        # The allocators' own unrest is several pieces; the whole would be 40 of them for each array.
        grown = resident() - ours, server.resident - theirs
        assert max(grown) < 20 * PIECE, grown
        assert np.isfinite(last).all()
        assert all(np.isfinite(array).all() and array.any() for array in cotangents.values())
