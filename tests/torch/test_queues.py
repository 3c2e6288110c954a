"""What torch's scheduling takes for its queues and its event, on a transport that only counts."""

from types import SimpleNamespace

import pytest

from shmloader.trainer.queues import DataQueue, DoneEvent, IndexQueue


class Transport:
    """Tasks and a transport that note all calls."""

    def __init__(self, untaken=0, ready=0):
        self.ready = ready
        self.told = []
        self.stops = 0
        self.ledger = SimpleNamespace(stop=self._stop)
        self.requests = SimpleNamespace(untaken=lambda worker: untaken + worker)

    def put(self, worker, message):
        self.told.append((worker, message))

    def _stop(self):
        self.stops += 1


def test_messages_go_to_the_queues_worker():
    """Messages in a worker's queue reach the transport in order, with the worker's id."""
    transport = Transport()
    first, second = IndexQueue(transport, transport, 0), IndexQueue(transport, transport, 1)
    first.put((0, [1, 2]))
    second.put(None)
    first.put((1, [3]))

    assert [(0, (0, [1, 2])), (1, None), (0, (1, [3]))] == transport.told


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_queue_is_empty_when_nothing_waits(count):
    """Both queues report how many messages wait, and are empty at zero."""
    transport = Transport(untaken=count, ready=count)
    for queue in (IndexQueue(transport, transport, 0), DataQueue(transport)):
        assert (count, count == 0) == (queue.qsize(), queue.empty())


def test_each_index_queue_counts_its_own_worker():
    """A worker's queue reports the messages of that worker."""
    transport = Transport(untaken=2)

    assert [2, 3, 4] == [IndexQueue(transport, transport, worker).qsize() for worker in range(3)]


def test_setting_the_event_stops_the_ledger():
    """The event is clear until torch sets it, and setting it tells all workers to leave."""
    transport = Transport()
    event = DoneEvent(transport)
    assert (False, 0) == (event.is_set(), transport.stops)

    event.set()

    assert (True, 1) == (event.is_set(), transport.stops)
