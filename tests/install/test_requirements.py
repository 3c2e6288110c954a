"""Importing the package without something that it needs is one clear ImportError."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import shmloader
from shmloader import exports, requirements

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(shmloader.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEAST = dict(requirements.requirements_in(PROJECT["dependencies"]))


def refusal(folder: Path, before: str = "", *options: str) -> str:
    """
    Import the package in a process of its own.

    Args:
        folder: First on the process's path.
        before: What runs before the import.
        options: More options of the interpreter.

    Returns:
        The text of its ImportError, the only line on stderr that is not of the traceback.
    """
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); {before}\nimport shmloader"
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith((" ", "Traceback"))]
    kind, _, text = lines[-1].partition(": ")

    assert (1, 1, "ImportError") == (done.returncode, len(lines), kind), done.stderr
    return text


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


def fake(folder: Path, name: str, source: str) -> None:
    """Put a package of that name into the folder."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


def copy_of_package(folder: Path) -> Path:
    """Copy the package's Python files, not the compiled one; returns the copy."""
    return shutil.copytree(PACKAGE, folder / "shmloader", ignore=shutil.ignore_patterns("*.so"))


# Finders are asked before the path, so this one hides an installed package from all of them.
HIDE = (
    "import importlib.machinery as m; found = m.PathFinder.find_spec; "
    "m.PathFinder.find_spec = lambda name, *rest: None if name in {names} else found(name, *rest)"
)


def test_versions_are_those_of_the_metadata():
    """The packages that are always imported are checked, at the versions of pyproject.toml."""
    installed = metadata.requires("shmloader")

    assert {"torch", "numpy"} == LEAST.keys()
    assert LEAST == dict(requirements.requirements_in(installed))


@pytest.mark.parametrize(("name", "version"), [("torch", "2.10.0+cpu"), ("numpy", "1.25.2")])
def test_package_is_too_old(tmp_path, name, version):
    """A package that is too old is named with both versions and the pip command."""
    fake(tmp_path, name, f"__version__ = {version!r}")

    assert (
        f"shmloader needs {name}>={LEAST[name]} (found: {version}): "
        f"pip install '{name}>={LEAST[name]}'"
    ) == refusal(tmp_path)


def test_package_has_no_version(tmp_path):
    """A folder that only has the package's name is not the package."""
    fake(tmp_path, "torch", "")

    assert "(found: no version)" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_package_is_missing(tmp_path, name):
    """A package that is not there is named with the version that is needed and the pip command."""
    assert (
        f"shmloader needs {name}>={LEAST[name]} (found: none): pip install '{name}>={LEAST[name]}'"
    ) == refusal(tmp_path, HIDE.format(names=[name]))


def test_packages_are_named_together(tmp_path):
    """If several packages are missing, one command installs all of them."""
    command = " ".join(f"'{name}>={least}'" for name, least in LEAST.items())

    assert refusal(tmp_path, HIDE.format(names=["torch", "numpy"])).endswith(
        f": pip install {command}"
    )


def test_package_fails_on_its_own(tmp_path):
    """An error inside of a package that is there stays as it is."""
    fake(tmp_path, "torch", "raise ImportError('libcudart.so.13 is missing')")

    assert "libcudart.so.13 is missing" == refusal(tmp_path)


def test_metadata_that_is_left_over_is_not_believed(tmp_path):
    """A package is asked itself if the metadata beside it does not say that it is new enough."""
    fake(tmp_path, "torch", f"__version__ = {LEAST['torch']!r}")
    for version in ("2.0.0", "99.0.0"):
        said = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        (tmp_path / f"torch-{version}.dist-info").mkdir()
        (tmp_path / f"torch-{version}.dist-info" / "METADATA").write_text(said)
    asked = run_alone(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import shmloader; "
        "print('torch' in sys.modules)"
    )

    assert "True" == asked


