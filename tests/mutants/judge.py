"""Run the tests that the map names for a mutant's file, the quickest first."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.mutants import results
from tests.mutants.site import ROOT, SEED, Mutant
from tests.mutants.tree import Outcome, Tree
from tests.sources.test_map import covers, rows

LIMIT_S = 180.0  # for a mutant
ALL_LIMIT_S = 1500.0  # for `make test`
_SPARE_S = 30.0
_LOWEST_LIMIT_S = 60.0
_WORDS = {"failed": "found", "timeout": "timeout", "passed": "survived"}


class Judge:
    """
    Gives a verdict on each mutant.

    Before a file of tests is used it is run once without a mistake: it must pass, and its seconds
    say when it comes, and what is too long.
    """

    def __init__(self, tree: Tree, path: Path) -> None:
        self._tree = tree
        self._path = path
        self._seconds = results.read_seconds(path)
        self._commit = _commit()

    def verdict(self, mutant: Mutant) -> results.Verdict:
        """Run the mutant against the tests of the map."""
        tests = self._in_time(tests_of(mutant.path))
        needed_s = sum(self._seconds[test] for test in tests)
        limit_s = min(LIMIT_S, max(_LOWEST_LIMIT_S, 3 * needed_s + _SPARE_S))
        return self._run(mutant, tests, limit_s)

    def against_all(self, mutant: Mutant) -> results.Verdict:
        """Run the mutant against what `make test` runs."""
        options = ("-n", "2", "--dist", "loadfile")
        return self._run(mutant, ["tests"], ALL_LIMIT_S, *options)

    def _run(
        self, mutant: Mutant, tests: list[str], limit_s: float, *options: str
    ) -> results.Verdict:
        with self._tree.planted(mutant) as compiles:
            outcome = Outcome("invalid", 0.0)
            if compiles:
                outcome = self._tree.run(tests, limit_s, SEED, *options)
        return {
            "name": mutant.name,
            "folder": mutant.folder,
            "change": mutant.change(),
            "outcome": _WORDS.get(outcome.kind, outcome.kind),
            "test": outcome.test,
            "error": outcome.error[:200],
            "seconds": outcome.seconds,
            "against": tests,
            "commit": self._commit,
        }

    def _in_time(self, tests: list[str]) -> list[str]:
        """Sort the tests by their seconds; leave out what does not pass, or is too long in all."""
        for test in tests:
            if test not in self._seconds:
                outcome = self._tree.run([test], LIMIT_S, SEED)
                well = outcome.kind == "passed" or outcome.error == "exit code 5"
                self._seconds[test] = outcome.seconds if well else LIMIT_S
                results.append(self._path, _measured(test, outcome, well))
        kept: list[str] = []
        for test in sorted(tests, key=lambda each: self._seconds[each]):
            if sum(self._seconds[each] for each in [*kept, test]) < LIMIT_S - _SPARE_S:
                kept.append(test)
        return kept


def tests_of(path: str) -> list[str]:
    """List the tests of a file, as the map in tests/README.md has them."""
    short = path.removeprefix("shmloader/")
    named = [
        f"tests/{test}"
        for files, tests in rows()
        for test in tests
        if any(covers(each, short) for each in files)
    ]
    return list(dict.fromkeys(named))


def _measured(test: str, outcome: Outcome, well: bool) -> dict[str, Any]:
    said = "" if well else f"{outcome.kind} without a mistake: {outcome.test} {outcome.error}"
    return {"test_file": test, "seconds": outcome.seconds, "unusable": said}


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
