"""Rows of different lengths: how many steps of each are its own, and zeros in place of whatever pads the others."""

from collections.abc import Mapping

import numpy as np

from models.model import Model
from models.signature import LENGTHS
from pushforward.errors import InvalidArray, InvalidRequest

Feeds = dict[str, np.ndarray]

LENGTHS_PATH = f"inputs.{LENGTHS}"
"""Where the lengths stand among what a program is fed: int32, `(batch,)`."""


def read_lengths(model: Model, lengths: np.ndarray, feeds: Feeds) -> np.ndarray | None:
    """Check the lengths of a request against its arrays.

    Args:
        model: the model.
        lengths: what the request holds.
        feeds: its checked inputs, of one batch size.

    Returns:
        The lengths as int32, `(batch,)`; None if every row is as long as the time axis, so that nothing is padded.

    Raises:
        InvalidArray: if they are not one integer per row, from 0 to the number of steps.
        InvalidRequest: if the model has no time axis, sequences of several lengths, or a layer that padding gets past.
    """
    sizes = {f"inputs.{a.name}": feeds[f"inputs.{a.name}"].shape for a in model.signature.sequences}
    if not sizes:
        raise InvalidRequest(f"model {model.name!r} has no input with a time axis; leave lengths out", path="lengths")
    (first, (batch, time, *_)), *others = sizes.items()
    for path, shape in others:
        if shape[1] != time:
            raise InvalidRequest(
                f"{first} has {time} steps, {path} has {shape[1]}; one length per row is for sequences with one time "
                "axis: pad all to as many steps, or leave lengths out",
                path="lengths",
            )
    checked = _checked(lengths, batch, time)
    if (checked == time).all():
        return None
    if model.signature.padding is not None:
        raise InvalidRequest(
            f"model {model.name!r} can't take rows of different lengths: {model.signature.padding}; send rows of one "
            "length in a request of their own",
            path="lengths",
            expected=f"every length {time}, as the time axis",
        )
    return checked


def with_lengths(model: Model, feeds: Feeds, lengths: np.ndarray) -> Feeds:
    """Return inputs with zeros in the padding, and the lengths."""
    return {**padding_zeroed(model, feeds, lengths), LENGTHS_PATH: lengths}


def padding_zeroed(model: Model, arrays: Mapping[str, np.ndarray], lengths: np.ndarray | None) -> Feeds:
    """Return arrays of the input side with zeros in the padding of those that have a time axis; the others as they are.

    Args:
        model: the model.
        arrays: by path; tangents may be stacked.
        lengths: of the rows; None if nothing is padded.
    """
    if lengths is None:
        return dict(arrays)
    axes = {a.name: a.axes for a in model.signature.arrays if a.axes[:2] == ("batch", "time")}
    found: Feeds = {}
    for path, array in arrays.items():
        own = axes.get(path.partition(".")[2])
        if own is not None:
            stacked = array.ndim - len(own)
            steps = own_steps(lengths, array.shape[stacked + 1])
            array = np.where(steps.reshape(*steps.shape, *[1] * (len(own) - 2)), array, np.zeros((), array.dtype))
        found[path] = array
    return found


def own_steps(lengths: np.ndarray, time: int) -> np.ndarray:
    """Tell which steps are a row's own, `(batch, time)`."""
    return np.arange(time) < lengths[:, np.newaxis]


def _checked(lengths: np.ndarray, batch: int, time: int) -> np.ndarray:
    expected = f"{batch} integers from 0 to {time}"
    if lengths.shape != (batch,):
        received = f"shape {lengths.shape}"
        raise InvalidArray(
            f"expected one length per row, shape ({batch},), got {received}; give the steps of each row",
            path="lengths",
            expected=expected,
            received=received,
        )
    if lengths.dtype.kind not in "iu":
        raise InvalidArray(
            f"expected integers, the number of steps of each row, got {lengths.dtype}; send int32 or int64",
            path="lengths",
            expected=expected,
            received=str(lengths.dtype),
        )
    wrong = np.flatnonzero((lengths < 0) | (lengths > time))
    if wrong.size:
        row = int(wrong[0])
        raise InvalidArray(
            f"expected lengths from 0 to {time}, the size of the time axis, got {lengths[row]}; count the row's own "
            "steps, without padding",
            path=f"lengths[{row}]",
            expected=expected,
            received=str(lengths[row]),
        )
    return lengths.astype(np.int32)
