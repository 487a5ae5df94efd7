"""What a built-in model's file declares."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import keras

from models.model import Model


@dataclass(frozen=True)
class Entry:
    """A built-in model: `build` makes the network from stock Keras layers; weights come from a fixed seed."""

    name: str
    summary: str
    build: Callable[[], keras.Model]

    def load(self) -> Model:
        """Build the network with the same weights every time and register it; with this seed no final relu is dead."""
        # Keras's initialisers take their seeds from here and nowhere else; everybody else's random numbers stay theirs.
        state = random.getstate()
        random.seed(1)
        try:
            network = self.build()
        finally:
            random.setstate(state)
        return Model(self.name, network)
