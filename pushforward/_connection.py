"""Requests and responses over one `httpx2` client, with every way of failing told as one of our errors."""

import math
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import IO

import httpx2

from pushforward._responses import address, error_of
from pushforward.errors import ConnectionFailed, DeadlineExceeded
from pushforward.wire import Message, codecs

# Anything else would break the header, and the error about that would quote it.
_KEY = re.compile(r"[!-~]+")


class Connection:
    """A server, and how long to wait for it; may be shared by threads."""

    def __init__(
        self,
        url: str,
        *,
        transport: httpx2.BaseTransport | None,
        timeout: float | None,
        api_key: str | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self._codec = codecs()["safetensors"]
        self._timeout = timeout
        sent = httpx2.Headers(headers)
        if api_key is None and "Authorization" not in sent:
            api_key = os.environ.get("PUSHFORWARD_API_KEY") or None
        if api_key is not None:
            sent["Authorization"] = _bearer(api_key)
        self._http = httpx2.Client(base_url=url, transport=transport, headers=sent)

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        message: Message | None = None,
        *,
        content: IO[bytes] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[httpx2.Response, None, None]:
        """Send a request and give its successful response, whose body is still to be read.

        The body is the message, or the contents of a file, which is read as it is sent. The time limit is for each read
        of the answer, not for the whole body.

        Raises:
            DeadlineExceeded: if nothing comes in time.
            ConnectionFailed: if the server can't be reached, or the connection is lost.
            InvalidRequest: if the message can't be written.
            PushforwardError: if the answer is an error.
        """
        # The server keeps to timeout_s itself and says so in its own words: leave it the time to.
        patience = self._timeout if timeout_s is None else timeout_s + 5.0
        if patience == math.inf:  # which a socket does not take
            patience = None
        timeout = httpx2.Timeout(patience, connect=10.0)
        body, sent = content, dict(headers or {})
        if message is not None:
            body = self._codec.encode(message)
            sent |= {"Content-Type": self._codec.media_type, "Accept": self._codec.media_type}
        server = address(self._http.base_url)
        try:
            with self._http.stream(
                method, path, content=body, params=params, headers=sent, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                yield response
        except httpx2.ReadTimeout:
            raise DeadlineExceeded(f"{server} gave no answer within {patience} s; allow more with timeout_s") from None
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionFailed(f"can't reach {server}: {reason}") from error

    def fetch(
        self,
        method: str,
        path: str,
        message: Message | None = None,
        *,
        content: IO[bytes] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send a request and give its successful response as a whole; raises what `stream` does."""
        with self.stream(
            method, path, message, content=content, params=params, timeout_s=timeout_s, headers=headers
        ) as response:
            response.read()
        return response

    def close(self) -> None:
        """Close it."""
        self._http.close()


def _bearer(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(
            "api_key (or PUSHFORWARD_API_KEY): expected printable ASCII without blanks, got "
            f"{'nothing' if not key else 'other characters'}; give the key as it was shown, without line breaks"
        )
    return f"Bearer {key}"
