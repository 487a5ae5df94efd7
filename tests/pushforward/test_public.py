import subprocess
import sys
from types import ModuleType

import pushforward


def test_the_public_list_is_what_is_there():
    public = {
        name
        for name, value in vars(pushforward).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert sorted(pushforward.__all__) == sorted(public | {"__version__"})


def test_importing_it_brings_neither_server_nor_tensorflow():
    heavy = {"tensorflow", "keras", "fastapi", "starlette", "app", "models", "safetensors"}
    code = "import sys; from pushforward import Client; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=sys.path[0] or None
    )
    assert not heavy & set(run.stdout.split())
