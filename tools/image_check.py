"""`make image-check`: build the image without an engine and try what it promises, by buildah, debootstrap and unshare.

As root. Debian's packages make the base image, so nothing has to be pulled. The image is run twice on one volume:
by buildah, which registers a model, and as process 1 on a read-only root, where it is found again.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.image_build import BASE, IMAGE, build, composition, make_base, run

ROOT = Path(__file__).parent.parent
# Given as text, so that it imports the server's packages from where the server does.
PROBE = Path(__file__).with_name("image_probe.py")
USER = 10001
TOOLS = ("buildah", "debootstrap", "git", "unshare")


@dataclass(frozen=True)
class Container:
    """A container of the image.

    Attributes:
        name: buildah's.
        root: where its file system is mounted.
        config: of the image.
        port: that it listens on.
        state: a directory with its volume `models` and its file of `keys`.
    """

    name: str
    root: Path
    config: Mapping[str, Any]
    port: int
    state: Path

    @property
    def volumes(self) -> dict[str, str]:
        """What is mounted, by place."""
        return {"/models": "models", "/run/secrets/keys": "keys"}

    @property
    def settings(self) -> list[str]:
        """Of the server."""
        return [f"PUSHFORWARD_PORT={self.port}", "PUSHFORWARD_API_KEYS_FILE=/run/secrets/keys"]

    def buildah(self, *command: str) -> list[str]:
        """Make the command line that runs a command in it, by buildah."""
        volumes = [f"--volume={self.state / source}:{place}" for place, source in self.volumes.items()]
        environment = [f"--env={setting}" for setting in self.settings]
        return [
            "buildah",
            "run",
            "--isolation=chroot",
            "--network=host",
            *volumes,
            *environment,
            self.name,
            "--",
            *command,
        ]

    def strict(self, *command: str) -> list[str]:
        """Make the command line that runs a command as process 1, on a read-only root with /tmp in memory."""
        mounts = [f"mount --bind {self.root} {self.root}", f"mount -o remount,bind,ro {self.root}"]
        mounts += [
            f"mount -t {kind} {kind} {self.root}/{place}" for kind, place in (("proc", "proc"), ("tmpfs", "tmp"))
        ]
        mounts += [f"mount --rbind /dev {self.root}/dev"]
        mounts += [f"mount --bind {self.state / source} {self.root}{place}" for place, source in self.volumes.items()]
        environment = ["env", "-i", "-C", self.config["WorkingDir"], *self.config["Env"], *self.settings]
        start = ["exec", "chroot", f"--userspec={self.config['User']}", str(self.root), *environment, *command]
        script = " && ".join([*mounts, shlex.join(start)])
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", script]

    def inside(self, *command: str) -> str:
        """Run a command beside the server; return what it writes."""
        return run(*self.buildah(*command))


@contextmanager
def container(device: str, state: Path) -> Generator[Container]:
    """Make a container of the image, and remove it."""
    name = run("buildah", "from", f"{IMAGE}:{device}")
    try:
        # Else some of buildah's releases mount volumes of their own above those that they are given.
        run("buildah", "config", "--volume=/models-", "--volume=/cache-", name)
        config = json.loads(run("buildah", "inspect", "--type=image", f"{IMAGE}:{device}"))["Docker"]["config"]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        yield Container(name, Path(run("buildah", "mount", name)), config, port, state)
    finally:
        run("buildah", "rm", name)


def descendants(pid: int) -> list[int]:
    """List a process and those below it, the lowest last."""
    # By thread, since each has children of its own.
    below = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [pid, *(found for child in below for found in descendants(int(child)))]


@contextmanager
def serving(box: Container, command: Sequence[str]) -> Generator[int]:
    """Start the server, wait for the image's own health check, and end it by SIGTERM, which must give exit code 0."""
    process = subprocess.Popen(command)
    try:
        check = box.buildah(*box.config["Healthcheck"]["Test"][1:])
        began = time.monotonic()
        while subprocess.run(check, capture_output=True, check=False).returncode:
            if process.poll() is not None or time.monotonic() - began > 300:
                raise RuntimeError("the server did not become healthy; its log is above")
            time.sleep(0.5)
        print(f"healthy after {time.monotonic() - began:.0f} s")
        server = descendants(process.pid)[-1]
        yield server
        os.kill(server, signal.SIGTERM)
        if code := process.wait(90):
            raise RuntimeError(f"SIGTERM: expected the exit code 0, got {code}")
        print("SIGTERM: exit code 0")
    finally:
        if process.poll() is None:
            os.kill(descendants(process.pid)[-1], signal.SIGKILL)
            process.wait()


