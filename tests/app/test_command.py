import logging.config
import sys

import pytest

from app import __main__ as command


def test_serves_with_the_factory(monkeypatch):
    seen = {}
    monkeypatch.setattr(command.uvicorn, "run", lambda app, **options: seen.update(options, app=app))
    monkeypatch.setattr(sys, "argv", ["app", "--port", "0", "--host", "0.0.0.0"])
    monkeypatch.setenv("PUSHFORWARD_SHUTDOWN_S", "7")
    command.main()
    assert (seen["host"], seen["port"], seen["workers"], seen["factory"]) == ("0.0.0.0", 0, 1, True)
    assert seen["timeout_graceful_shutdown"] == 7
    assert seen["app"].func is command.create_app
    assert seen["app"].args[0].shutdown_s == 7


def test_command_line_is_checked(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["app", "--port", "x"])
    with pytest.raises(SystemExit):
        command.main()
    assert "--port" in capsys.readouterr().err


def test_log_configuration_is_one():
    assert logging.config.DictConfigurator(command.log_config("info")).configure_filter(
        command.log_config("info")["filters"]["request_id"]
    )
