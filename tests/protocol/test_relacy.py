"""Our sources under relacy: nothing is found in them, and each mistake that is planted there is."""

import pytest

from tests.protocol.relacy.__main__ import MISSING, is_here, run
from tests.protocol.relacy.programs import PROGRAMS, source_of

PLANTED = [(name, mistake) for name, program in PROGRAMS.items() for mistake in program.mistakes]
needs_relacy = pytest.mark.skipif(not is_here(), reason=MISSING)


@pytest.mark.parametrize(("name", "mistake"), PLANTED)
def test_mistake_can_be_planted(name, mistake):
    """What a mistake changes stands once in the sources."""
    assert source_of(PROGRAMS[name]) != source_of(PROGRAMS[name], mistake)


@needs_relacy
@pytest.mark.thorough
@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found(name):
    """No execution has a race, a failed assertion, or a thread that sleeps for ever."""
    assert "" == run(name)


@needs_relacy
@pytest.mark.thorough
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("name", "mistake"), PLANTED)
def test_planted_mistake_is_found(name, mistake):
    """Some execution does."""
    assert run(name, mistake)
