"""Slices against NumPy's own indexing, and every way to get one wrong."""

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.operators._slices import LONGEST, Selection, Slice, parse, select
from pushforward.errors import InvalidSlice

AXES = ("time", "feature", "channel", "depth")
BLANKS = st.sampled_from(["", "", " ", "  ", "\t", "\n"])
NAMES = ["y", "hidden.gru_1.forward.h", "param.a/b:0", "state.lstm-1.c", "größe", "my input"]


def example_of(error):
    """Take the example out of a message."""
    assert error.detail.count("; write it like ") == 1
    text = error.detail.partition("; write it like ")[2]
    assert error.expected == text
    return text


def read(text, path, sizes):
    """Parse, and select if there are sizes."""
    part = parse(text, path)
    return part if sizes is None else select(part, AXES[: len(sizes)], sizes, path)


def refused(text, path="of", sizes=None):
    """Fail to read a slice; check what all messages have in common."""
    with pytest.raises(InvalidSlice) as caught:
        read(text, path, sizes)
    error = caught.value
    assert error.path == path
    assert len(error.detail) < 700
    corrected = read(example_of(error), path, sizes)
    assert sizes is None or corrected.name == parse(text, path).name
    return error


def test_parts():
    text = " hidden.gru_1.forward.h [ ::2 ,-1,3: ]  "
    part = parse(text, "of")
    assert part == Slice("hidden.gru_1.forward.h", (slice(None, None, 2), -1, slice(3, None)), text, (26, 31, 34))
    assert [text[i] for i in part.positions] == [":", "-", "3"]
    assert parse(" param.dense.kernel", "wrt") == Slice("param.dense.kernel", (), " param.dense.kernel", ())


@pytest.mark.parametrize(
    ("text", "shape", "labels"),
    [
        ("y", (5, 3), ["y.time", "y.feature"]),
        ("y[-1, :]", (3,), ["y.feature"]),
        ("y[1:3, 0]", (2,), ["y.time"]),
        ("y[::2]", (3, 3), ["y.time", "y.feature"]),
        ("y[+2:3, -3:-2]", (1, 1), ["y.time", "y.feature"]),
        ("y[::-1, 1]", (5,), ["y.time"]),
        ("y[0, 0]", (), []),
        ("y[:9999999999999999999, ::-9999999999999999999]", (5, 1), ["y.time", "y.feature"]),
    ],
)
def test_shape_and_labels(text, shape, labels):
    selection = select(parse(text, "of"), ["time", "feature"], [5, 3], "of")
    assert (selection.shape, selection.labels) == (shape, labels)
    assert selection.count == np.prod(shape)
    assert selection.elements().shape == (selection.count, 2)


def test_selection():
    assert select(parse("state.gru.h[::-2]", "wrt"), ["unit"], [4], "wrt") == Selection(
        "state.gru.h", (4,), (range(3, -1, -2),), (True,), ("unit",)
    )
    assert select(parse("param.scale", "wrt"), [], [], "wrt").elements().tolist() == [[]]


@st.composite
def slices(draw, sizes):
    """Draw an index, valid or not, and one of the texts that mean it."""
    items, written = [], []
    for size in sizes[: draw(st.integers(0, len(sizes)))]:
        bounds = st.none() | st.integers(-size - 2, size + 2)
        steps = st.none() | st.integers(-3, 3).filter(bool) | st.just(10**18)
        item = draw(st.integers(-size - 1, size) | st.builds(slice, bounds, bounds, steps))
        tokens = [item] if isinstance(item, int) else [item.start, item.stop, item.step]
        if len(tokens) == 3 and tokens[2] is None and draw(st.booleans()):
            tokens.pop()
        texts = ["" if n is None else f"{n:{draw(st.sampled_from(['', '+', '03']))}}" for n in tokens]
        items.append(item)
        written.append(":".join(draw(BLANKS) + text + draw(BLANKS) for text in texts))
    name = draw(BLANKS) + draw(st.sampled_from(NAMES)) + draw(BLANKS)
    return tuple(items), name + (f"[{','.join(written)}]" if written else "") + draw(BLANKS)


