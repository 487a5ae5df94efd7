"""The one error tree, raised by the server, carried as a problem document, and raised again by the client.

PushforwardError
├── MalformedBody
├── UnsupportedMediaType
├── NotAcceptable
├── TooLarge
├── TooSlow
├── UnknownModel
├── NotFound
├── AlreadyRegistered
├── ReservedName
├── Unauthorized
├── Forbidden
├── InvalidRequest
│   ├── InvalidArray
│   ├── UnknownName
│   ├── NotDifferentiable
│   └── InvalidSlice
├── UnsafeModel
├── Overloaded
├── Draining
├── DeadlineExceeded
├── InternalError
└── ConnectionFailed
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class PushforwardError(Exception):
    """Anything that went wrong in Pushforward.

    Catch this to catch every error of the service and of the client; catch a subclass to react to one kind. The
    subclass is chosen by the last part of the problem document's `type`, never by the text of `detail`.

    Attributes:
        slug: The kind of error, as in the problem's `type`.
        title: The kind of error in words: the first line of the class's documentation.
        detail: What was expected, what came and what to change, in a sentence, without the path.
        path: The part of the request at fault, such as `inputs.x`.
        expected: What would have been right, where that can be said in short.
        received: What came instead; never the numbers of an array.
        request_id: The server's name for the request, for its logs.
        retry_after_s: After how many seconds the same request may succeed, if waiting can help.
    """

    slug: ClassVar[str] = "error"
    title: ClassVar[str] = "Error"

    def __init_subclass__(cls) -> None:
        """Take the title from the documentation's first line."""
        super().__init_subclass__()
        cls.title = (cls.__doc__ or cls.slug).partition("\n")[0].rstrip(".")

    def __init__(
        self,
        detail: str,
        *,
        path: str | None = None,
        expected: Any = None,
        received: Any = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Describe what went wrong; the arguments become the attributes."""
        super().__init__(detail)
        self.detail = detail
        self.path = path
        self.expected = expected
        self.received = received
        self.request_id = request_id
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        """The path, then the detail."""
        return f"{self.path}: {self.detail}" if self.path else self.detail

    def to_problem(self) -> dict[str, Any]:
        """The members of an RFC 9457 problem document, except `status`, which is a matter of HTTP.

        `detail` begins with the path, so that it can be read alone.
        """
        extension = {name: getattr(self, name) for name in _EXTENSION if getattr(self, name) is not None}
        return {"type": f"/problems/{self.slug}", "title": self.title, "detail": str(self), **extension}


class MalformedBody(PushforwardError):
    """The body can't be parsed.

    Bad JSON, JSON nested too deeply, a truncated binary or gzip body, a header that disagrees with the data behind it,
    a pickled object in an npz archive. Nothing was computed. `detail` says where parsing stopped; check how the body
    was written and that it arrived whole. In JSON, NaN and infinity are the strings "NaN", "Infinity" and "-Infinity".
    """

    slug = "malformed-body"


class UnsupportedMediaType(PushforwardError):
    """The request's `Content-Type` or `Content-Encoding` is not one the server reads.

    Send one of those listed in `expected`. Beware that `curl -d` declares a form unless told otherwise with
    `-H 'Content-Type: application/json'`.
    """

    slug = "unsupported-media-type"


class NotAcceptable(PushforwardError):
    """The request's `Accept` names no media type the server writes.

    Ask for one of the media types listed in `expected`, or leave the header out to be answered in the format of the
    request.
    """

    slug = "not-acceptable"


class TooLarge(PushforwardError):
    """The request, or the response it asks for, is over the server's limit.

    `detail` gives the size and the limit. Send fewer rows at a time, or ask for a product (JVP, VJP) or a slice instead
    of a whole Jacobian.
    """

    slug = "too-large"


class TooSlow(PushforwardError):
    """The request's body did not arrive in time.

    Nothing was computed, and the connection is closed. Send the request again over a better connection, with fewer rows
    at a time, in a binary format, or with `Content-Encoding: gzip`.
    """

    slug = "too-slow"


class UnknownModel(PushforwardError):
    """No model of that name, or no such version of it, is registered.

    `GET /models` lists the names; write `name@version` for one version and `name` for the latest.
    """

    slug = "unknown-model"


class NotFound(PushforwardError):
    """There is nothing at this address.

    `GET /openapi.json` lists the routes. Operators are reached with `POST`.
    """

    slug = "not-found"


class AlreadyRegistered(PushforwardError):
    """A model of that name is registered, and the request said not to add to it.

    Choose another name, or leave out `If-None-Match: *` to register a further version.
    """

    slug = "already-registered"


class ReservedName(PushforwardError):
    """The name belongs to a built-in model, which can't be replaced or removed.

    Choose another name. Whoever runs the server can leave built-in models out with `PUSHFORWARD_MODELS`.
    """

    slug = "reserved-name"


class Unauthorized(PushforwardError):
    """The request carries no key, or one the server does not know.

    Send one as `Authorization: Bearer KEY`, or give it to the client: `Client(url, api_key=KEY)`. Keys are made by
    whoever runs the server.
    """

    slug = "unauthorized"


class Forbidden(PushforwardError):
    """The key is known but does not grant this right.

    Use a key of the role in `expected`, or ask whoever runs the server for one.
    """

    slug = "forbidden"


class InvalidRequest(PushforwardError):
    """The body could be parsed, but does not describe a possible request.

    A required field is missing, an option has a value it can't take, or fields contradict each other. `path` names the
    field.
    """

    slug = "invalid-request"


class InvalidArray(InvalidRequest):
    """An array does not fit.

    Its rank, shape or dtype differs from the model's signature or from its counterpart, its nested lists are ragged, it
    holds something other than numbers, or its base64 text does not have the length that its shape and dtype say. `path`
    names the array; `GET /models/{name}` gives the shapes, with `null` for a free axis.
    """

    slug = "invalid-array"


class UnknownName(InvalidRequest):
    """The request names an input, output, state, hidden sequence, parameter or option that does not exist here.

    `expected` lists the names that do; `GET /models/{name}` describes them.
    """

    slug = "unknown-name"


class NotDifferentiable(InvalidRequest):
    """A derivative was asked for where none exists, as with respect to an integer input.

    Leave the name out of `tangents`, `cotangents` or `wrt`; `GET /models/{name}` says what is differentiable.
    """

    slug = "not-differentiable"


class InvalidSlice(InvalidRequest):
    """A slice such as `y[-1, :]` can't be read, or lies outside its array.

    A slice is an array's name with NumPy basic indexing (integers, `start:stop:step`, `:`) over its axes without the
    batch axis:

    - `y`: all of it.
    - `y[-1, :]`: the last step. An integer drops its axis; negative ones count from the end.
    - `x[10:20, 0]`: steps 10 to 19 of the first feature. A slice keeps its axis, even for a single index.
    - `hidden.gru_1.forward.h[::2]`: every other step. Axes at the end may be left out.
    - `param.dense.kernel[:, ::-1]`: its columns backwards. Parameters have no batch axis to begin with.

    Integers are an optional sign and at most 19 digits; blanks between them don't matter. There is no `...`, no `None`,
    no list, no mask, and a slice must select something. `detail` gives the position at fault, counted from 0, and an
    example of the same array.
    """

    slug = "invalid-slice"


class UnsafeModel(PushforwardError):
    """The model can't be served.

    It holds something that could run code or read files, is larger than the server's limits, or contains a layer that
    can't be differentiated forwards and has no safe replacement. `detail` names the layer and says what to change.
    """

    slug = "unsafe-model"


class Overloaded(PushforwardError):
    """The queue is full; the request was not accepted and nothing was computed.

    Send it again after `retry_after_s` seconds (the `Retry-After` header), with some jitter.
    """

    slug = "overloaded"


class Draining(PushforwardError):
    """The server is shutting down; it finishes what it has accepted and takes nothing new.

    Send the request again after `retry_after_s` seconds; another instance will answer.
    """

    slug = "draining"


class DeadlineExceeded(PushforwardError):
    """The answer was not ready within the request's `timeout_s`, the server's own deadline or the client's timeout.

    The first request of a new shape may include a compilation: allow for it, ask for less at a time, or raise the
    limit.
    """

    slug = "deadline-exceeded"


class InternalError(PushforwardError):
    """The server failed, and it is not the request's fault.

    Report `request_id` to whoever runs the server: its log holds the rest.
    """

    slug = "internal-error"


class ConnectionFailed(PushforwardError):
    """The client could not reach the server, or lost it before the answer was complete.

    Raised by the client only. Check the URL, and that the server is up (`GET /health/ready`).
    """

    slug = "connection-failed"


_EXTENSION = ("path", "expected", "received", "request_id", "retry_after_s")


def _tree(root: type[PushforwardError]) -> Iterator[type[PushforwardError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


by_slug: dict[str, type[PushforwardError]] = {error.slug: error for error in _tree(PushforwardError)}


def from_problem(problem: Mapping[str, Any]) -> PushforwardError:
    """Rebuild the error that a problem document describes; the inverse of `to_problem`.

    A `type` that this version does not know becomes a plain `PushforwardError`, which keeps the text.
    """
    known = by_slug.get(str(problem.get("type", "")).rpartition("/")[2], PushforwardError)
    extension = {name: problem[name] for name in _EXTENSION if problem.get(name) is not None}
    detail = str(problem.get("detail") or problem.get("title") or known.title)
    return known(detail.removeprefix(f"{extension.get('path')}: "), **extension)
