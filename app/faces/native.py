"""Our own protocol: one route per operator, in any format there is a codec for."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, FastAPI, Request, Response

from app.faces import _catalogue, _registration
from app.faces._face import Engine, Face, Operator
from app.faces._openapi import document, operation
from app.faces._stream import Stream, check_streamed, gather
from app.faces._translate import to_call, to_message
from app.faces._work import Offload, while_connected
from app.headers import header
from app.problems import responses
from app.settings import Settings, variable
from pushforward import errors
from pushforward.wire import Codec, Message, codecs, safetensors
from pushforward.wire._negotiate import for_accept, for_content_type

_PROBLEMS = responses(
    errors.MalformedBody,
    errors.UnknownModel,
    errors.NotAcceptable,
    errors.TooSlow,
    errors.TooLarge,
    errors.UnsupportedMediaType,
    errors.InvalidRequest,
    errors.InvalidArray,
    errors.UnknownName,
    errors.NotDifferentiable,
    errors.InternalError,
    errors.Overloaded,
    errors.Draining,
    errors.DeadlineExceeded,
)


def _endpoint(operator: Operator, offload: Offload, settings: Settings) -> Callable[..., Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        state = request.scope["state"]
        engine: Engine = state["engine"]
        state["operator"] = operator.name  # This and the model are for the log.
        engine.admit()
        reader = for_content_type(header(request.scope, b"content-type"))
        writer = for_accept(header(request.scope, b"accept"), default=reader)
        pieces = [piece async for piece in request.stream()]
        decode = partial(_decode, reader, pieces, settings.max_body_bytes)
        message = await offload(sum(map(len, pieces)), decode)
        call = to_call(operator, message)
        state["model"] = call.model
        answer = await while_connected(request, engine(call))
        reply = to_message(answer, message)
        size = sum(array.nbytes for array in reply.arrays.values())
        if (streamed := answer.streamed) is not None:
            if writer is safetensors.CODEC:
                return Stream(reply, streamed, settings)
            size += streamed.nbytes
            async with aclosing(streamed.blocks):
                check_streamed(streamed, writer, settings)
                _check_size(size, settings)
                reply.arrays[streamed.field] = await gather(request, streamed, offload)
        _check_size(size, settings)
        raw = writer.name == "safetensors" or reply.envelope.get("encoding") == "base64"
        content = await offload(size, partial(_encode, writer, reply), raw=raw)
        _check_size(len(content), settings)
        return Response(content, media_type=writer.media_type, headers={"Vary": "Accept"})

    return endpoint


def _decode(reader: Codec, pieces: list[bytes], max_bytes: int) -> Message:
    # Joined here and not in the event loop, where that takes long enough to be noticed.
    body = b"".join(pieces)
    pieces.clear()
    return reader.decode(body, max_bytes=max_bytes)


def _encode(writer: Codec, reply: Message) -> bytes:
    try:
        return writer.encode(reply)
    except errors.PushforwardError as error:
        # The codec blames whoever made the message, and this one is ours.
        raise errors.InternalError(f"the answer can't be written as {writer.name}") from error


def _check_size(size: int, settings: Settings) -> None:
    if size > settings.max_response_bytes:
        raise errors.TooLarge(
            f"the answer has {size} bytes, the limit is {settings.max_response_bytes}; select fewer outputs, send "
            f"fewer rows or directions, ask for a slice, or have {variable('max_response_mb')} raised on the server",
            expected=f"at most {settings.max_response_bytes} bytes",
            received=f"{size} bytes",
        )


def mount(app: FastAPI, settings: Settings, operators: Mapping[str, Operator]) -> None:
    """Add the routes of the operators, of the models and of the probes."""
    offload = Offload()
    routes = APIRouter(tags=["operators"], responses=_PROBLEMS)
    for operator in operators.values():
        endpoint = _endpoint(operator, offload, settings)
        app.state.direct[f"/{operator.name}"] = endpoint
        routes.add_api_route(
            f"/{operator.name}",
            endpoint,
            methods=["POST"],
            operation_id=operator.name,
            summary=operator.summary,
            description=operator.description,
            response_class=Response,
            openapi_extra=operation(operator, codecs().values()),
        )
    app.include_router(routes)
    app.include_router(_catalogue.router())
    app.include_router(_registration.router(settings))
    app.openapi = partial(document, app.openapi, app, operators)


FACE = Face("native", mount, open_paths=("/health/live", "/health/ready"))
