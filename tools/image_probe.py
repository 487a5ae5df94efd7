"""What `tools.image_check` runs inside of the container with the arguments register|ask URL KEY; no image holds it."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from pushforward import Client

STEP = 1e-5


def register(client: Client) -> None:
    """Register a model of stock layers that was trained nowhere."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.GRU(8, return_sequences=True), keras.layers.Dense(2)]
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "mine.keras"
        keras.Sequential([keras.Input((None, 3)), *layers]).save(archive)
        client.register("mine", archive, dtype="float64")


def ask(client: Client) -> None:
    """Print the JVP of a built-in model and of the registered one, once central differences agree."""
    for model, features in (("seed-gru", 1), ("mine", 3)):
        random = np.random.default_rng(0)
        x, v = random.normal(size=(2, 1, 6, features))
        found = client.jvp(model, {"x": x}, {"x": v})
        ahead, behind = (client.evaluate(model, {"x": x + s * STEP * v}).outputs for s in (1, -1))
        for name, tangent in found.tangents.items():
            np.testing.assert_allclose(tangent, (ahead[name] - behind[name]) / (2 * STEP), rtol=1e-6, atol=1e-9)
            print(model, name, " ".join(value.hex() for value in tangent.ravel().tolist()))


if __name__ == "__main__":
    _, what, url, key = sys.argv
    with Client(url, api_key=key) as connected:
        {"register": register, "ask": ask}[what](connected)