def status(pid: int, field: str) -> list[str]:
    """Read a field of a process's status."""
    found = re.search(rf"^{field}:\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/{pid}/status has no {field}")
    return found[1].split()


def expect(what: str, found: object, wanted: object) -> None:
    """Print what was found; raise RuntimeError unless it is what was wanted."""
    if found != wanted:
        raise RuntimeError(f"{what}: expected {wanted}, got {found}")
    print(f"{what}: {found}")


def check(box: Container) -> None:
    """Run the image twice; raise RuntimeError or CalledProcessError if it does not keep a promise."""
    key = subprocess.run(
        box.buildah("python", "-m", "app.keys", "check", "--role", "admin"), check=True, text=True, capture_output=True
    )
    (box.state / "keys").write_text(key.stdout)
    ask = ["python", "-c", PROBE.read_text()], (f"http://127.0.0.1:{box.port}", key.stderr.split()[-1])
    command = box.config["Cmd"]

    print("\nfirst run, by buildah")
    with serving(box, box.buildah(*command)) as server:
        expect("users of the server", set(status(server, "Uid")), {str(USER)})
        box.inside(*ask[0], "register", *ask[1])
        before = box.inside(*ask[0], "ask", *ask[1])
        print("JVP of seed-gru and of the model registered now: central differences agree")

    print("\nsecond run, as process 1 on a read-only root, with the same volume")
    with serving(box, box.strict(*command)) as server:
        expect("users of the server", set(status(server, "Uid")), {str(USER)})
        expect("capabilities", set(status(server, "CapEff")), {"0" * 16})
        expect("its number in the container", status(server, "NSpid")[-1], "1")
        mounts = Path(f"/proc/{server}/mounts").read_text().splitlines()
        root = next(fields for fields in map(str.split, mounts) if fields[1] == "/")
        expect("root is read-only", "ro" in root[3].split(","), True)
        after = box.inside(*ask[0], "ask", *ask[1])
        expect("the same JVPs, to the bit, also of the model registered before", after == before, True)


def main() -> int:
    """Build, measure and check the image; the exit status is 0 if it keeps its promises."""
    parser = argparse.ArgumentParser(prog="python -m tools.image_check", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which image (default: %(default)s)")
    parser.add_argument(
        "--suite", default="trixie", help="Debian's release, as in the Dockerfile (default: %(default)s)"
    )
    arguments = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"this needs root and {', '.join(TOOLS)}; missing: {', '.join(missing) or 'root'}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pushforward-image-")))
        directory.chmod(0o755)
        checkout, state = directory / "checkout", directory / "state"
        run("git", "clone", "--quiet", "--no-local", "--depth=1", f"file://{ROOT}", checkout)
        if not run("buildah", "images", "--quiet", "--filter", f"reference={BASE}"):
            make_base(directory, arguments.suite)
        build(checkout, arguments.device, run("git", "-C", checkout, "rev-parse", "HEAD"))
        (state / "models").mkdir(parents=True)
        os.chown(state / "models", USER, USER)
        (state / "keys").touch()
        box = stack.enter_context(container(arguments.device, state))
        sizes = composition(box.root)
        print(
            f"\n{IMAGE}:{arguments.device}, {sum(sizes.values()):.0f} MB:",
            *(f"  {s:7.1f}  {p}" for p, s in sizes.items()),
            sep="\n",
        )
        check(box)
    print("\nthe image keeps its promises")
    return 0


if __name__ == "__main__":
    sys.exit(main())
