"""Our sources under relacy: it finds nothing in them, and finds each mistake that is planted."""

import pytest

from tests.protocol.relacy import __main__ as command
from tests.protocol.relacy import cases, sources

TIMEOUT_S = command.COMPILE_S + command.RUN_S + 60

needs_relacy = pytest.mark.skipif(not sources.RELACY.exists(), reason=sources.MISSING)
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(TIMEOUT_S)]


def test_every_program_is_run():
    """Each file is in the list, and has a mistake that must be found."""
    assert sorted(cases.PROGRAMS) == sorted(path.stem for path in sources.HERE.glob("*.cpp"))
    assert {mistake.program for mistake in cases.MISTAKES} == set(cases.PROGRAMS)


@pytest.mark.parametrize("mistake", cases.MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake_stands_in_the_sources(mistake):
    """Each mistake changes a text that stands once in its source."""
    assert sources.replaced(sources.read()[mistake.source], mistake.old, mistake.new)


@needs_relacy
@pytest.mark.parametrize("program", cases.PROGRAMS)
def test_program_holds(program):
    """No run has a data race, a failed assertion or a deadlock."""
    assert command.explore(program, sources.read()) == "nothing"


@needs_relacy
@pytest.mark.parametrize("mistake", cases.MISTAKES, ids=lambda mistake: mistake.name)
def test_mistake_is_found(mistake):
    """A weaker order, or a check left out, shows in the way that is expected of it."""
    assert mistake.fault == command.planted(mistake)