def test_torch_waits_for_the_first_use():
    """An import tells the version and lists the names; the first use of a name imports torch."""
    said = run_alone(
        "import sys, shmloader\n"
        "assert shmloader.__version__ and {*shmloader.__all__} <= {*dir(shmloader)}\n"
        "assert not hasattr(shmloader, 'nothing') and not hasattr(shmloader, '__wrapped__')\n"
        "print('torch' in sys.modules, end=' ')\n"
        "print(shmloader.DataLoader.__name__, 'torch' in sys.modules)"
    )

    assert "False DataLoader True" == said


def test_every_way_to_import_gives_the_same():
    """Names and modules are the same by attribute, by name, by star, and out of a pickle."""
    said = run_alone(
        "import shmloader\n"
        "modules = shmloader.errors, shmloader.metrics, shmloader.log\n"
        "from shmloader import *\n"
        "import pickle, sys\n"
        "assert all(getattr(shmloader, name) is globals()[name] for name in shmloader.__all__)\n"
        "assert all(each is sys.modules[each.__name__] for each in modules)\n"
        "print(pickle.loads(pickle.dumps(DataLoader)) is shmloader.dataloader.DataLoader)"
    )

    assert "True" == said


@pytest.mark.parametrize("module", ["shmloader.trainer.budget", "shmloader.worker.loop"])
def test_modules_are_imported_alone(module):
    """A spawned worker begins with a module of the package, not with one of its names."""
    assert "True" == run_alone(f"import sys, {module}; print('{module}' in sys.modules)")


def test_unknown_name_is_an_import_error():
    """What the package does not have is refused as by any other package."""
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'shmloader'"):
        from shmloader import nothing  # noqa: F401
    with pytest.raises(AttributeError, match="module 'shmloader' has no attribute 'nothing'"):
        shmloader.nothing  # noqa: B018


def test_exports_are_the_names_that_are_listed():
    """The names that are imported at the first use are those that the package lists."""
    assert shmloader.__all__ == exports.__all__


def test_core_is_missing(tmp_path):
    """A checkout that was not built says where it looked and how to build it."""
    copy = copy_of_package(tmp_path)
    (tmp_path / "setup.py").touch()
    text = refusal(tmp_path)

    assert f"for {sys.implementation.cache_tag} (found in {copy / 'core'}: none)" in text
    assert text.endswith(f": pip install {tmp_path}")


def test_core_is_of_another_python(tmp_path):
    """A compiled module that was built for another Python is named."""
    copy = copy_of_package(tmp_path)
    (copy / "core" / "_core.cpython-39-x86_64-linux-gnu.so").touch()
    text = refusal(tmp_path)

    assert "_core.cpython-39-x86_64-linux-gnu.so" in text
    assert text.endswith(": pip install --force-reinstall --no-deps shmloader")


def test_package_was_not_installed(tmp_path):
    """A copied package without its metadata says so."""
    copy = copy_of_package(tmp_path)
    text = refusal(tmp_path, "", "-I", "-S")

    assert text.startswith(f"shmloader in {copy} was not installed")
    assert ": pip install " in text


def test_python_is_too_old(tmp_path):
    """A Python before the first that is supported is named, with that one's pip."""
    least = PROJECT["requires-python"].removeprefix(">=")

    assert (
        f"shmloader needs Python {least} or later, and this is Python 3.10.4: "
        f"python{least} -m pip install shmloader"
    ) == refusal(tmp_path, "import importlib.metadata; sys.version_info = (3, 10, 4)")


def test_system_is_not_linux(tmp_path):
    """Another operating system is named before anything of the package is needed."""
    text = refusal(tmp_path, "import importlib.metadata; sys.platform = 'darwin'")

    assert text.startswith("shmloader needs Linux, and this is darwin: pip install shmloader on ")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.11.0a0+git1234", (2, 11, 0)), ("2.11.0.dev20260101", (2, 11, 0)), ("none", ())],
)
def test_numbers_of_a_version(version, expected):
    """Only numbers are compared, so that a nightly build counts as released."""
    assert expected == requirements.numbers(version)
