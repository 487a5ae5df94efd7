import pytest
from pydantic import ValidationError

from app.settings import Settings, table, variable


def test_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_PORT", "9000")
    monkeypatch.setenv("PUSHFORWARD_MODELS", "seed-gru, bi-gru")
    settings = Settings()
    assert settings.port == 9000
    assert settings.models == ("seed-gru", "bi-gru")


def test_an_empty_selection_of_models_means_all(monkeypatch):
    monkeypatch.setenv("PUSHFORWARD_MODELS", "")
    assert Settings().models is None


def test_are_frozen_and_know_no_other_name():
    with pytest.raises(ValidationError):
        Settings().port = 1
    with pytest.raises(ValidationError):
        Settings(prot=1)


@pytest.mark.parametrize("bad", [{"port": 70000}, {"max_body_mb": 0}, {"timeout_s": -1}, {"log_level": "loud"}])
def test_refuse_what_makes_no_sense(bad):
    with pytest.raises(ValidationError):
        Settings(**bad)


def test_every_field_is_described_and_in_the_table():
    text = table()
    for name, field in Settings.model_fields.items():
        assert field.description
        assert field.description.endswith(".") or ":" in field.description
        assert f"`{variable(name)}`" in text


def test_limits_in_bytes():
    settings = Settings(max_body_mb=1.5, max_response_mb=2, max_json_mb=0.25, max_stream_mb=50_000)
    assert (settings.max_body_bytes, settings.max_response_bytes) == (1_500_000, 2_000_000)
    assert (settings.max_json_bytes, settings.max_stream_bytes) == (250_000, 50_000_000_000)
