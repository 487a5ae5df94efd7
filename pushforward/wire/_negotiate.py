"""From the headers `Content-Type` and `Accept` to a codec."""

import functools

from pushforward.errors import NotAcceptable, UnsupportedMediaType
from pushforward.wire import Codec, codecs

# The same few headers come with every request; what is refused is not remembered.
_KEPT = 256


@functools.lru_cache(_KEPT)
def for_content_type(header: str | None) -> Codec:
    """The codec that reads a body of this `Content-Type`; JSON if there is no such header.

    Raises:
        UnsupportedMediaType: if no codec does.
    """
    known = {codec.media_type: codec for codec in codecs().values()}
    media_type = (header or "application/json").partition(";")[0].strip().lower()
    if media_type not in known:
        raise UnsupportedMediaType(
            f"can't read {media_type[:100]}; send Content-Type: {' or '.join(known)}",
            expected=list(known),
            received=media_type[:100],
        )
    return known[media_type]


@functools.lru_cache(_KEPT)
def for_accept(header: str | None, default: Codec) -> Codec:
    """The codec that `Accept` prefers; `default` where it has no opinion.

    Raises:
        NotAcceptable: if no codec writes what is acceptable.
    """
    if not header or not header.strip():
        return default
    ranges = [_media_range(part) for part in header.split(",")]
    candidates = [default, *(codec for codec in codecs().values() if codec is not default)]
    best = max(candidates, key=lambda codec: _quality(codec.media_type, ranges))  # the first of equals
    if _quality(best.media_type, ranges) <= 0:
        known = [codec.media_type for codec in codecs().values()]
        raise NotAcceptable(
            f"can't write {header[:100]}; ask for {' or '.join(known)}", expected=known, received=header[:100]
        )
    return best


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return name, float(parameter[2:])
            except ValueError:
                return name, 0.0
    return name, 1.0


def _quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    for pattern in (media_type, media_type.partition("/")[0] + "/*", "*/*"):  # the most specific range decides
        for name, quality in ranges:
            if name == pattern:
                return quality
    return 0.0
