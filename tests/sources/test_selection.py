"""The core and the rest are all tests, each once, and the core's cases are chosen as marked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.selection import core_cases

ROOT = Path(__file__).resolve().parents[2]


class Case:
    """A case of a test function as pytest collects it."""

    def __init__(self, number: int, marks: list[pytest.MarkDecorator], **values: int):
        self.number = number
        self.callspec = SimpleNamespace(params=values)
        self._marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)


def grid(rows: int, columns: int, *marks: pytest.MarkDecorator) -> list[Case]:
    """Returns the cases of a function with two parameters."""
    places = [(row, column) for row in range(rows) for column in range(columns)]
    return [Case(n, [*marks], row=row, column=column) for n, (row, column) in enumerate(places)]


def chosen(cases: list[Case]) -> list[tuple[int, int]]:
    """Returns the values of the cases that are in the core."""
    return [tuple(case.callspec.params.values()) for case in core_cases(cases)]


def test_unmarked_cases_are_core():
    """A function without a mark is in the core with all its cases."""
    assert 6 == len(core_cases(grid(2, 3)))


def test_thorough_cases_are_not():
    """A mark on one case leaves out that case alone."""
    cases = [*grid(1, 3), Case(3, [pytest.mark.thorough], row=0, column=3)]

    assert [0, 1, 2] == [case.number for case in core_cases(cases)]


@pytest.mark.parametrize(("start", "expected"), [(0, [0, 4, 8]), (3, [3, 7])])
def test_each_nth_case(start, expected):
    """Cases are counted in the order in which they are collected."""
    cases = grid(1, 9, pytest.mark.core(every=4, start=start))

    assert expected == [case.number for case in core_cases(cases)]


def test_the_first_cases():
    """first=2 keeps two."""
    cases = grid(1, 9, pytest.mark.core(first=2))

    assert [0, 1] == [case.number for case in core_cases(cases)]


def test_each_value_comes():
    """With values=1 each value of each parameter comes, in as few cases as the longest list has."""
    places = chosen(grid(2, 5, pytest.mark.core(values=1)))

    assert ({0, 1}, {0, 1, 2, 3, 4}) == tuple(map(set, zip(*places, strict=True)))
    assert 5 == len(places)


def test_each_pair_comes():
    """With values=2 each pair of values comes, which for two parameters is every case."""
    assert 10 == len(set(chosen(grid(2, 5, pytest.mark.core(values=2)))))


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
