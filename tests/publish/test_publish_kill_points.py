"""
A publisher, or a subscriber, dies at each step of the protocol that it passes.

The steps are those of tests/deaths/test_kill_points.py, in the same build; the processes are those
of tests/helpers/kill_publishing.py.
"""

import importlib.util
import tempfile

import pytest

from tests.helpers import kill_client
from tests.helpers.kill_client import BUILD_TIMEOUT_S, build
from tests.helpers.kill_steps import ROOT, names

PROGRAM = ROOT / "tests" / "helpers" / "kill_publishing.py"
NEW = {step for step in names() if step.startswith(("feed:", "fill:"))}

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is missing"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 900),  # the first test builds
    pytest.mark.thorough,
]


class Program(kill_client.Program):
    """
    The program that runs cases.

    Attributes:
        passed: By victim, how often it passes each step undisturbed.
    """

    def __init__(self, folder, meeting_folder):
        super().__init__(PROGRAM, folder / "steps", meeting_folder)
        self.passed = {}
        for victim in ("subscriber", "publisher"):
            outcome = self.ask({"victim": victim})
            assert ["over", "whole", "whole", "whole"] == outcome["said"]
            self.passed[victim] = outcome["passed"]

    def deaths(self, victim):
        """Yield a step at which a victim died, and what the others say.

        That is in the middle of its passages, and at the first one of a feed's, which begins there.
        """
        for step, count in self.passed[victim].items():
            for passage in sorted({1 if step in NEW else (count + 1) // 2, (count + 1) // 2}):
                outcome = self.ask({"victim": victim, "step": step, "passage": passage})
                if outcome["died"]:  # how often some steps are passed differs from run to run
                    yield f"{step} ({passage})", outcome["said"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Build the package with kill points, and start the program that runs it."""
    build()
    with tempfile.TemporaryDirectory(dir="/tmp") as meeting_folder:  # a short path, for sockets
        program = Program(tmp_path_factory.mktemp("steps"), meeting_folder)
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
