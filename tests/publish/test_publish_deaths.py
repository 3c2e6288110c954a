"""Whoever dies or stops: nobody else loses a batch, gets wrong data, or waits for ever."""

import contextlib
import os
import re
import signal
import sys
import time
import warnings

import pytest

import shmloader
from shmloader.memory import limits, policy
from tests.publish.actors import (
    NAME,
    as_values,
    epochs_of,
    loader_of,
    publishes,
    reads,
    reads_by_word,
)

FEW_SLOTS = {"slots": 4}
AWAITED = "wait for the one with pid"


@pytest.mark.core(first=1)
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_subscriber_that_is_killed_costs_the_others_nothing(play, batches):
    """Its leases end with it, even if a child that it forked lives on."""

    def forks(say, hear):
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        say(child)
        return reads_by_word(say, hear)

    publisher = play(publishes, subscribers=2, options=FEW_SLOTS)
    reader, dies = play(reads, epochs=2), play(forks)
    child = dies.hear()
    for _ in range(batches):
        dies.ask()
    dies.end()

    assert epochs_of(loader_of(), 2) == reader.hear()
    assert publisher.hear() == "over"
    os.kill(child, signal.SIGKILL)


class Unreadable(Exception):
    """An error of which all that it does by itself is an error too."""

    def __str__(self):
        sys.exit("no text")

    def __reduce__(self):
        sys.exit("no pickle")


class UnreadableThere(Exception):
    """An error that is read again where it was pickled, and nowhere else."""

    def __reduce__(self):
        return read_in, (os.getpid(),)


def read_in(pid):
    if os.getpid() != pid:
        sys.exit("not here")
    return UnreadableThere("as it was")


def find_no_memory(batches):
    """Let this process find no memory for the next batch."""
    limits.available = lambda: limits.Available(1_000_000, "here")
    policy.SHORTAGE_S = policy.UNSEEN_S = 0.0


def lift(error):
    raise error


LEFT = "RuntimeError", r"has left its epoch after [56] of 12 batches"
# How a publisher that reads too leaves its epoch, and what its subscribers raise.
WAYS = {
    "raises": (lambda batches: lift(ValueError("rank 0 fails")), "ValueError", "rank 0 fails"),
    "has no words": (
        lambda batches: lift(Unreadable()),
        "RuntimeError",
        "(?s)has ended: .*Unreadable",
    ),
    "cannot be read": (
        lambda batches: lift(UnreadableThere("as it was")),
        *("RuntimeError", "(?s)has ended: .*UnreadableThere: as it was"),
    ),
    "has no memory": (find_no_memory, "OutOfSharedMemory", "of them in reserve"),
    "exits": (lambda batches: sys.exit(3), "RuntimeError", "(?s)has ended: .*SystemExit: 3"),
    "is interrupted": (
        lambda batches: lift(KeyboardInterrupt()),
        *("RuntimeError", "(?s)has ended: .*KeyboardInterrupt"),
    ),
    "breaks": (lambda batches: True, *LEFT),
    "closes": (lambda batches: batches.close(), *LEFT),
    "is killed": (lambda batches: os.kill(os.getpid(), signal.SIGKILL), "RuntimeError", "has died"),
}


@pytest.mark.core(first=1)
@pytest.mark.parametrize("is_with", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_that_is_left_has_no_end(play, way, is_with):
    """However its publisher leaves it, subscribers raise, and say why if it was said by `with`."""
    leave, kind, text = WAYS[way]

    def loops(batches):
        kept = []
        for batch in batches:
            kept.append(batch)
            if len(kept) == 5 and leave(batches):
                return

    def leaves(say, hear):
        batches = shmloader.publish(loader_of(), NAME, subscribers=1, consume=True)
        with batches if is_with else contextlib.nullcontext():
            loops(batches)
            hear()

    reader, publisher = play(reads), play(leaves)
    said, raised = reader.hear()
    publisher.end()

    wanted = (kind, text) if is_with or way == "is killed" else LEFT
    assert (wanted[0], True) == (said, bool(re.search(wanted[1], raised))), raised


def test_a_publisher_that_dies_is_an_error_at_once(play):
    """Its batches that are here stay as they were."""

    def keeps(say, hear):
        with shmloader.subscribe(NAME) as batches:
            iterator = iter(batches)
            kept = [next(iterator), next(iterator)]
            say([as_values(batch) for batch in kept])
            hear()
            try:
                for batch in iterator:
                    kept.append(batch)
            except RuntimeError as error:
                say(str(error))
            return [as_values(batch) for batch in kept]

    publisher = play(publishes, options=FEW_SLOTS)
    reader = play(keeps)
    first = reader.hear()
    publisher.end()
    reader.tell("go on")

    assert f"the publisher of {NAME!r}, process {publisher.pid}, has died" in reader.hear()
    kept = reader.hear()
    assert first == kept[:2]
    assert kept == epochs_of(loader_of(), 1)[0][: len(kept)]


@pytest.mark.thorough
def test_a_stopped_subscriber_holds_up_the_others_and_the_publisher_tells(play):
    """They wait, the publisher says for whom, and they go on with it; nothing is lost."""

    def tells(say, hear):
        with warnings.catch_warnings(record=True, action="always") as warned:
            publishes(say, hear, subscribers=2, options=FEW_SLOTS)
        return [str(each.message) for each in warned]

    publisher, reader, stops = play(tells), play(reads), play(reads_by_word)
    stops.ask()
    stops.send(signal.SIGSTOP)
    time.sleep(3)
    stops.send(signal.SIGCONT)
    own = epochs_of(loader_of(), 1)
    assert own[0][1:] == [stops.ask() for _ in own[0][1:]]
    stops.tell(None)

    assert [own, "left"] == [reader.hear(), stops.hear()]
    assert [f"{AWAITED} {stops.pid}" in text for text in publisher.hear()] == [True]


@pytest.mark.thorough
def test_a_timeout_gives_a_stopped_subscriber_up(play):
    """The others go on without it, and it is told when it goes on itself."""
    publisher = play(publishes, subscribers=2, options=FEW_SLOTS, timeout=0.5)
    reader, stops = play(reads), play(reads_by_word)
    stops.ask()
    stops.send(signal.SIGSTOP)
    assert epochs_of(loader_of(), 1) == reader.hear()
    stops.send(signal.SIGCONT)
    assert publisher.hear() == "over"

    kind, text = stops.ask()
    assert "RuntimeError" == kind
    assert "has disconnected this process" in text
