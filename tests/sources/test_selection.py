"""The core and the rest are all tests, each once, and the core's cases are chosen as marked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


STACKED = """
import pytest

@pytest.mark.core(values=1)
@pytest.mark.parametrize("row", ["a", "b"])
@pytest.mark.parametrize("column", [1.5, [2], None, (3, 4)])
def test_of_a_grid(row, column):
    pass
"""


@pytest.mark.thorough
def test_cases_as_pytest_makes_them(tmp_path):
    """Decorators that are stacked: four cases have all values, of eight."""
    (tmp_path / "test_stacked.py").write_text(STACKED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.selection", "--collect-only"]
    run = subprocess.run(
        [*command, "-q", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = [line for line in run.stdout.splitlines() if "::" in line]

    assert 4 == len(names)
    assert {"a", "b"} == {name.rpartition("-")[2].rstrip("]") for name in names}


def collection(hash_seed: int, *options: str) -> subprocess.Popen[str]:
    """Start a collection of all tests in a process that orders its sets in its own way."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(
        [*command, *options], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.thorough
def test_core_and_rest_are_all_tests():
    """Together `make test` and `make rest` run every test once."""
    runs = [collection(1), collection(2, "--rest"), collection(3, "--all")]
    core, rest, all_tests = (
        [line for line in run.communicate()[0].splitlines() if "::" in line] for run in runs
    )

    assert len(all_tests) > 1000
    assert sorted(all_tests) == sorted(core + rest)
    assert not set(core) & set(rest)
