"""A process of its own for what an archive may do to it: bounded in memory and time, and thrown away."""

import multiprocessing
import re
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from models.archive._limits import Limits
from pushforward.errors import PushforwardError, UnsafeModel, by_slug

# A server of forks: it imports TensorFlow once, and each child begins with that done. It ends with its parent.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["models.loader"])

_STATUS = Path("/proc/self/status")


def run(function: Callable[..., Any], limits: Limits, *arguments: Any) -> Any:
    """Call a function in a process of its own and return what it returns.

    Args:
        function: of a module, as it is found there by name.
        limits: the memory and time it may take.
        arguments: what it is called with.

    Raises:
        PushforwardError: what the function raises.
        UnsafeModel: if it takes too long, or more memory than it may, or crashes.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(sender, function, limits, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limits.seconds):
            raise UnsafeModel(
                f"loading and proving the model took longer than {limits.seconds:g} s, which is the limit; use a "
                "smaller model"
            )
        kind, found = receiver.recv()
    except EOFError:
        process.join()
        raise UnsafeModel(
            f"the process that loaded the model ended with {process.exitcode}: it may have needed more than "
            f"{limits.memory_bytes} bytes of memory, which is the limit; use a smaller model"
        ) from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if kind == "found":
        return found
    raise by_slug.get(kind, PushforwardError)(found)


def _work(sender: Connection, function: Callable[..., Any], limits: Limits, arguments: tuple[Any, ...]) -> None:
    _bound(limits)
    try:
        sender.send(("found", function(*arguments)))
    except PushforwardError as error:
        sender.send((error.slug, error.detail))
    except MemoryError:
        sender.send((UnsafeModel.slug, f"the model needs more than {limits.memory_bytes} bytes, which is the limit"))
    except Exception as error:
        # Nothing else of what an archive does to a process is the server's fault.
        sender.send((UnsafeModel.slug, f"loading the model failed: {type(error).__name__}: {str(error)[:300]}"))


def _bound(limits: Limits) -> None:
    """Take away what the child must not do: use more memory, leave core files, hold a GPU."""
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    found = re.search(r"VmData:\s+(\d+) kB", _STATUS.read_text())
    used = int(found[1]) * 1024 if found else 0
    resource.setrlimit(resource.RLIMIT_DATA, (used + limits.memory_bytes, used + limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(limits.seconds * multiprocessing.cpu_count()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
