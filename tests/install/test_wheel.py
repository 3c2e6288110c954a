"""The repaired wheel is small, and works without a compiler."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests.helpers.wheel import ROOT, SETTINGS, build_wheel, install_alone

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]  # the build compiles the core anew


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repaired wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with this one's packages behind it."""
    return install_alone(wheel, tmp_path_factory.mktemp("environment"))


def bare(folder: Path) -> dict[str, str]:
    """Returns an environment without a compiler, in which no other shmloader is found."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SHMLOADER_"))}
    return {**kept, "CC": "false", "CXX": "false", "PATH": str(folder / "bin")}


def test_wheel_is_small(wheel):
    """A wheel takes less than a MiB."""
    assert wheel.stat().st_size < 1 << 20


def test_only_the_package_is_in_it(wheel):
    """The wheel holds the package and its metadata, and no sources of the compiled core."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    ours = [Path(name) for name in names if name.startswith("shmloader/")]
    others = {name.split("/")[0] for name in names if not name.startswith("shmloader/")}

    assert {f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"} == others
    assert {".py", ".pyi", ".so", ".typed"} == {path.suffix for path in ours}


def test_names_are_kept_and_lines_are_not(wheel):
    """The compiled module has the symbols that name a crash's functions, and no debug info."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        elf = ELFFile(io.BytesIO(archive.read(name)))

        assert not elf.get_section_by_name(".debug_info")
        assert elf.get_section_by_name(".symtab")


def test_batches_arrive_without_a_compiler(bare_python, tmp_path):
    """cibuildwheel's test command runs with the wheel's own package where nothing can compile."""
    command = SETTINGS["linux"]["test-command"].format(project=ROOT).split()
    environment = bare(bare_python.parents[1])
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert Path(done.stdout.strip()).is_relative_to(bare_python.parents[1])
