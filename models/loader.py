"""A `.keras` archive becomes a model: checked as data, built from what was checked, and proved apart before that."""

import tempfile
from pathlib import Path

from models.archive import _build, _child, _config, _members, _weights
from models.archive._limits import Limits
from models.archive._proof import Report
from models.archive._proof import prove as _prove
from models.model import Model
from pushforward.errors import UnsafeModel
from pushforward.wire._arrays import DTYPES

__all__ = ["Limits", "Report", "load", "prove"]

_DEFAULT = Limits()


def load(name: str, archive: Path, *, version: int = 1, dtype: str | None = None, limits: Limits = _DEFAULT) -> Model:
    """Load an archive that `model.save("name.keras")` wrote. Nothing in it is run, and no file beside it is read.

    Args:
        name: of the model.
        archive: the file.
        version: of the model.
        dtype: what its weights are converted to and it computes in, `float32` or `float64`; if not given, as saved,
            but without mixed precision.
        limits: what it may hold.

    Raises:
        MalformedBody: if it is no whole archive.
        UnsafeModel: if it holds what it may not, or can't be differentiated forwards; the message names the layer.
    """
    with tempfile.TemporaryDirectory(prefix="pushforward-") as directory:
        members = _members.read(archive, Path(directory), limits)
        clean = _config.clean(members.config, dtype, limits)
        _weights.check(members.weights, limits)
        network = _build.build(clean, members.weights, limits)
    model = Model(name, network, version=version)
    model.notes = clean.notes
    _check_dtypes(model)
    return model


def prove(name: str, archive: Path, *, dtype: str | None = None, limits: Limits = _DEFAULT) -> Report:
    """Load an archive in a process of its own, compile a JVP and a VJP for a small shape, and compare them.

    The first time takes some seconds more, for TensorFlow to be loaded there.

    Args:
        name: of the model.
        archive: the file.
        dtype: as of `load`.
        limits: what it may hold and take.

    Raises:
        MalformedBody: if it is no whole archive.
        UnsafeModel: if it can't be loaded within the limits, can't be differentiated, or fails the comparison.
    """
    return _child.run(_load_and_prove, limits, name, archive, dtype, limits)


def _load_and_prove(name: str, archive: Path, dtype: str | None, limits: Limits) -> Report:
    return _prove(load(name, archive, dtype=dtype, limits=limits))


def _check_dtypes(model: Model) -> None:
    signature = model.signature
    arrays = (*signature.inputs, *signature.states, *signature.hidden, *signature.parameters, *signature.outputs)
    foreign = next((a for a in arrays if a.dtype not in DTYPES), None)
    if foreign is not None:
        raise UnsafeModel(
            f"{foreign.name} holds {foreign.dtype}, which no format can carry; register the model with ?dtype=float32"
        )