@given(st.data())
def test_means_what_numpy_means(data):
    sizes = data.draw(st.lists(st.integers(1, 6), max_size=4))
    index, text = data.draw(slices(sizes))
    array = np.arange(np.prod(sizes, dtype=int)).reshape(sizes)
    part = parse(text, "of")
    assert part.items == index
    try:
        wanted = array[index]
    except IndexError:
        wanted = None
    if wanted is None or wanted.size == 0:
        refused(text, sizes=sizes)
        return
    selection = select(part, AXES[: len(sizes)], sizes, "of")
    elements = selection.elements()
    assert elements.dtype == np.int64
    assert elements.shape == (wanted.size, array.ndim)
    assert selection.count == wanted.size
    np.testing.assert_array_equal(array[tuple(elements.T)].reshape(selection.shape), wanted)
    assert selection.shape == wanted.shape
    assert len(selection.labels) == wanted.ndim
    start, stop = sorted(data.draw(st.tuples(st.integers(0, wanted.size), st.integers(0, wanted.size))))
    np.testing.assert_array_equal(selection.elements(start, stop), elements[start:stop])
    np.testing.assert_array_equal(selection.elements(start), elements[start:])


def test_few_of_many_elements():
    selection = select(parse("y[::-1, 7, 1:]", "of"), AXES[:3], [10**6, 9, 10**6], "of")
    assert selection.elements(10**6, 10**6 + 2).tolist() == [[10**6 - 2, 7, 2], [10**6 - 2, 7, 3]]
    assert selection.elements(5, 5).shape == (0, 3)


@pytest.mark.parametrize("bounds", [(-1, 2), (0, 7), (7, 8)])
def test_elements_outside_the_selection(bounds):
    with pytest.raises(ValueError, match="out of bounds"):
        select(parse("y[:, 0]", "of"), AXES[:2], [6, 2], "of").elements(*bounds)


@pytest.mark.parametrize(
    ("text", "position", "got", "reason"),
    [
        ("", 0, "the end of the text", "an array's name, and a slice"),
        ("  ", 0, "'  '", "an array's name, and a slice"),
        ("y" * (LONGEST + 30), LONGEST, "'yyyyyyyyyyyyyyyyyyyy…'", "the end after at most 200 characters"),
        (" [0]", 1, "'['", "an array's name before the bracket"),
        ("y[0, :", 6, "the end of the text", "a closing bracket ]"),
        ("y[", 2, "the end of the text", "a closing bracket ]"),
        ("y[0, :]  .T", 9, "'.T'", "nothing after the closing bracket"),
        ("y[0]]", 4, "']'", "nothing after the closing bracket"),
        ("y[0] [1]", 5, "'[1]'", "one pair of brackets that holds all indices"),
        ("y[]", 2, "']'", "an index must not be empty"),
        ("y[1, ,2]", 5, "','", "an index must not be empty"),
        ("y[1,]", 4, "']'", "an index must not be empty"),
        ("y[,1]", 2, "','", "an index must not be empty"),
        ("y[0, a]", 5, "'a'", "expected an integer, start:stop:step or : for each axis"),
        ("y[-]", 2, "'-'", "expected an integer"),
        ("y[1.5]", 2, "'1.5'", "the digits 0 to 9"),
        ("y[1_0]", 2, "'1_0'", "the digits 0 to 9"),
        ("y[0x1]", 2, "'0x1'", "the digits 0 to 9"),
        ("y[1 2]", 2, "'1 2'", "the digits 0 to 9"),
        ("y[- 1]", 2, "'- 1'", "the digits 0 to 9"),
        ("y[--1]", 2, "'--1'", "the digits 0 to 9"),
        ("y[٣]", 2, "'٣'", "the digits 0 to 9"),
        ("y[\N{MINUS SIGN}1]", 2, "'\N{MINUS SIGN}1'", "the digits 0 to 9"),
        ("y[\ud800]", 2, r"'\ud800'", "expected an integer"),
        ("y[0: a]", 5, "'a'", "expected an integer"),
        ("y[True]", 2, "'True'", "a bool is not supported"),
        ("y[1, false:]", 5, "'false'", "a bool is not supported"),
        ("y[0:1:2:3]", 2, "'0:1:2:3'", "at most two colons"),
        ("y[ ::: ]", 3, "':::'", "at most two colons"),
        ("y[:, 4:1:-0]", 9, "'-0'", "a step other than 0"),
        ("y[..., 0]", 2, "'...'", "an ellipsis is not supported"),
        ("y[0, …]", 5, "'…'", "an ellipsis is not supported"),
        ("y[0, Ellipsis]", 5, "'Ellipsis'", "an ellipsis is not supported"),
        ("y[None]", 2, "'None'", "None is not supported"),
        ("y[None:3]", 2, "'None'", "None is not supported"),
        ("y[:, np.newaxis]", 5, "'np.newaxis'", "None is not supported"),
        ("y[0, [1, 2]]", 5, "'[1'", "lists, tuples and masks are not supported"),
        ("y[[]]", 2, "'['", "lists, tuples and masks are not supported"),
        ("y[(1, 2)]", 2, "'(1'", "lists, tuples and masks are not supported"),
        ("y[y > 0]", 2, "'y > 0'", "masks are not supported"),
        ("y[h[0]]", 2, "'h[0'", "brackets can't be nested"),
        ("y[12345678901234567890]", 2, "'12345678901234567890'", "a number of at most 19 digits"),
        (f"y[:, -{'9' * 150}]", 5, "'-9999999999999999999…'", "a number of at most 19 digits"),
    ],
)
def test_what_cannot_be_read(text, position, got, reason):
    error = refused(text)
    assert error.detail.startswith(f"at character {position} expected ")
    assert f", got {got}; " in error.detail
    assert reason in error.detail
    assert error.received == got
    orjson.dumps(error.to_problem())


