"""
Build the wheel as [tool.cibuildwheel] says, with this machine's Python, compiler and glibc.

cibuildwheel itself runs in the manylinux images, which need a container engine. Here the build uses
the packages of .venv, at the versions of constraints.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]


def build_wheel(folder: Path) -> Path:
    """
    Build a wheel, repair it, and put it into a folder.

    It is built from the sdist: the checkout's build/ may hold objects of other switches.

    Returns:
        The repaired wheel; its name says the oldest glibc that it runs with.
    """
    with tempfile.TemporaryDirectory() as name:
        raw, repaired = Path(name, "raw"), Path(name, "repaired")
        run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(raw), str(ROOT)])
        (wheel,) = raw.glob("*.whl")
        repair = SETTINGS["linux"]["repair-wheel-command"]
        run([part.format(wheel=wheel, dest_dir=repaired) for part in repair.split()])
        (wheel,) = repaired.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def install_alone(wheel: Path, folder: Path) -> Path:
    """Make an environment with a wheel, and this one's packages behind it; return its Python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run([*install, "--no-index", "--no-deps", str(wheel)])
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(command: list[str]) -> None:
    """
    Run a command of the build, without build switches that the caller may have set.

    Raises:
        RuntimeError: It failed; the text is what it printed.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SHMLOADER_")}
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**inherited, **SETTINGS["linux"]["environment"], "PATH": search}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    built = build_wheel(Path(sys.argv[1]))
    print(f"{built}: {built.stat().st_size / 1e6:.2f} MB")
