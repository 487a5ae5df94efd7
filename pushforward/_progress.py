"""Progress bars: tqdm's, or whatever else is made like one."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Bars = Callable[..., AbstractContextManager[Any]]
"""Makes a bar as `tqdm.tqdm` does, `bars(total=, desc=, unit=, unit_scale=)`: a context manager, of an object with
`update(n)`, or of None if nothing is to be shown."""

Progress = bool | Bars
"""True for a tqdm bar, False for none, or what makes bars of another kind."""


def bars(progress: Progress) -> Bars:
    """What makes a progress bar.

    Raises:
        ImportError: if there is no tqdm to draw one.
    """
    if callable(progress):
        return progress
    if not progress:
        return _no_bar
    try:
        # Not an import statement: tqdm has no types.
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        raise ImportError('progress=True needs tqdm: pip install "pushforward[progress]"') from None


def _no_bar(**_: object) -> AbstractContextManager[None]:
    return nullcontext()
