"""Progress on stderr, if somebody looks at it."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich import progress
from rich.console import Console


class Bar:
    """A bar that is updated as tqdm's are."""

    def __init__(self, shown: progress.Progress, task: progress.TaskID) -> None:
        self._shown, self._task = shown, task

    def update(self, n: float) -> None:
        """Go on by `n`."""
        self._shown.advance(self._task, n)


@contextmanager
def bars(*, total: float | None = None, desc: str = "", unit: str = "", **_: Any) -> Generator[Bar, None, None]:
    """Make a bar, as `tqdm.tqdm` does: of bytes if the unit is `B`."""
    console = Console(stderr=True)
    if unit == "B":
        counts = [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    else:
        counts = [progress.MofNCompleteColumn(), progress.TextColumn(f"{unit}s")]
    columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), *counts, progress.TimeRemainingColumn()]
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield Bar(shown, shown.add_task(desc, total=total))
