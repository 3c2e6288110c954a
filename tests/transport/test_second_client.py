"""The transport without a DataLoader: workers that square arrays, and what befalls them."""

import contextlib
import os
import signal
import warnings

import numpy
import pytest
from torch._utils import ExceptionWrapper

from shmloader.core import Order, Verb
from shmloader.errors import RestartWarning
from tests.helpers.programs import wait_until
from tests.transport.squares import Squares

LENGTH = 5000


@contextlib.contextmanager
def squaring(**options):
    """Open workers that square, and close them; all of them have to be reaped."""
    squares = Squares(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RestartWarning)
        try:
            yield squares
        finally:
            assert squares.close()


def squared(start, factor=1, length=LENGTH):
    return (numpy.arange(start, start + length) ** 2 * factor).tolist()


def taken(squares, count):
    """Take so many answers, by key, as lists."""
    found = {}
    for _ in range(count):
        answer, batch = squares.take()
        found[answer.key] = batch.tolist()
    return found


def test_answers_come_by_their_keys():
    """Each request is answered once, by whichever worker, with what it asked for."""
    with squaring() as squares:
        for number in range(20):
            squares.send(f"key {number}", (number, LENGTH))

        assert {f"key {n}": squared(n) for n in range(20)} == taken(squares, 20)


def test_an_answer_lies_in_its_slot():
    """What is kept stays as it was while its slot is not used again; the others go round."""
    with squaring(workers=1, slots=4) as squares:
        squares.send("kept", (7, LENGTH))
        _, kept = squares.take()
        for number in range(20):
            squares.send(number, (number, LENGTH))
        taken(squares, 20)

        assert squared(7) == kept.tolist()
        assert 1 == squares.transport.figures.counts()["leased"]
        del kept


def test_more_that_is_kept_than_slots_spills():
    """Answers that would take the workers' slots are copied out; all are right."""
    with squaring(slots=6) as squares:
        kept = []
        for number in range(12):
            squares.send(number, (number, LENGTH))
            kept.append(squares.take()[1])

        assert [squared(number) for number in range(12)] == [each.tolist() for each in kept]
        assert 0 < squares.transport.figures.sums()["spilled"] < 12
        del kept


def test_errors_take_the_place_of_answers():
    """An error of the worker's comes by the request's key, and what cannot be sent is one too."""
    with squaring() as squares:
        squares.send("failing", "fail")
        answer, failure = squares.take()
        assert ("failing", True) == (answer.key, isinstance(failure, ExceptionWrapper))
        with pytest.raises(LookupError, match="no such square"):
            failure.reraise()

        squares.send("unsendable", lambda: None)
        answer, failure = squares.take()
        assert "unsendable" == answer.key
        with pytest.raises(Exception, match="local object"):
            failure.reraise()


def test_deaths_are_healed():
    """What a dead worker had in hand is answered by another; only the deadly request is lost."""
    with squaring(workers=1, restarts=3) as squares:
        squares.send(0, (0, LENGTH))
        assert {0: squared(0)} == taken(squares, 1)
        os.kill(squares.processes.by_id[0].pid, signal.SIGSTOP)  # it answers none of the next
        for number in range(1, 4):
            squares.send(number, (number, LENGTH))
        os.kill(squares.processes.by_id[0].pid, signal.SIGKILL)

        assert {n: squared(n) for n in range(1, 4)} == taken(squares, 3)
        assert 1 == squares.transport.figures.sums()["restarts"]


def test_a_death_without_restarts_is_an_error_that_names_the_request():
    """The client says what the worker had in hand."""
    with squaring(workers=1, restarts=1) as squares:
        squares.send("deadly", "die")
        with pytest.raises(RuntimeError, match=r"squaring worker .* the squares of die in hand"):
            while True:
                try:
                    squares.take(1)
                except Exception as error:
                    if not squares.waiting.may_come_yet(error, squares.active, print):
                        raise


def test_what_was_told_is_told_again():
    """A worker that died after it was told something is replaced by one that was told it."""
    with squaring(workers=1, restarts=3) as squares:
        squares.send("before", (1, LENGTH))
        assert {"before": squared(1)} == taken(squares, 1)
        squares.transport.tell(0, Order.RESUME, 3)
        assert Verb.RESUMED is squares.take()[0].kind
        os.kill(squares.processes.by_id[0].pid, signal.SIGKILL)
        squares.send("after", (1, LENGTH))

        assert {"after": squared(1, factor=3)} == taken(squares, 1)


def test_abandoned_answers_are_discarded():
    """Only what is kept comes, and no slot stays in use."""
    with squaring(workers=2, slots=8) as squares:
        for number in range(6):
            squares.send(number, (number, LENGTH))
        squares.transport.abandon(keep=[4])
        squares.expected = {4}
        assert {4: squared(4)} == taken(squares, 1)
        squares.send("next", (9, LENGTH))
        assert {"next": squared(9)} == taken(squares, 1)

        figures = squares.transport.figures
        assert wait_until(lambda: squares.transport.receive() is None and not figures.loads()[0])
        assert 0 == figures.counts()["ready"]


def test_forgotten_requests_are_not_asked_again():
    """A request that kills its worker is not given to the replacement once it is forgotten."""
    with squaring(workers=1, restarts=3) as squares:
        squares.send("deadly", "die")
        assert wait_until(lambda: squares.processes.dead(squares.active))
        squares.transport.forget(["deadly"])
        squares.expected = set()
        squares.send("well", (2, LENGTH))

        assert {"well": squared(2)} == taken(squares, 1)
        assert 1 == squares.transport.figures.sums()["restarts"]


def test_a_forgotten_answer_that_came_early_does_not_come():
    """An answer that was taken out of its ring before its request was forgotten frees its slot."""
    with squaring(workers=1) as squares:
        squares.send("forgotten", (1, LENGTH))
        assert wait_until(lambda: squares.transport.figures.unread)
        squares.transport.drain()
        squares.transport.forget(["forgotten"])
        squares.expected = set()
        squares.send("next", (2, LENGTH))

        assert {"next": squared(2)} == taken(squares, 1)
        assert 0 == squares.transport.figures.counts()["ready"]


def test_the_end_of_a_dismissed_worker_is_no_death():
    """A client that has told a worker to quit says that it has nothing more to give."""
    with squaring(workers=2, restarts=1) as squares:
        squares.active[0] = False
        squares.transport.tell(0, Order.QUIT)
        assert wait_until(lambda: not squares.processes.by_id[0].is_alive())
        squares.send("other", (3, LENGTH), worker=1)

        assert {"other": squared(3)} == taken(squares, 1)
        assert 0 == squares.transport.figures.sums()["restarts"]


def test_a_worker_that_leaves_is_replaced():
    """It costs no restart, and nothing is lost; its successor knows its note."""
    with squaring(workers=1, leaves_after=3) as squares:
        first = squares.processes.by_id[0].pid
        for number in range(8):
            squares.send(number, (number, LENGTH))

        assert {n: squared(n) for n in range(8)} == taken(squares, 8)
        assert first != squares.processes.by_id[0].pid
        assert 0 == squares.transport.figures.sums()["restarts"]