@pytest.mark.parametrize("value", [None, 3, True, ["y", [0]], {"name": "y"}, b"y[0]"])
@pytest.mark.parametrize(("path", "name"), [("of", "y"), ("wrt", "x")])
def test_what_is_no_text(value, path, name):
    error = refused(value, path)
    assert error.received == type(value).__name__
    assert f"as text, got {error.received}; write it like {name}[-1, :]" in error.detail


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("state.gru.h[a]", "state.gru.h[-1]"),
        ("hidden.gru.h [a, 0]", "hidden.gru.h[-1, :]"),
        ("hidden.gru.h[0][1]", "hidden.gru.h[-1, :]"),
        ("[0]", "y[-1, :]"),
        ("a\nb[", "y[-1, :]"),
        (f"{'n' * 197}[a]", "n" * 197),
        ("n" * 201, "y[-1, :]"),
    ],
)
def test_examples_are_of_the_same_array(text, shown):
    assert example_of(refused(text)) == shown


@pytest.mark.parametrize(
    ("text", "sizes", "position", "got", "reason", "shown"),
    [
        ("y[0, :, 1 ]", [5, 3], 8, "'1'", "at most 2 indices, for time, feature", "y[-1, :]"),
        ("state.h[0, :]", [5], 11, "':'", "at most 1 index, for time, got", "state.h[-1]"),
        ("param.scale[:]", [], 12, "':'", "no index, got ':'; it is a single number", "param.scale"),
        ("y[:, 3 ]", [5, 3, 2], 5, "'3'", "from -3 to 2 along axis feature, which has size 3", "y[-1, :, :]"),
        ("y[-6]", [5, 3], 2, "'-6'", "from -5 to 4 along axis time, which has size 5", "y[-1, :]"),
        ("y[-9999999999999999999]", [5], 2, "'-9999999999999999999'", "from -5 to 4", "y[-1]"),
        ("y[0, 2:2]", [5, 3], 5, "'2:2'", "something of axis feature, which has size 3, got '2:2'; start", "y[-1, :]"),
        ("y[ 5: ]", [5, 3], 3, "'5:'", "something of axis time, which has size 5, got '5:'; start", "y[-1, :]"),
        ("y[0:4:-1]", [5], 2, "'0:4:-1'", "a negative step counts down", "y[-1]"),
        (f"{'n' * 197}[9]", [5], 198, "'9'", "from -5 to 4", "n" * 197),
    ],
)
def test_what_does_not_fit(text, sizes, position, got, reason, shown):
    error = refused(text, "wrt", sizes=sizes)
    assert error.detail.startswith(f"at character {position} expected ")
    assert f", got {got}; " in error.detail
    assert reason in error.detail
    assert example_of(error) == shown


def test_nothing_can_be_taken_of_an_empty_axis():
    with pytest.raises(InvalidSlice, match=r"^of: expected at least one element, got none: axis feature has size 0$"):
        select(parse("y[0]", "of"), ["time", "feature"], [2, 0], "of")


@given(st.text(st.sampled_from("y[]()0123456789:,.-+ aNone\n\ud800²")) | st.text())
@example("y[²]")
def test_any_text_is_read_or_refused(text):
    try:
        part = parse(text, "of")
    except InvalidSlice:
        error = refused(text)
        orjson.dumps(error.to_problem())
        return
    assert part.text == text
    assert part.name == text.partition("[")[0].strip()
    assert len(part.items) == len(part.positions)
