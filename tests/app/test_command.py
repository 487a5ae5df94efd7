import logging
import sys
from pathlib import Path

import pytest

from app import __main__ as command


@pytest.fixture
def served(monkeypatch):
    """What the command gives to uvicorn; the tests' own log stays as it is."""
    seen = {}
    monkeypatch.setattr(command.Server, "run", lambda self: seen.update(vars(self.config), server=self))
    monkeypatch.setattr(command.signal, "signal", lambda sig, handler: seen.update(handler=handler))
    monkeypatch.setattr(command.logging.config, "dictConfig", lambda config: seen.update(config=config))
    for name in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks", "_srcfile"):
        monkeypatch.setattr(logging, name, getattr(logging, name, True), raising=False)
    return seen


def test_serves_as_the_settings_say(monkeypatch, served):
    monkeypatch.setattr(sys, "argv", ["app", "--port", "0", "--host", "0.0.0.0"])
    monkeypatch.setenv("PUSHFORWARD_SHUTDOWN_S", "7")
    monkeypatch.setenv("PUSHFORWARD_LOG_FORMAT", "json")
    monkeypatch.setenv("PUSHFORWARD_DRAIN_S", "3")
    command.main()
    assert (served["host"], served["port"], served["workers"]) == ("0.0.0.0", 0, 1)
    assert served["timeout_graceful_shutdown"] == 7
    assert served["app"].title == "Pushforward"
    assert served["server"]._drain_s == 3
    with pytest.raises(SystemExit) as end:
        served["handler"](15, None)
    assert end.value.code == 0
    assert (served["log_config"], served["access_log"]) == (None, False)
    assert served["config"]["handlers"]["stderr"]["formatter"] == "json"


def test_command_line_is_checked(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["app", "--port", "x"])
    with pytest.raises(SystemExit):
        command.main()
    assert "--port" in capsys.readouterr().err


def test_listens_on_loopback_unless_told_otherwise(monkeypatch, served, caplog):
    monkeypatch.setattr(sys, "argv", ["app"])
    with caplog.at_level(logging.INFO, "app"):
        command.main()
    assert served["host"] == "127.0.0.1"
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "PUSHFORWARD_API_KEYS_FILE is not set" in record.message
    assert "loopback only" in record.message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_without_keys_is_told(caplog, host):
    with caplog.at_level(logging.INFO, "app"):
        command.log_access(host, None)
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "gpu-1"])
def test_a_public_address_without_keys_is_warned_of(caplog, host):
    with caplog.at_level(logging.INFO, "app"):
        command.log_access(host, None)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "PUSHFORWARD_API_KEYS_FILE" in record.message


def test_with_keys_it_says_where_they_are(caplog):
    with caplog.at_level(logging.INFO, "app"):
        command.log_access("0.0.0.0", Path("keys.txt"))
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "keys.txt" in record.message
