"""`make` notices that its environment, .venv, was made with another Python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE_BY_US = "kept"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is missing")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and an environment whose Python says that it is another one."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    python = programs / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -VV ] && echo another || exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (programs / "pip").touch()
    (tmp_path / ".venv" / MADE_BY_US).touch()
    return tmp_path


def make_environment(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the rule that every target begins with, without what a make above has been given."""
    command = ["make", "-C", str(checkout), ".venv/bin/pip", *arguments]
    alone = {k: v for k, v in os.environ.items() if k != "PYTHON" and not k.startswith("MAKE")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=alone
    )


def is_kept(checkout: Path) -> bool:
    """Returns True if the environment is the one that the fixture made."""
    return (checkout / ".venv" / MADE_BY_US).exists()


def version(python: Path | str) -> str:
    """Returns all that a Python says of its version."""
    return subprocess.run([python, "-VV"], capture_output=True, text=True, check=True).stdout


@pytest.mark.thorough
def test_another_python_makes_it_anew(checkout):
    """The environment is made anew with the Python that is named, without anything of the old."""
    done = make_environment(checkout, f"PYTHON={sys.executable}")

    assert 0 == done.returncode, done.stderr
    assert version(sys.executable) == version(checkout / ".venv" / "bin" / "python")
    assert not is_kept(checkout)


@pytest.mark.parametrize("named", ["PYTHON=.venv/bin/python", None, "PYTHON=no-such-python"])
def test_it_is_kept(checkout, named):
    """With the Python that made it, and with none named; a name that is no Python is an error."""
    done = make_environment(checkout, *filter(None, [named]))
    is_python = named != "PYTHON=no-such-python"

    assert is_python == (0 == done.returncode), done.stderr
    assert is_python or "no-such-python" in done.stderr
    assert is_kept(checkout)


@pytest.mark.thorough
def test_a_half_made_one_is_made_anew(checkout):
    """An environment whose making was interrupted is made anew."""
    (checkout / ".venv" / "bin" / "pip").unlink()
    done = make_environment(checkout, f"PYTHON={sys.executable}")

    assert 0 == done.returncode, done.stderr
    assert not is_kept(checkout)
