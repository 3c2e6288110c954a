"""The map, tests/README.md, leads from modules to tests and from folders to their questions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
MAP = (TESTS / "README.md").read_text()
SUFFIXES = {".py", ".pyx", ".pxd", ".c", ".h"}
WITHOUT_TESTS = {"__init__.py", "__main__.py", "capi.pxd", "csrc.pxd"}  # declarations


def rows() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the files and the tests of each row of the map."""
    for line in MAP.splitlines():
        if line.startswith("| `") and "/test_" in line:
            files, tests = (
                re.findall(r"`([^`]+)`", cell) for cell in line.strip("| ").split(" | ")
            )
            yield files, tests


def product_files() -> list[str]:
    """List the files that need a row, as the map writes them."""
    package = ROOT / "shmloader"
    files = [path.relative_to(package) for path in package.rglob("*")]
    native = [path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*")]
    return sorted(
        str(path)
        for path in (*files, *native)
        if path.suffix in SUFFIXES and path.name not in WITHOUT_TESTS
    )


def covers(pattern: str, path: str) -> bool:
    """Returns True if a file of the map is this one: by name, any suffix, or the whole folder."""
    if pattern.endswith("/*"):
        return path.startswith(pattern[:-1])
    return path == pattern or (pattern.endswith(".*") and path.startswith(pattern[:-1]))


def test_modules_have_rows():
    """A new module is given its tests in the map."""
    patterns = [pattern for files, _ in rows() for pattern in files]

    lacking = [path for path in product_files() if not any(covers(each, path) for each in patterns)]
    assert [] == lacking, f"give these a row in tests/README.md: {', '.join(lacking)}"


def test_rows_lead_somewhere():
    """The map names files and tests that exist."""
    paths = product_files()
    stale = [
        pattern
        for files, _ in rows()
        for pattern in files
        if not any(covers(pattern, path) for path in (*paths, "core/_core.pyx"))
    ]
    gone = [test for _, tests in rows() for test in tests if not (TESTS / test).is_file()]

    assert ([], []) == (stale, gone)


def test_every_folder_has_a_question():
    """Each folder of tests stands in the map, and its package says the same."""
    folders = {path.parent.name for path in TESTS.glob("*/__init__.py")}

    assert folders <= set(re.findall(r"^\| `(\w+)/` \|", MAP, re.MULTILINE))


def test_file_names_are_unique():
    """A test file is known by its name alone, so that a promise and a row can name it."""
    names = [path.name for path in TESTS.rglob("test_*.py")]

    assert sorted(set(names)) == sorted(names)
