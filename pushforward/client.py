"""A blocking client: NumPy in, NumPy out, safetensors on the wire."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import httpx2

from pushforward._catalogue import Catalogue
from pushforward._connection import Connection
from pushforward._layout import Layout
from pushforward._operators import Operators
from pushforward._sources import Sources
from pushforward.chunked import Chunked


class Client(Operators, Catalogue):
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
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Open a client; nothing is sent yet.

        Args:
            url: Where the server is, with a path if it is mounted below one.
            transport: An `httpx2` transport to use instead of the network.
            timeout: Seconds to wait for an answer, or None for ever. A call's own `timeout_s` takes its place.
            api_key: Sent with every request, as `Authorization: Bearer`; if None, the environment variable
                `PUSHFORWARD_API_KEY`, if that is set and `headers` authorizes nobody.
            headers: Sent with every request.

        Raises:
            ValueError: if the key can't be one; the text does not quote it.
        """
        self._connection = Connection(url, transport=transport, timeout=timeout, api_key=api_key, headers=headers)

    def chunked(
        self,
        model: str,
        inputs: Sources,
        *,
        size: int | None = None,
        pieces: int | None = None,
    ) -> Chunked:
        """Take a sequence of any length piece by piece: exact derivatives in the memory of one piece.

        ```python
        long = client.chunked("seed-gru", x, size=500)
        for piece in long.jvp({"x": v}):
            piece.steps, piece.tangents["y"]
        gradient = long.vjp({"y": u}, wrt=["param.gru_1.kernel"]).cotangents
        ```

        The model must work step by step (`stepwise` in its description): its states are what one piece leaves to the
        next. All pieces are computed by the version that is the latest now, or that `model` names.

        Args:
            model: `name`, or `name@version`.
            inputs: The sequence, or by name the sequence, inputs without a time axis and initial states, as for
                `evaluate`; states left out start at their defaults. The sequence, `(batch, time, ...)`, is an array or
                anything with `shape` that can be sliced (a memory map, an HDF5 data set), an iterator over its pieces,
                or a function of a piece's number that returns it.
            size: Steps in a piece of an array; the last may be shorter.
            pieces: How many pieces there are, if a function makes them.

        Raises:
            InvalidRequest: if the model can't be cut in time, or size or pieces are missing or contradict the sequence.
            UnknownModel: if there is no such model.
        """
        layout = Layout.of(self.model(model))
        return Chunked(self.call, layout, inputs, size=size, pieces=pieces)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

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
