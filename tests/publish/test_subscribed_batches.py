"""A subscriber's batches are its own, as a trainer's are."""

import os
import pickle
import resource
import threading
import time

import pytest
import torch
from torch.utils.data import TensorDataset

import shmloader
from shmloader.device import to_device
from tests.device.standin import StandIn
from tests.publish.actors import (
    LONGEST_WAIT_S,
    NAME,
    Rows,
    as_values,
    epochs_of,
    loader_of,
    publishes,
    reads,
)

FEW_SLOTS = {"slots": 4}


class SlowRows(Rows):
    """Rows that take longer than any test."""

    def __getitem__(self, index):
        time.sleep(LONGEST_WAIT_S)


THREADS = 3


def published():
    """Publish to one other process, and to this one."""
    return shmloader.publish(
        loader_of(**FEW_SLOTS), NAME, subscribers=1, consume=True, timeout=LONGEST_WAIT_S
    )


def closed(batches):
    """Close on this thread what others wait for. Returns the errors there."""
    iterator, raised = iter(batches), []

    def reads_on():
        try:
            next(iterator)
        except RuntimeError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=reads_on, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    batches.close()
    for thread in threads:
        thread.join(LONGEST_WAIT_S)
        assert not thread.is_alive()
    return raised


@pytest.mark.thorough
def test_close_on_another_thread_ends_a_wait(play):
    """Of the process that publishes, and of one that subscribes; each thread is told."""
    closer = play(lambda say, hear: closed(shmloader.subscribe(NAME)))
    loader = loader_of(SlowRows(), **FEW_SLOTS)
    raised = closed(shmloader.publish(loader, NAME, subscribers=1, consume=True))

    assert [THREADS] * 2 == [len(raised), len(closer.hear())]
    assert all(" closed" in text for text in raised)


def test_a_forked_child_of_the_publisher_ends_nothing(play):
    """Whatever it drops or closes at its exit, epoch and publication are its parent's."""
    reader = play(reads)
    with published() as batches:
        iterator = iter(batches)
        found = [as_values(next(iterator))]
        child = os.fork()
        if child == 0:
            del iterator
            batches.close()
            os._exit(0)
        assert (child, 0) == os.waitpid(child, 0)
        found += map(as_values, iterator)

    assert [epochs_of(loader_of(), 1)] * 2 == [[found], reader.hear()]


@pytest.mark.thorough
def test_stats_and_report_are_of_this_process(play):
    """What came here is counted here, and said in a line."""

    def counts(say, hear):
        with shmloader.subscribe(NAME) as batches:
            for batch in batches:
                pickle.dumps(torch.clone(batch[0]))
            stats = batches.stats()
            held = len(batches.held())
            del batch
            return len(batches), stats.batches, stats.epochs[-1].batches, held, batches.report()

    publisher = play(publishes)
    reader = play(counts)

    *numbers, report = reader.hear()
    assert [12, 12, 12, 1] == numbers
    assert "to copies of 12 batches" in report
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_batches_arrive_on_a_device(play):
    """They are copied on from this process's own slots, ahead of the step."""

    def copies(say, hear):
        torch.set_num_threads(1)  # torch's threads are not in a forked child
        backend = StandIn()
        to_device.backend_for = lambda device: backend
        found = []
        with shmloader.subscribe(NAME, device="cuda") as batches:
            for _ in range(2):
                found.append([])
                for batch in batches:
                    found[-1].append(as_values(batch))
            copied = sum(batches.stats().copied.values())
        return found, copied, backend.faults

    publisher = play(publishes)
    reader = play(copies)

    assert (epochs_of(loader_of(), 2), 24, []) == reader.hear()
    assert publisher.hear() == "over"


@pytest.mark.thorough
def test_no_page_fault_a_batch(play):
    """Batches are copied into memory that is warm: later epochs touch no new page."""

    def counts(say, hear):
        torch.set_num_threads(1)
        found = []
        with shmloader.subscribe(NAME) as batches:
            for _ in range(8):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                last = [int(values[0, -1]) for (values,) in batches]
                found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return last, found

    large = TensorDataset(torch.arange(40.0).repeat_interleave(300_000).reshape(40, 300_000))
    publisher = play(
        publishes,
        dataset=large,
        options={"batch_size": 1, "shuffle": False, "persistent_workers": True},
    )
    last, faults = play(counts).hear()

    assert [*range(40)] == last
    # In any epoch a busy kernel may take pages back; one a batch would be 40 in each.
    assert faults[0] > 40 > min(faults[1:]), faults
    assert publisher.hear() == "over"
