"""Recurrent cells with hand-written linearisations; a cell is one file with a constant `CELL`."""

import keras

from models import cells
from models.cells._cell import Cell
from pushforward._registry import scan


def find(cell: keras.layers.Layer) -> Cell | None:
    """Return the hand-written rule for a Keras cell, or None if it has to be differentiated automatically."""
    for entry in scan(cells, "CELL").values():
        rule = entry.match(cell)
        if rule is not None:
            return rule
    return None
