"""Builds the image without an engine, by buildah on a base image that debootstrap makes, and measures it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

BASE, IMAGE = "localhost/pushforward-base", "localhost/pushforward"

# What takes the space, below the root.
PARTS = {
    "TensorFlow": "opt/pushforward/lib/python3.*/site-packages/tensorflow",
    "CUDA": "opt/pushforward/lib/python3.*/site-packages/nvidia",
    "other packages": "opt/pushforward/lib/python3.*/site-packages/*",
    "Pushforward": "srv",
    "Debian with Python": ".",
}


def run(*command: str | Path, quiet: bool = True) -> str:
    """Run a command; return what it writes to stdout.

    Raises:
        CalledProcessError: if it fails.
    """
    done = subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE if quiet else None)
    return (done.stdout or "").strip()


def make_base(directory: Path, suite: str) -> None:
    """Make the base image from packages, without what Debian's slim images leave out."""
    root = directory / "base"
    run("debootstrap", "--variant=minbase", suite, root)
    for pattern in (
        "var/cache/apt/archives/*.deb",
        "var/lib/apt/lists/*",
        "usr/share/doc/*",
        "usr/share/man/*",
        "usr/share/locale/*",
    ):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    container = run("buildah", "from", "scratch")
    run("buildah", "add", "--quiet", container, root, "/")
    run("buildah", "commit", "--quiet", "--rm", container, BASE)


def volumes_for_pip() -> list[str]:
    """Name what pip needs here to reach its index, its configuration and what that names, as volumes of a build."""
    pip = [sys.executable, "-m", "pip", "config"]
    files = re.findall(r"^\s+(/\S+), exists: True", run(*pip, "debug"), re.MULTILINE)
    named = re.findall(r"(?<![\w/])(?:file://)?(/[^\s'\"]+)", run(*pip, "list"))
    parents = {re.sub(r"/simple/?$", "", path) for path in named}
    return [f"--volume={path}:{path}:ro" for path in sorted({*files, *parents}) if Path(path).exists()]


def build(checkout: Path, device: str, revision: str) -> None:
    """Build the image; only pip's stage sees this machine's configuration, and nothing of it is left."""
    options = ["--layers", "--network=host", "--isolation=chroot", "--format=docker"]
    options += [f"--build-arg=BASE={BASE}", f"--build-arg=DEVICE={device}", f"--build-arg=REVISION={revision}"]
    for target in (["--target=tools"], ["--target=environment", *volumes_for_pip()], [f"--tag={IMAGE}:{device}"]):
        run("buildah", "build", *options, *target, checkout, quiet=False)


def composition(root: Path) -> dict[str, float]:
    """Measure the parts of the image in MB (10^6 bytes): files are counted once, for the first part they belong to."""
    sizes: dict[str, float] = {}
    for part, pattern in PARTS.items():
        paths = sorted(root.glob(pattern)) if pattern != "." else [root]
        # du counts what it has seen already in the same call no more.
        total = int(run("du", "-sbcx", *paths).split()[-2]) / 1e6 if paths else 0.0
        sizes[part] = total
    sizes["other packages"] -= sizes["TensorFlow"] + sizes["CUDA"]
    sizes["Debian with Python"] -= sum(size for part, size in sizes.items() if part != "Debian with Python")
    return sizes
