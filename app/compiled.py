"""The programs that XLA compiled: which sizes are worth it, and when each is ready."""

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_log = logging.getLogger(__name__)

V = TypeVar("V")

# What XLA compiled stays in memory, 4 to 9 MB each, after the program is dropped. So only one that was not used for as
# many calls as this makes room: sizes that come at random would replace each other for ever. And there is an end to
# replacing, this many times the number that are kept.
_IDLE = 1000
_REPLACEMENTS = 4

# Keys of programs that could not be compiled, which are not tried again.
_REFUSED = 4096


class Recent(Generic[V]):
    """A mapping that keeps the most recently used entries only."""

    def __init__(self, limit: int) -> None:
        self._limit, self._entries = limit, OrderedDict[Hashable, V]()

    def get(self, key: Hashable) -> V | None:
        """Return an entry and mark it as used."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    @property
    def oldest(self) -> V:
        """The entry unused for longest."""
        return next(iter(self._entries.values()))

    def put(self, key: Hashable, value: V) -> None:
        """Keep an entry; the one unused for longest goes if there are too many."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def drop(self, which: Callable[[Any], bool]) -> None:
        """Drop the entries whose keys are such."""
        for key in [key for key in self._entries if which(key)]:
            del self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)


@dataclass
class Popular:
    """Tells which of many keys come often.

    Args:
        patience: how many times one must have come among the last `window`.
        window: how many are remembered.
    """

    patience: int
    window: int = 100
    _recent: deque[Hashable] = field(default_factory=deque[Hashable])
    _counts: Counter[Hashable] = field(default_factory=Counter[Hashable])

    def __call__(self, key: Hashable) -> bool:
        """Count a key, and tell whether it comes often."""
        self._recent.append(key)
        self._counts[key] += 1
        if len(self._recent) > self.window:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        return self._counts[key] >= self.patience


@dataclass
class _Kept(Generic[V]):
    """A program, and how many calls there had been when it was used last."""

    program: V
    used: int


class Compiled(Generic[V]):
    """Compiled programs by key, for one thread that asks for them.

    Args:
        most: how many are kept; 0 compiles none.
        patience: how often a key must have come lately before its program is compiled.
        background: whether compiling happens on a thread of its own; else whoever asks waits for it.
    """

    def __init__(self, most: int, patience: int, background: bool) -> None:
        self._most, self._popular = most, Popular(patience)
        self._programs: Recent[_Kept[V]] = Recent(most)
        self._calls = 0
        self._refused: Recent[bool] = Recent(_REFUSED)
        self._begun: set[Hashable] = set()
        self._lock = threading.Lock()
        self._thread: Executor | None = ThreadPoolExecutor(1, "compiler") if background and most else None
        self.count = 0
        """How many programs have been compiled so far."""

    def __len__(self) -> int:
        return len(self._programs)

    def close(self) -> None:
        """Compile no more; wait for what is being compiled."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def find(self, keys: Iterable[Hashable]) -> tuple[Hashable, V] | None:
        """Return the first program that is ready, with its key."""
        with self._lock:
            self._calls += 1
            for key in keys:
                if (kept := self._programs.get(key)) is not None:
                    kept.used = self._calls
                    return key, kept.program
        return None

    def drop(self, which: Callable[[Any], bool]) -> None:
        """Drop the programs whose keys are such."""
        with self._lock:
            self._programs.drop(which)

    def wish(self, wishes: Mapping[Hashable, Callable[[], V | None]]) -> tuple[Hashable, V] | None:
        """Count that one of several programs would have been used, and have the first compiled that often would.

        Args:
            wishes: by key what compiles it, the best first; None comes back if it can't be.

        Returns:
            The program and its key, if there is no thread for it.
        """
        with self._lock:
            popular = [key for key in wishes if self._popular(key) and not self._refused.get(key)]
            if self._spent() or not popular or any(key in self._begun for key in wishes):
                return None
            key = popular[0]
            self._begun.add(key)
        if self._thread is not None:
            self._thread.submit(self.make, key, wishes[key])
            return None
        program = self.make(key, wishes[key])
        return None if program is None else (key, program)

    def make(self, key: Hashable, make: Callable[[], V | None]) -> V | None:
        """Compile a program at once."""
        try:
            program = make()
        except Exception:
            # On the compiler's thread nobody would hear of it, and the graph serves as well.
            _log.exception("a program could not be compiled")
            program = None
        with self._lock:
            self._begun.discard(key)
            if program is None:
                self._refused.put(key, True)
            else:
                self._programs.put(key, _Kept(program, self._calls))
                self.count += 1
        return program

    def _spent(self) -> bool:
        """Tell whether no more may be compiled now."""
        if self.count >= self._most * (1 + _REPLACEMENTS):
            return True
        if len(self._programs) + len(self._begun) < self._most:
            return False
        return bool(self._begun) or self._calls - self._programs.oldest.used < _IDLE
