"""Signals to a whole job, as a scheduler sends them: one that the caller sees to is its alone."""

import faulthandler
import functools
import os
import signal

import pytest

from tests.conformance import made
from tests.conformance.sources import get

CASES = [
    (signal.SIGTERM, "handler"),
    (signal.SIGTERM, "ignored"),
    (signal.SIGTERM, "native handler"),
    (signal.SIGHUP, "ignored"),
    (signal.SIGUSR1, "handler"),
    (signal.SIGUSR2, "native handler"),
]


@pytest.fixture
def heard(number, way, tmp_path):
    """See to a signal in this process. Gives the folder in which each handler leaves its pid."""

    def note(number, _):
        (tmp_path / str(os.getpid())).touch()

    before = signal.signal(number, {"handler": note, "ignored": signal.SIG_IGN}.get(way, 0))
    with open(os.devnull, "w") as null:
        if way == "native handler":
            faulthandler.register(number, null)
        yield tmp_path
        faulthandler.unregister(number)
    signal.signal(number, before)


@pytest.mark.core(values=1)
@pytest.mark.parametrize(("number", "way"), CASES)
def test_a_signal_that_the_trainer_sees_to_is_left_to_it(kind, heard, fresh, number, way):
    """A signal that the caller sees to ends no worker; what workers start ends by SIGTERM."""
    assert [True, True] == get(fresh, functools.partial(made.meet, number))
    assert [] == list(heard.iterdir())
