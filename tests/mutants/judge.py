"""Run the tests that the map names for a mutant's file, the quickest first."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mutants import results
from tests.mutants.site import ROOT, SEED, Mutant
from tests.mutants.tree import Outcome, Tree
from tests.protocol.test_c import CORE
from tests.sources.test_map import covers, rows

ALL_LIMIT_S = 1500.0  # for `make test`
_CHECK_LIMIT_S = 1500.0
_BYTES_A_SECOND = 1000  # of a file of tests that has not been timed: a guess
_PROGRAMS = "tests/protocol/test_c.py"
_WORDS = {"failed": "found", "timeout": "timeout", "passed": "survived"}


class Judge:
    """
    Gives a verdict on each mutant.

    Args:
        limit_s: The longest time for a mutant.
    """

    def __init__(self, tree: Tree, path: Path, limit_s: float) -> None:
        self._tree = tree
        self._path = path
        self._limit_s = limit_s
        self._seconds = results.read_seconds(path)
        self._commit = _commit()

    def verdict(self, mutant: Mutant) -> results.Verdict:
        """Run the mutant against the tests of the map, the core first, each the quickest first."""
        tests = sorted(tests_of(mutant.path), key=self._needed_s)
        if _PROGRAMS in tests:
            verdict = self._run(mutant, [_PROGRAMS], self._limit_s, "--all", "-k", CORE)
            if verdict["outcome"] != "survived":
                return verdict
        verdict = self._run(mutant, tests, self._limit_s)
        if verdict["outcome"] != "survived":
            return verdict
        rest = self._run(mutant, tests, self._limit_s, "--rest")
        return rest if rest["outcome"] in ("found", "timeout") else verdict

    def against_all(self, mutant: Mutant) -> results.Verdict:
        """Run the mutant against what `make test` runs."""
        options = ("-n", "2", "--dist", "loadfile")
        return self._run(mutant, ["tests"], ALL_LIMIT_S, *options)

    def check(self) -> None:
        """
        Run the tests that found a mutant without a mistake, all in one run.

        What was found by one that fails all the same is unclear.
        """
        verdicts = results.read(self._path).values()
        found = [each for each in verdicts if each["outcome"] == "found" and each["test"]]
        tests = sorted({each["test"] for each in found})
        failed = self._tree.failures(tests, _CHECK_LIMIT_S, SEED) if tests else []
        for verdict in found:
            if verdict["test"] in failed:
                results.append(self._path, {**verdict, "outcome": "unclear"})

    def _run(
        self, mutant: Mutant, tests: list[str], limit_s: float, *options: str
    ) -> results.Verdict:
        outcome = Outcome("invalid", 0.0)
        with self._tree.planted(mutant) as compiles:
            if compiles:
                outcome = self._tree.run(tests, limit_s, SEED, *options)
        self._note(outcome, tests)
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

    def _needed_s(self, test: str) -> float:
        return self._seconds.get(test, (ROOT / test).stat().st_size / _BYTES_A_SECOND)

    def _note(self, outcome: Outcome, tests: list[str]) -> None:
        """Keep the seconds of the files that ran to their ends."""
        failed_in = outcome.test.partition("::")[0]
        over = tests[: tests.index(failed_in)] if failed_in in tests else tests
        for test in over if outcome.kind in ("failed", "passed") else []:
            if test not in self._seconds:
                self._seconds[test] = outcome.durations.get(test, 0.0)
                results.append(self._path, {"test_file": test, "seconds": self._seconds[test]})


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


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
