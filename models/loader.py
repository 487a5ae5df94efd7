"""A `.keras` archive becomes a registered model."""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import keras

from models.model import Model
from pushforward.errors import UnsafeModel

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def load(path: Path) -> Model:
    """Load an archive that `model.save("name.keras")` wrote; the file's name becomes the model's.

    Raises:
        UnsafeModel: if it can't be loaded without running code of its own, or can't be differentiated forwards.
    """
    name = path.stem
    if not _NAME.fullmatch(name):
        raise UnsafeModel(f"{path.name}: a model's name consists of letters, digits, dots, dashes and underscores")
    if not zipfile.is_zipfile(path):
        raise UnsafeModel(f"{path.name} can't be loaded: it is no whole .keras archive; save the model to it again")
    try:
        network = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # an archive is somebody else's data, and Keras raises almost anything
        # Keras puts the reason last, behind the whole configuration, and after it advice that does not apply here.
        reason = (str(error) or type(error).__name__).rpartition("Exception encountered: ")[2].splitlines()[0]
        raise UnsafeModel(
            f"{path.name} can't be loaded: {reason.partition('. ')[0][:300]}; build the model from stock Keras layers, "
            "without Lambda, and save it again"
        ) from error
    return Model(name, network)


def load_directory(directory: Path) -> Iterator[Model]:
    """Load every archive of a directory, in the order of their names."""
    for path in sorted(directory.glob("*.keras")):
        yield load(path)
