import pytest

from pushforward.errors import NotAcceptable, UnsupportedMediaType
from pushforward.wire import codecs
from pushforward.wire._negotiate import for_accept, for_content_type


@pytest.mark.parametrize("codec", codecs().values(), ids=codecs())
def test_every_codec_is_found_by_its_media_type(codec):
    assert for_content_type(f"{codec.media_type.upper()}; charset=utf-8") is codec
    assert for_accept(codec.media_type, codecs()["json"]) is codec


def test_no_content_type_is_json():
    assert for_content_type(None) is codecs()["json"]


@pytest.mark.parametrize("header", ["text/plain", "application/x-www-form-urlencoded", "rubbish"])
def test_other_content_types_are_refused(header):
    with pytest.raises(UnsupportedMediaType, match="send Content-Type: application/json or") as caught:
        for_content_type(header)
    assert caught.value.received == header


@pytest.mark.parametrize(
    ("header", "default", "expected"),
    [
        (None, "npz", "npz"),
        ("", "npz", "npz"),
        ("*/*", "npz", "npz"),
        ("application/*", "safetensors", "safetensors"),
        ("text/html, application/json;q=0.5, */*;q=0.1", "npz", "json"),
        ("application/json;q=0, */*", "json", "npz"),
        ("application/json, application/x-npz", "npz", "npz"),
        ("application/json;q=0.1, application/x-npz;q=0.2", "json", "npz"),
        ("application/json;q=high, application/x-npz", "json", "npz"),
    ],
)
def test_accept(header, default, expected):
    assert for_accept(header, codecs()[default]).name == expected


@pytest.mark.parametrize("header", ["text/html", "application/json;q=0"])
def test_nothing_acceptable(header):
    with pytest.raises(NotAcceptable, match="ask for application/json or"):
        for_accept(header, codecs()["json"])
