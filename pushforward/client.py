"""A blocking client: NumPy in, NumPy out, safetensors on the wire."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx2
import numpy.typing as npt

from pushforward._responses import address, error_of, read_json
from pushforward._results import JVP, VJP, Answer, Evaluation
from pushforward.errors import ConnectionFailed, DeadlineExceeded, PushforwardError
from pushforward.wire import Message, codecs
from pushforward.wire._arrays import Array, portable
from pushforward.wire._negotiate import for_content_type

Arrays = npt.ArrayLike | Mapping[str, npt.ArrayLike]
"""Named arrays, or one array that goes by its field's usual name: `x` for inputs and tangents, `y` for cotangents."""

_USUAL_NAME = {"inputs": "x", "tangents": "x", "cotangents": "y"}
_NO_LIMIT = 2**63


class Client:
    """A connection to a Pushforward server.

    ```python
    with Client("http://localhost:8000") as client:
        answer = client.jvp("seed-gru", inputs=x, tangents=v)
        answer.outputs["y"], answer.tangents["y"]
    ```

    A client may be shared by threads. Every method raises a subclass of `pushforward.PushforwardError`, see
    `pushforward.errors`.
    """

    def __init__(
        self,
        url: str,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout: float | None = 300.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Open a client; nothing is sent yet.

        Args:
            url: Where the server is, with a path if it is mounted below one.
            transport: An `httpx2` transport to use instead of the network.
            timeout: Seconds to wait for an answer, or None for ever. A call's own `timeout_s` takes its place.
            headers: Sent with every request, such as a key.
        """
        self._codec = codecs()["safetensors"]
        self._timeout = timeout
        self._http = httpx2.Client(base_url=url, transport=transport, headers=headers)

    def models(self) -> list[dict[str, Any]]:
        """List the registered models."""
        return read_json(self._send("GET", "models"))

    def model(self, name: str) -> dict[str, Any]:
        """Describe a model: its inputs, states, parameters and outputs, strategies and version."""
        return read_json(self._send("GET", f"models/{quote(name, safe='@')}"))

    def evaluate(
        self,
        model: str,
        inputs: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        **options: object,
    ) -> Evaluation:
        """Compute a model's outputs.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            outputs: Output-side names (`y`, `state.*`, `hidden.*`) to compute; the model's own outputs if None.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, as the HTTP contract names them.
        """
        answer = self.call("evaluate", model, {"inputs": inputs}, outputs=outputs, timeout_s=timeout_s, **options)
        return Evaluation(answer.named("outputs"), answer.info, answer.model, answer.version)

    def jvp(
        self,
        model: str,
        inputs: Arrays,
        tangents: Arrays,
        *,
        outputs: Sequence[str] | None = None,
        strategy: str = "auto",
        timeout_s: float | None = None,
        **options: object,
    ) -> JVP:
        """Compute a model's outputs and their tangents (pushforward): Jacobian times `tangents`.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            tangents: A direction for any subset of input-side names, parameters included; missing means zero. An extra
                leading axis holds several directions.
            outputs: Output-side names to compute; the model's own outputs if None.
            strategy: `auto`, `scan`, `unrolled` or `reverse`; all give the same numbers.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, such as `check=True`.
        """
        arrays = {"inputs": inputs, "tangents": tangents}
        answer = self.call("jvp", model, arrays, outputs=outputs, strategy=strategy, timeout_s=timeout_s, **options)
        return JVP(answer.named("outputs"), answer.named("tangents"), answer.info, answer.model, answer.version)

    def vjp(
        self,
        model: str,
        inputs: Arrays,
        cotangents: Arrays,
        *,
        wrt: Sequence[str] | None = None,
        strategy: str = "auto",
        timeout_s: float | None = None,
        **options: object,
    ) -> VJP:
        """Compute a model's outputs and the cotangents of its inputs (pullback): `cotangents` times Jacobian.

        Args:
            model: `name`, or `name@version`.
            inputs: Input-side arrays by name; states left out start at their defaults.
            cotangents: A weight for any subset of output-side names; missing means zero. An extra leading axis holds
                several.
            wrt: Input-side names (`x`, `state.*`, `param.*`, `hidden.*`) whose cotangents to compute; the server's
                choice if None.
            strategy: `auto`, `scan` or `unrolled`; all give the same numbers.
            timeout_s: Give up after this many seconds.
            **options: Further request fields, such as `check=True`.
        """
        arrays = {"inputs": inputs, "cotangents": cotangents}
        answer = self.call("vjp", model, arrays, wrt=wrt, strategy=strategy, timeout_s=timeout_s, **options)
        return VJP(answer.named("outputs"), answer.named("cotangents"), answer.info, answer.model, answer.version)

    def call(
        self,
        operator: str,
        model: str,
        arrays: Mapping[str, Arrays],
        *,
        timeout_s: float | None = None,
        **options: object,
    ) -> Answer:
        """Call any operator of the server, including one this version of the client has no method for.

        Args:
            operator: The operator's name, which is its route.
            model: `name`, or `name@version`.
            arrays: Array fields of the request, such as `{"inputs": {"x": x}}`.
            timeout_s: Give up after this many seconds.
            **options: The other fields of the request; one that is None is left out.
        """
        fields = {"model": model, "timeout_s": timeout_s, **options}
        envelope = {name: value for name, value in fields.items() if value is not None}
        body = self._codec.encode(Message(envelope, _paths(arrays)))
        media_type = self._codec.media_type
        headers = {"Content-Type": media_type, "Accept": media_type}
        response = self._send("POST", quote(operator), content=body, headers=headers, timeout_s=timeout_s)
        content_type = response.headers.get("Content-Type", "")
        try:
            return Answer.of(for_content_type(content_type).decode(response.content, max_bytes=_NO_LIMIT))
        except PushforwardError as error:
            raise PushforwardError(f"the server's {content_type or 'untyped'} answer can't be read: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client, to be closed at the end of the `with` block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Close the connections."""
        self.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx2.Response:
        # The server keeps to timeout_s itself and says so in its own words: leave it the time to.
        patience = self._timeout if timeout_s is None else timeout_s + 5.0
        timeout = httpx2.Timeout(patience, connect=10.0)
        try:
            response = self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        except httpx2.ReadTimeout:
            server = address(self._http.base_url)
            raise DeadlineExceeded(f"{server} gave no answer within {patience} s; allow more with timeout_s") from None
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"can't reach {address(self._http.base_url)}: {reason}") from error
        if not response.is_success:
            raise error_of(response)
        return response


def _paths(arrays: Mapping[str, Arrays]) -> dict[str, Array]:
    """Flatten fields of named arrays to `<field>.<name>`."""
    paths: dict[str, npt.ArrayLike] = {}
    for field, value in arrays.items():
        if isinstance(value, Mapping):
            paths.update({f"{field}.{name}": array for name, array in value.items()})
        else:
            name = _USUAL_NAME.get(field)
            paths[f"{field}.{name}" if name else field] = value
    return {path: portable(array, path) for path, array in paths.items()}
