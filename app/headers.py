"""A request's headers as the layers around it need them: one or two by name, without an object made of all of them."""

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> str:
    """Return a header's value, "" if it is not there; of several lines what they say together (RFC 9110, 5.3).

    Args:
        scope: of an HTTP request.
        name: in lower case.
    """
    found = [value for key, value in scope["headers"] if key == name]
    return b", ".join(found).decode("latin-1") if found else ""
