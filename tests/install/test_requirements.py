"""Importing the package without something that it needs is one clear ImportError."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shmloader
from shmloader.setup import requirements

PACKAGE = Path(shmloader.__file__).parent


def run_alone(program: str) -> str:
    """Run a program in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.strip()


def test_another_system_is_named(monkeypatch):
    """On a system that is not Linux, the reason says which system this is."""
    monkeypatch.setattr(sys, "platform", "darwin")

    assert "this is darwin, and shared-memory slots need Linux" == requirements.lacking()


def test_a_wheel_without_the_core_is_no_mistake(tmp_path, monkeypatch):
    """Where no core of any Python lies, and no sources, it was built without one."""
    (tmp_path / "shmloader" / "core").mkdir(parents=True)
    monkeypatch.setattr(requirements, "PACKAGE", tmp_path / "shmloader")

    assert "installed without its compiled module" in requirements.lacking()


def test_a_checkout_that_was_not_built(tmp_path, monkeypatch):
    """The error says how to build it."""
    (tmp_path / "shmloader" / "core").mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    monkeypatch.setattr(requirements, "PACKAGE", tmp_path / "shmloader")
    with pytest.raises(ImportError, match=r"none\): pip install"):
        requirements.lacking()


@pytest.mark.parametrize(
    ("has_sources", "command"),
    [
        (True, "pip install {}, or start Python in another folder, if it is installed"),
        (False, "pip install --force-reinstall --no-deps shmloader"),
    ],
)
def test_a_package_that_was_not_built(tmp_path, monkeypatch, has_sources, command):
    """Without the compiled module, the error names what is there, and the pip command."""
    (tmp_path / "shmloader" / "core").mkdir(parents=True)
    (tmp_path / "shmloader" / "core" / "_core.cpython-39-x86_64-linux-gnu.so").touch()
    if has_sources:
        (tmp_path / "setup.py").touch()
    monkeypatch.setattr(requirements, "PACKAGE", tmp_path / "shmloader")
    with pytest.raises(ImportError, match="shmloader needs its compiled module") as caught:
        requirements.lacking()

    assert "core: _core.cpython-39-x86_64-linux-gnu.so)" in str(caught.value)
    assert str(caught.value).endswith(f"): {command.format(tmp_path)}")


@pytest.mark.thorough
def test_every_way_to_import_gives_the_same():
    """
    Names and modules are the same by attribute, by name, by star, and out of a pickle.

    An import tells the version; the first use of a name imports torch.
    """
    said = run_alone(
        "import pickle, sys, shmloader\n"
        "assert shmloader.__version__\n"
        "assert not hasattr(shmloader, '__wrapped__')\n"
        "print('torch' in sys.modules, end=' ')\n"
        "print(shmloader.DataLoader.__name__, 'torch' in sys.modules, end=' ')\n"
        "modules = shmloader.errors, shmloader.setup.components, shmloader.log\n"
        "from shmloader import *\n"
        "assert all(getattr(shmloader, name) is globals()[name] for name in shmloader.__all__)\n"
        "assert all(each is sys.modules[each.__name__] for each in modules)\n"
        "print(pickle.loads(pickle.dumps(DataLoader)) is shmloader.dataloader.DataLoader)"
    )

    assert "False DataLoader True True" == said


@pytest.mark.parametrize("folder_comes", ["never", "before", "after"])
def test_each_name_may_be_the_first(monkeypatch, folder_comes):
    """A folder of the same name, whenever it is imported, does not take a public name's place."""
    folders = {path.name for path in PACKAGE.iterdir()} & {*shmloader.__all__}
    for name in shmloader.__all__ if folder_comes == "never" else sorted(folders):
        for module in ("shmloader", "shmloader.exports"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        package = importlib.import_module("shmloader")
        if folder_comes == "after":
            assert getattr(shmloader, name) is getattr(package, name)
        if folder_comes != "never":  # as the import of a part of it does
            setattr(package, name, importlib.import_module(f"shmloader.{name}"))
        assert getattr(shmloader, name) is getattr(package, name)


LATE = """
import atexit, os, signal, sys, threading, warnings
import numpy, torch, torch.utils.data

def look():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    ends = len(threading._threading_atexits), atexit._ncallbacks(), sys.excepthook
    process = os.listdir("/proc/self/fd"), threading.enumerate(), dict(os.environ)
    return handlers, ends, process, [*sys.meta_path], [*warnings.filters]

def work():
    threading.main_thread().join()
    before = look()
    from shmloader import DataLoader
    print(before == look(), end=" ")
    print(len([batch for batch in DataLoader(range(8), batch_size=4, num_workers=1)]))

threading.Thread(target=work).start()
"""


@pytest.mark.thorough
def test_an_import_changes_nothing_and_may_come_late():
    """Nothing is registered, opened or started, so it may come when the main thread has ended."""
    assert "True 2" == run_alone(LATE)


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["shmloader.transport.budget", "shmloader.worker.worker"])
def test_modules_are_imported_alone(module):
    """A spawned worker begins with a module of the package, not with one of its names."""
    assert "True" == run_alone(f"import sys, {module}; print('{module}' in sys.modules)")


def test_unknown_name_is_an_import_error():
    """What the package does not have is refused as by any other package."""
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'shmloader'"):
        from shmloader import nothing  # noqa: F401
    with pytest.raises(AttributeError, match="module 'shmloader' has no attribute 'nothing'"):
        shmloader.nothing  # noqa: B018
