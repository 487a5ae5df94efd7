"""The works of a Jacobian: on which samples and steps of the request's arrays, and from which states on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.operators import _layouts as layouts
from app.operators import _programs as programs
from app.operators import _reading as reading
from app.operators._chunks import Tensors
from app.operators._operator import Arrays, Shape, Work
from app.operators._sides import Range
from models.model import Model


@dataclass(frozen=True)
class Works:
    """Makes works on parts of a request's arrays."""

    model: Model
    feeds: reading.Feeds

    @property
    def timed(self) -> set[str]:
        """The paths of sequences."""
        return {f"inputs.{a.name}" for a in self.model.signature.sequences}

    def samples(self, samples: Range) -> dict[str, np.ndarray]:
        """Return the arrays of some samples."""
        return {path: array[slice(*samples)] for path, array in self.feeds.items()}

    def cut(self, feeds: Arrays, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return some steps of the arrays that have a time."""
        timed = self.timed
        return {path: array[:, start:stop] if path in timed else array for path, array in feeds.items()}

    def given(self, samples: Range) -> dict[str, np.ndarray]:
        """Return the states that the request gives."""
        return {p: a for p, a in self.samples(samples).items() if p.startswith("inputs.state.")}

    def states(self, samples: Range, stop: int) -> Work:
        """Compute the states after each step before `stop`."""
        names = list(self.model.signature.after_steps.values())
        feeds = self.cut(self.samples(samples), 0, stop)

        def program(arrays: Tensors) -> Tensors:
            return self.model.run(programs.primals_of(arrays), names)

        shapes = layouts.free_shapes(self.model, feeds)
        shapes |= {path: (None, None, *shape[2:]) for path, shape in shapes.items() if path in self.timed}
        return self.work(("states",), program, feeds, shapes, compile=False)

    def after(self, states: Arrays, step: int) -> dict[str, np.ndarray]:
        """Return what `states` found after a step, as the states to begin with."""
        return {f"inputs.{s}": states[h][:, step] for s, h in self.model.signature.after_steps.items()}

    def work(self, key: Any, program: Any, feeds: Arrays, shapes: Mapping[str, Shape], compile: bool) -> Work:
        """Make a work."""
        return Work(key, lambda: program, feeds, shapes, rows=1, strategy="scan", casts=[], compile=compile)
