"""Runs of which one process goes on at a time: whole, the same for the same seed, and named."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.helpers.kill_client import BUILD_TIMEOUT_S, SWITCHES
from tests.simulation.case import Case, draw
from tests.simulation.stage import Stage
from tests.simulation.telling import told

_SECONDS = 30  # `make simulate` takes a minute, or as long as it is told
_LATER_S = 120  # for the build, and a last run that hangs

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is missing"),
    pytest.mark.skipif(bool(SWITCHES["PORTABLE"]), reason="the door has a futex"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 120),  # the first test builds
]


@pytest.mark.thorough
@pytest.mark.timeout(BUILD_TIMEOUT_S + _SECONDS + _LATER_S)
def test_any_order_of_events(request):
    """In any order, with deaths at any step, each answer comes as it should and nothing is left."""
    seed = request.config.option.seed
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--seconds", str(_SECONDS)], cwd=ROOT, capture_output=True, text=True
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nsimulation: {done.stdout.splitlines()[-1]}")


# Runs that have found a fault, as they were printed.
FOUND = {
    "an answer that was taken out of its ring early came although its request was forgotten": Case(
        seed=53, workers=3, slots=4, length=20000, ahead=6, leaves_after=4, ring_kilobytes=512,
        forgets=3, switch_one_in=1, slow=1, is_guarded=True,
    ),
    "an interrupt came as a nursery was started, and the next one was given a closed channel": Case(
        seed=411180, workers=1, slots=4, ahead=2, keeps=8, grows=True, abandons=3, reacts=True,
        deaths=(780, 1320), restarts=3, switch_one_in=1, fire_one_in=16, has_lines=True,
        interrupts=(2221, 4600, 4965), is_guarded=True,
    ),
    "one was told to leave while a want of its own was taken for an answer, and died": Case(
        seed=3390046009, client="seats", seats=2, changes=1, length=20000, ahead=6, keeps=8,
        ring_kilobytes=256, tells=3, reacts=True, deaths=(2190,), restarts=2, switch_one_in=1,
        slow=1, scribbles=True,
    ),
    "one that connected as the publisher gave up waited on: workers have its socket too": Case(
        seed=2576997472, client="publisher", length=5000, keeps=0, abandons=3, subscribers=1,
        dies_at=("gather: fixed piece", 20), restarts=2, switch_one_in=2, fire_one_in=16, slow=8,
        looks=True, has_lines=True,
    ),
    "one that was added sat down while nothing waited to be sent, and the trainer spun": Case(
        seed=23, client="seats", workers=1, slots=3, seats=4, changes=1, length=1, ahead=1, keeps=8,
        leaves_after=4, switch_one_in=2, slow=1, is_guarded=True,
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND.keys())
def test_what_was_found_is_mended(stage, case):
    """A run that failed once is well now."""
    assert "" == stage.play(case)["failure"]


@pytest.mark.thorough
def test_a_seed_gives_one_trace(stage):
    """It is the same in another process, whatever ran there before, and another seed's is not."""
    other = Stage()
    try:
        there = {seed: other.play(draw(seed)) for seed in reversed(range(40))}
    finally:
        other.close()
    for seed in range(40):
        here = stage.play(draw(seed))
        for of_all_events in ("events", "hash"):
            assert here[of_all_events] == there[seed][of_all_events], draw(seed)
    assert 40 == len({outcome["hash"] for outcome in there.values()})


@pytest.mark.thorough
def test_trace_names_the_place_of_each_step(stage):
    """Each event is a line, and each step has its file and line."""
    outcome = stage.play(Case(3, deaths=(400,), restarts=1), True)
    lines = told(outcome["trace"], 1 << 20).splitlines()

    assert outcome["events"] == len(lines)
    assert "" == outcome["failure"]
    assert 1 == sum(line.endswith("is killed") for line in lines)
    assert any(re.search(r"^process 2 +csrc/ring\.h:\d+: push: cell$", line) for line in lines)
    assert not [line for line in lines if "?" in line]


def test_case_prints_as_program():
    """What is printed of a case is the case; a seed draws it again."""
    for seed in range(200):
        case = draw(seed)
        assert (case, case) == (eval(repr(case), {"Case": Case}), draw(seed))
