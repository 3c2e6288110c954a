"""The core and the rest are all tests, each once, and the core's cases are chosen as marked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKED = """
import pytest

row = pytest.mark.parametrize("row", ["a", "b"])
column = pytest.mark.parametrize("column", [1.5, [2], None, (3, 4)])

def test_unmarked(): pass

@pytest.mark.thorough
def test_thorough(): pass

@pytest.mark.core(values=1)
@row
@column
def test_of_values(row, column): pass

@pytest.mark.core(every=3)
@row
@column
def test_of_every(row, column): pass
"""


@pytest.mark.thorough
def test_core_and_rest_are_all_tests(tmp_path):
    """Of eight cases four have all values; what the core leaves out, the rest runs once."""
    (tmp_path / "test_marked.py").write_text(MARKED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.selection", "--collect-only"]

    def collect(hash_seed, *options):  # in a process that orders its sets in its own way
        command_line = [*command, *options, "-q", "--rootdir", tmp_path, tmp_path]
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        printed = subprocess.check_output(command_line, cwd=ROOT, env=environment, text=True)
        return [line.partition("::")[2] for line in printed.splitlines() if "::" in line]

    core, rest = collect(1), collect(2, "--rest")
    values = [name.rstrip("]").split("-") for name in core if "values" in name]

    assert 2 + 2 * 8 == len(core + rest) == len({*core, *rest})
    assert 4 == len(values) and {"a", "b"} == {each[1] for each in values}
    assert 3 == sum("every" in name for name in core)
    assert "test_unmarked" in core and "test_thorough" in rest
