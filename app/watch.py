"""A directory to which people copy archives: what came or changed, once it has come to rest."""

import logging
from pathlib import Path

_log = logging.getLogger(__name__)

# Asked for by polling: notifications of the system do not reach over network file systems.
_Stamp = tuple[int, int]


class Watch:
    """The archives in a directory, whose names are those of models.

    Args:
        directory: may be missing for a while.
        every_s: how often somebody is to look, in seconds.
    """

    def __init__(self, directory: Path, every_s: float) -> None:
        self.directory, self.every_s = directory, every_s
        self._before: dict[Path, _Stamp] = {}
        self._taken: dict[Path, _Stamp] = {}

    def all(self) -> list[Path]:
        """List all archives, which count as taken."""
        self._before = self._taken = self._look()
        return list(self._taken)

    def settled(self) -> list[Path]:
        """List those that came or changed since they were taken, and stayed as they are since the last look."""
        now = self._look()
        found = [path for path, stamp in now.items() if self._before.get(path) == stamp != self._taken.get(path)]
        self._before = now
        self._taken = {path: stamp for path, stamp in self._taken.items() if path in now}
        self._taken |= {path: now[path] for path in found}
        return found

    def _look(self) -> dict[Path, _Stamp]:
        stamps: dict[Path, _Stamp] = {}
        try:
            paths = sorted(self.directory.glob("*.keras"))
        except OSError as error:
            _log.error("%s can't be read: %s", self.directory, error)
            return {}
        for path in paths:
            try:
                stat = path.stat()
            except OSError:  # It went between the two calls, or is a link to nothing: it is not there.
                continue
            stamps[path] = (stat.st_mtime_ns, stat.st_size)
        return stamps
