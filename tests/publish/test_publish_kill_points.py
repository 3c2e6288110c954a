"""
A publisher, or a subscriber, dies at each step of the protocol that it passes.

The steps are those of tests/deaths/test_kill_points.py, in the same build; the processes are those
of tests/helpers/kill_publishing.py.
"""

import importlib.util
import json
import os
import select
import subprocess
import sys

import pytest

from tests.helpers.kill_client import ANSWER_WITHIN_S, BUILD, BUILD_TIMEOUT_S, build
from tests.helpers.kill_steps import ROOT, names

PROGRAM = ROOT / "tests" / "helpers" / "kill_publishing.py"
NEW = {step for step in names() if step.startswith(("feed:", "fill:"))}

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is missing"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 900),  # the first test builds
    pytest.mark.thorough,
]


class Program:
    """
    The program that runs cases.

    Attributes:
        passed: By victim, how often it passes each step undisturbed.
    """

    def __init__(self, folder, meeting_folder):
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM, folder / "steps", meeting_folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{BUILD / 'lib'}{os.pathsep}{ROOT}"},
        )
        self.passed = {}
        for victim in ("subscriber", "publisher"):
            outcome = self.run(victim)
            assert ["over", "whole", "whole", "whole"] == outcome["said"]
            self.passed[victim] = outcome["passed"]

    def run(self, victim, **death):
        """Run a case."""
        self._process.stdin.write(json.dumps({"victim": victim, **death}).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)
        line = self._process.stdout.readline() if ready else b""
        assert line, f"the program does not answer {victim}, {death}"
        return json.loads(line)

    def deaths(self, victim):
        """Yield a step at which a victim died, at its first passage and in the middle, and what
        the others say."""
        for step, count in self.passed[victim].items():
            for passage in sorted({1, (count + 1) // 2}):
                outcome = self.run(victim, step=step, passage=passage)
                if outcome["died"]:  # how often some steps are passed differs from run to run
                    yield f"{step} ({passage})", outcome["said"]

    def close(self):
        """End the program."""
        self._process.stdin.close()
        self._process.wait(ANSWER_WITHIN_S)
        self._process.stdout.close()


@pytest.fixture
def program(tmp_path, meeting_folder):
    """Build the package with kill points, and start the program that runs it."""
    build()
    program = Program(tmp_path, meeting_folder)
    yield program
    program.close()


def test_every_step_is_passed(program):
    """Each step of the feed, and of the copy into a subscriber's ring, is passed by one of both."""
    assert {*program.passed["subscriber"], *program.passed["publisher"]} >= NEW


def test_death_of_a_subscriber_costs_the_others_nothing(program):
    """Wherever it dies, the others get all batches, and the publisher ends with the last."""
    deaths = dict(program.deaths("subscriber"))

    wrong = {step: said for step, said in deaths.items() if said != ["over", "whole", "whole"]}
    assert {} == wrong
    assert len(deaths) > len(NEW) / 2


def test_death_of_the_publisher_is_told(program):
    """Wherever it dies, what has come is right, and an error says that no more comes."""
    deaths = dict(program.deaths("publisher"))

    assert {} == {step: said for step, said in deaths.items() if not all(map(is_told, said))}
    assert len(deaths) > len(NEW) / 2


def is_told(said):
    """Returns True if a subscriber has got all, or was told why not."""
    if said.startswith("part: "):
        return any(text in said for text in ("has died", "has ended", "no publisher has come"))
    return said == "whole"
