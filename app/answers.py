"""What goes into an answer besides its arrays, and what keeps a call from having one."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from app.calls import Answer
from app.operators._operator import Job
from app.runs import Usage
from app.settings import Settings, variable
from models.model import Model
from pushforward.errors import DeadlineExceeded, InvalidRequest, TooLarge

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def answer(
    model: Model,
    job: Job,
    found: Mapping[str, np.ndarray],
    about: Mapping[str, Any],
    info: Mapping[str, Any] = _NOTHING,
) -> Answer:
    """Make the answer to a job.

    Args:
        model: what was asked.
        job: what it came to.
        found: arrays by path, such as `outputs.y`.
        about: members of `info` that tell where it is computed.
        info: further members, such as those that tell how.
    """
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for path, array in found.items():
        field, _, name = path.partition(".")
        arrays.setdefault(field, {})[name] = array
    first = {"strategy": job.strategy, "dtype": model.dtype, "device": about["device"], "rows": job.rows}
    whole = {**first, **about, **job.info, **info, "casts": list(job.casts)}
    return Answer(model.name, model.version, arrays, whole, job.extra)


def measured(job: Job, usage: Usage, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Tell how an answer was computed, as members of `info`."""
    return {
        "batch_rows": usage.batch_rows or job.rows,
        "queue_ms": round((usage.queued or 0.0) * 1e3, 3),
        "compute_ms": round(usage.computed * 1e3, 3),
        "compiled": usage.compiled,
        "nonfinite": sum(a.size - np.count_nonzero(np.isfinite(a)) for a in arrays.values()),
    }


def check_size(job: Job, settings: Settings, most_checked: int) -> None:
    """Refuse a job whose answer would be too large.

    Args:
        job: what a call came to.
        settings: with the limit.
        most_checked: bytes of an answer that can be checked.

    Raises:
        TooLarge: if it is over the server's limit.
        InvalidRequest: if a check of it is asked for, but it is too large for that.
    """
    size, most = job.nbytes, settings.max_response_bytes
    if size > most:
        raise TooLarge(
            f"the answer would have {size} bytes, the limit is {most}; send fewer steps or rows, ask for fewer "
            f"parts, push directions with POST /jvp, or have {variable('max_response_mb')} raised on the server",
            expected=f"at most {most} bytes",
            received=f"{size} bytes",
        )
    size = max(size, job.whole.nbytes if job.whole is not None else 0)
    if job.check is not None and size > most_checked:
        raise InvalidRequest(
            f"expected an answer of up to {most_checked} bytes to check, got one of {size}; ask for less at once",
            path="check",
            expected=f"at most {most_checked} bytes",
            received=f"{size} bytes",
        )


def late(limit: float, settings: Settings) -> DeadlineExceeded:
    """Make the error of a call that took longer than it may, in seconds."""
    own = limit < settings.timeout_s
    remedy = "give a larger timeout_s" if own else f"raise the server's {variable('timeout_s')}"
    return DeadlineExceeded(
        f"the answer was not ready within {limit:g} s; send fewer rows, ask for less at once, or {remedy}",
        expected=f"{limit:g} s",
    )
