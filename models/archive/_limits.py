"""What an archive may hold and take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds, most of them checked before anything is built.

    Attributes:
        parameters: numbers in all weights together.
        units: of one layer: units, filters, heads and the like.
        size: of any axis: input features, a fixed length, a vocabulary.
        layers: layers, cells and operations, inner ones too.
        config_bytes: length of the configuration.
        memory_bytes: what loading and proving may take, in a process of its own.
        seconds: how long that may take.
        allowed: classes that may be used besides those that are known to be safe, as `package.module.Class`. They are
            imported, and what they do is done.
    """

    parameters: int = 50_000_000
    units: int = 65_536
    size: int = 10_000_000
    layers: int = 2_000
    config_bytes: int = 8_000_000
    memory_bytes: int = 4_000_000_000
    seconds: float = 120.0
    allowed: tuple[str, ...] = ()

    @property
    def weights_bytes(self) -> int:
        """Largest file of weights: eight bytes for each number, and what surrounds them."""
        return 8 * self.parameters + 64_000_000
