"""Whoever dies or stops: nobody else loses a batch, gets wrong data, or waits for ever."""

import os
import signal
import time
import warnings

import pytest

import shmloader
from tests.publish.actors import (
    NAME,
    Rows,
    as_values,
    epochs_of,
    loader_of,
    publishes,
    reads,
    reads_by_word,
)

# On a machine that others use, anybody may be late.
pytestmark = pytest.mark.filterwarnings("ignore:.*all .*wait for the ")

FEW_SLOTS = {"slots": 4}
AWAITED = "wait for the one with pid"


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


def test_all_subscribers_may_die(play):
    """Then there is nothing to publish for."""
    publisher = play(publishes, subscribers=2, options=FEW_SLOTS)
    readers = [play(reads_by_word) for _ in range(2)]
    for reader in readers:
        reader.ask()
    for reader in readers:
        reader.end()

    assert publisher.hear() == "over"


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
def test_a_stopped_subscriber_holds_up_the_others_and_they_are_told(play):
    """They wait, hear for whom, and go on with it; nothing is lost."""

    def tells(say, hear):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = reads(say, hear)
        say(found)
        return [str(each.message) for each in warned]

    publisher = play(publishes, subscribers=2, options=FEW_SLOTS)
    reader, stops = play(tells), play(reads_by_word)
    stops.ask()
    stops.send(signal.SIGSTOP)
    time.sleep(3)
    stops.send(signal.SIGCONT)
    own = epochs_of(loader_of(), 1)
    assert own[0][1:] == [stops.ask() for _ in own[0][1:]]
    stops.tell(None)

    assert own == reader.hear()
    assert [f"{AWAITED} {stops.pid}" in text for text in reader.hear()] == [True]
    assert ["left", "over"] == [stops.hear(), publisher.hear()]


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
    assert "has given this process up" in text


def test_a_torn_copy_is_never_handed_out(play):
    """One that was given up while it copied finds out before it uses what it has copied."""

    def copies_slowly(say, hear):
        from shmloader.publishing import inbox

        put = inbox.Inbox.put

        def waits(self, posted, descriptor, check):
            def checked():
                say("copied")
                hear()
                check()

            put(self, posted, descriptor, checked)

        inbox.Inbox.put = waits
        return reads(say, hear)

    publisher = play(publishes, subscribers=2, options=FEW_SLOTS, timeout=0.5)
    reader, stops = play(reads, epochs=2), play(copies_slowly)
    assert stops.hear() == "copied"

    assert epochs_of(loader_of(), 2) == reader.hear()
    stops.tell("go on")
    kind, text = stops.hear()
    assert ("RuntimeError", True) == (kind, "has given this process up" in text)
    assert publisher.hear() == "over"


class Dies(Rows):
    """Rows, at one of which a worker kills itself once."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        if index == 17 and not os.path.exists(self.path):
            open(self.path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_worker_that_dies_is_replaced(play, tmp_path):
    """With restarts nobody loses a batch."""

    def heals(say, hear, **arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", shmloader.RestartWarning)
            return publishes(say, hear, **arguments)

    publisher = play(heals, subscribers=2, dataset=Dies(tmp_path / "died"), options={"restarts": 2})
    readers = [play(reads) for _ in range(2)]

    assert [epochs_of(loader_of(), 1)] * 2 == [reader.hear() for reader in readers]
    assert publisher.hear() == "over"


def test_a_worker_that_dies_without_restarts_is_an_error_of_all(play, tmp_path):
    """It is torch's, as in a loader of one's own."""
    publisher = play(publishes, subscribers=2, dataset=Dies(tmp_path / "died"))
    readers = [play(reads) for _ in range(2)]

    for actor in (publisher, *readers):
        kind, text = actor.hear()
        assert ("RuntimeError", True) == (kind, "DataLoader worker" in text)
