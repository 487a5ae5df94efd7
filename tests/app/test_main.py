import subprocess
import sys

from app.main import create_app
from app.settings import Settings


def test_nothing_happens_at_import():
    code = "import sys, app.main, app.faces.native; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_engine_is_warm_before_the_first_request_and_drained_after_the_last(make_shell, fake_engine):
    assert fake_engine.log == []
    with make_shell() as client:
        assert fake_engine.log == ["start"]
        assert client.get("/health/live").json() == {"status": "live"}
        assert client.get("/health/ready").json() == {"status": "ready"}
    assert fake_engine.log == ["start", "close"]


def test_factory_gets_the_settings(fake_engine, fake_operators):
    settings = Settings(port=1234)
    seen = []

    def factory(given):
        seen.append(given)
        return fake_engine

    create_app(settings, engine_factory=factory, operators=fake_operators)
    assert seen == []  # Not before the lifespan.
