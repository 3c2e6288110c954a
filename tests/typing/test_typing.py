"""Type checkers on programs that use the package, as users see them in their editor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SNIPPETS = Path(__file__).resolve().parent / "snippets"
MARK = "  # error"


def marked_lines(path):
    """List the lines of a snippet that a checker has to complain of."""
    lines = path.read_text().splitlines()
    return [number for number, line in enumerate(lines, start=1) if line.endswith(MARK)]


def output_of(*command):
    """Run a checker in the checkout, so that it finds the package; returns its output."""
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode in (0, 1), result.stderr  # another code: it could not check
    return result.stdout


def errors_by_mypy(folder):
    """Check the snippets with mypy, strictly; yields (path, line) of each error."""
    strictly = ["--strict", "--no-warn-unused-ignores", "--follow-imports=silent"]
    output = output_of("mypy", "--output=json", *strictly, *map(str, SNIPPETS.glob("*.py")))
    for found in map(json.loads, output.splitlines()):
        if found["severity"] == "error":
            yield ROOT / found["file"], found["line"]


def errors_by_pyright(folder):
    """Check them with pyright, by the fork that installs from wheels alone; yields as above."""
    settings = {
        "typeCheckingMode": "standard",  # pyright's own rules, not those that the fork adds
        "include": [str(SNIPPETS)],
        "extraPaths": [str(ROOT)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    where = ["--pythonpath", sys.executable, "--project", str(folder)]
    output = output_of("basedpyright", "--outputjson", *where)
    for found in json.loads(output)["generalDiagnostics"]:
        if found["severity"] == "error":
            yield Path(found["file"]), found["range"]["start"]["line"] + 1


# The first run of mypy reads all of torch, which takes half a minute.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(
    scope="module",
    params=[pytest.param(errors_by_mypy, marks=pytest.mark.thorough), errors_by_pyright],
)
def errors(request, tmp_path_factory):
    """All errors that one checker finds, as a set of (path, line)."""
    return set(request.param(tmp_path_factory.mktemp("checker")))


def test_snippets_have_marks_where_they_fail():
    """The check below has something to find, and something to find nothing in."""
    assert [] == marked_lines(SNIPPETS / "passes.py")
    assert len(marked_lines(SNIPPETS / "fails.py")) > 20


@pytest.mark.thorough
@pytest.mark.parametrize("snippet", ["passes.py", "fails.py"])
def test_marked_lines_alone_are_errors(errors, snippet):
    """A use that is right passes the checker, and each mistake is found by it."""
    path = SNIPPETS / snippet

    assert marked_lines(path) == sorted(line for file, line in errors if file == path)


def test_errors_are_the_snippets_own(errors):
    """The checker looked at the snippets, and complains of nothing else."""
    assert {SNIPPETS / "fails.py"} == {file for file, _ in errors}
