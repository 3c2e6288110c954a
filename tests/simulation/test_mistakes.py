"""Mistakes that are planted: each can be, the worst are found, and what is not planted is named."""

import importlib.util

import pytest

from tests.conftest import ROOT
from tests.helpers.kill_client import BUILD_TIMEOUT_S, SWITCHES
from tests.protocol.model.cases import MUTATIONS
from tests.simulation.case import draw
from tests.simulation.mistakes import MISTAKES, MODEL, UNPLANTED
from tests.simulation.planting import edited, plant
from tests.simulation.stage import Stage

_BY_NAME = {mistake.name: mistake for mistake in MISTAKES}
_MOST_RUNS = 100
_SOON = (
    *("NO_WAKE", "RING_FIRST", "KEEP_TASKS", "OLDER_NOTE", "START_BEFORE_RECLAIM"),
    *("CHILD_PLACES", "CHILD_EMPTIES", "FREE_UNDER_A_COPY"),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake_can_be_planted(mistake):
    """The pieces that a mistake changes stand once in the sources, and it changes them."""
    for path in {edit.path for edit in mistake.edits}:
        text = (ROOT / path).read_text()

        assert text != edited(text, [edit for edit in mistake.edits if edit.path == path])


def test_every_mistake_of_the_models_is_known():
    """A mistake that the models find is planted here, or it is said why not."""
    planted = [mistake.name for mistake in MISTAKES if mistake.origin == MODEL]

    assert {mutation.flag for mutation in MUTATIONS} == {*planted, *UNPLANTED}
    assert len(planted) + len(UNPLANTED) == len({*planted, *UNPLANTED})


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is missing")
@pytest.mark.skipif(bool(SWITCHES["PORTABLE"]), reason="the door has a futex")
@pytest.mark.timeout(BUILD_TIMEOUT_S + 300)
@pytest.mark.parametrize("name", _SOON)
def test_planted_mistake_is_found(stage, name):
    """From seed 1 on, some run fails with the mistake that does not without it."""
    planted = Stage(plant(_BY_NAME[name]))
    try:
        cases = map(draw, range(1, 1 + _MOST_RUNS))
        found = next((case for case in cases if planted.play(case)["failure"]), None)

        assert found, f"{_MOST_RUNS} runs do not find {name}"
        assert "" == stage.play(found)["failure"]
    finally:
        planted.close()
