"""Random lives for a while; and what the fuzzer says of a case that fails."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.lives.case import Case, Data, Event, draw  # noqa: F401  (of what is printed)
from tests.lives.life import advice_in

_SECONDS = 20  # `make lives` takes a minute, or as long as it is told
_LATER_S = 140  # for a last case that hangs


def fuzzer(*arguments, timeout=100):
    """Run it in a process without threads, as forks need."""
    command = [sys.executable, "-m", "tests.lives", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, timeout=timeout, capture_output=True, text=True)


@pytest.mark.thorough
@pytest.mark.timeout(_SECONDS + _LATER_S + 30)
def test_random_lives(request):
    """A loader with any options, in any life, has the batches of an undisturbed one."""
    seed = request.config.option.seed
    done = fuzzer("--seconds", _SECONDS, "--seed", seed, timeout=_SECONDS + _LATER_S)

    assert 0 == done.returncode, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.thorough
def test_case_that_hangs_is_a_failure():
    """It is ended, and its stacks are shown."""
    case = Case(Data("map", samples=2, wait_ms=100_000), torch={"num_workers": 1})
    done = fuzzer("--case", case, "--limit-s", 3)

    assert 1 == done.returncode
    assert done.stdout.startswith("hang not over after 3 s"), done.stdout
    assert "in _epoch" in done.stdout


def test_case_prints_as_program():
    """What is printed of a case is the case; a seed draws it again."""
    for seed in range(200):
        case = draw(seed)
        assert (case, case) == (eval(repr(case)), draw(seed))


def test_advice_is_read_from_lines():
    """Options that a line of a report names with a value, and no other words."""
    line = 'set num_workers=3, or assignment="dynamic": see slots=; persistent_workers=True'

    expected = {"num_workers": 3, "assignment": "dynamic", "persistent_workers": True}
    assert expected == advice_in(line)
