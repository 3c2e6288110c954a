"""Limits of healing: the budget of restarts, timeouts, messages, answers without a snapshot."""

import contextlib
import itertools
import multiprocessing
import os
import re
import signal
import time

import pytest
import torch

from shmloader import DataLoader, OutOfSharedMemory, RestartWarning
from shmloader.trainer.client import describe_request
from shmloader.transport import healing
from shmloader.worker import worker as worker
from tests.helpers.healing import epoch, healed, open_loader, undisturbed
from tests.helpers.mortal import WAYS_TO_HANG, Mortal, MortalStream, Script
from tests.helpers.programs import wait_until
from tests.helpers.warned import recorded

# The option


def test_without_restarts_nothing_is_added(tmp_path):
    """With restarts=0 there is no nursery, no snapshot, and no request is kept."""
    with open_loader(DataLoader, Mortal(Script(tmp_path))) as loader:
        iterator = iter(loader)
        next(iterator)
        progress = iterator._transport.ledger.progress

        assert set(iterator._workers) == set(multiprocessing.active_children())
        assert [None, None] == [past.latest for past in progress.pasts]
        assert ({}, {}) == (iterator._transport.requests.unanswered, progress.recalled)


# The budget


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("restarts", [2, 3])
def test_batch_that_kills_everybody(tmp_path, restarts, persistent):
    """One death after the last restart is an error that names the samples; other workers go on."""
    script = Script(tmp_path, *["drawn 10"] * (restarts + 1), later=["item 4"])
    options = {"restarts": restarts, "persistent_workers": persistent}
    with open_loader(DataLoader, Mortal(script), **options) as loader:
        with script.held_back():
            iterator = iter(loader)
            first = [next(iterator).tolist() for _ in range(3)]
        with recorded() as warned, pytest.raises(RuntimeError) as raised:
            next(iterator)
        rest = [batch.tolist() for batch in iterator]
        script.arm()
        with pytest.warns(RestartWarning):
            later = epoch(loader)
        count = loader.stats().restarts
    expected, again = undisturbed(Mortal(Script(tmp_path)), plan=(None, None))

    assert ([], restarts) == (script.left, len(warned))
    assert re.match(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly", str(raised.value))
    assert "was killed by SIGKILL with dataset indices [9, 10, 11] in hand" in str(raised.value)
    assert f"all {restarts} restarts of this epoch are used" in str(raised.value)
    assert raised.value.__cause__ is None  # not that a wait of the loader's own has ended
    # The dead worker's batch in hand is lost; the rest of its share is now the other's.
    assert (expected[:3], [expected[4], expected[6]]) == (first, rest[:2])
    assert [21, 22, 23] == [sample[0] for sample in rest[2]]
    assert restarts + 1 + persistent == count  # in the next epoch the dead worker is replaced too
    if persistent:
        again, later = numbers(again), numbers(later)  # the workers have drawn otherwise
    assert again == later


def numbers(batches):
    return [[sample[0] for sample in batch] for batch in batches]


@pytest.mark.thorough
@pytest.mark.parametrize("are_together", [True, False])
def test_deaths_that_come_together_cost_one_restart(tmp_path, monkeypatch, are_together):
    """What ends several workers at once is said as such; deaths of all workers count otherwise."""
    monkeypatch.setattr(healing, "TOGETHER_S", healing.TOGETHER_S if are_together else 0)
    (expected,) = undisturbed(Mortal(Script(tmp_path)))
    batches = []
    with open_loader(DataLoader, Mortal(Script(tmp_path)), restarts=1) as loader:
        iterator = iter(loader)
        batches.append(next(iterator).tolist())
        with recorded() as warned, contextlib.suppress(RuntimeError):
            for worker in (0, 1):
                os.kill(iterator._workers[worker].pid, signal.SIGKILL)
                assert wait_until(lambda worker=worker: not iterator._workers[worker].is_alive())
                if not are_together:
                    iterator._running.processes.heal_all([True, True])
            batches += [batch.tolist() for batch in iterator]

    said = [str(warning.message).rpartition("(")[2] for warning in warned]
    if are_together:
        assert ["restart 1 of 1 in this epoch, for 2 that died together)"] * 2 == said
        assert expected == batches
    else:
        assert ["restart 1 of 1 in this epoch)"] == said
        assert len(batches) < len(expected)


@pytest.mark.thorough
def test_all_slots_of_one_that_is_given_up_are_free(tmp_path):
    """The requests of a dead worker that is not replaced occupy no slot, resent ones included."""
    script = Script(tmp_path, "item 10", "item 10")
    with open_loader(DataLoader, Mortal(script), restarts=1, slots=4) as loader:
        with script.held_back():
            iterator = iter(loader)
            for _ in range(3):
                next(iterator)
        with pytest.warns(RestartWarning), pytest.raises(RuntimeError):
            next(iterator)
        assert 4 == sum(1 for _ in iterator) + 1
        slots = loader.stats().slots

    assert 4 == slots["free"]


# Workers that hang


@pytest.mark.core(every=6)
@pytest.mark.parametrize("way", WAYS_TO_HANG)
@pytest.mark.parametrize("kind", [Mortal, MortalStream])
def test_hung_worker_is_replaced(tmp_path, way, kind):
    """With a timeout, a worker that lets the trainer wait for so long is killed and replaced."""
    point = "item 4" if kind is Mortal else "item 1.4"
    script = Script(tmp_path, point, way=way)
    expected = undisturbed(kind(Script(tmp_path)))
    with (
        open_loader(DataLoader, kind(script), restarts=1, timeout=2) as loader,
        pytest.warns(RestartWarning, match=r"was killed after it hung for timeout=2 s"),
    ):
        assert expected == [epoch(loader)]


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [0, 1])
def test_timeout_without_a_restart_is_torchs_error(tmp_path, restarts):
    """
    Without restarts left, a worker that hangs is torch's error, and is left alone.

    If restarts were asked for, it says what hangs.
    """
    script = Script(tmp_path, "item 3", "item 3", way="sleep")
    with open_loader(DataLoader, Mortal(script), restarts=restarts, timeout=1) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError) as raised:
            if restarts:
                with pytest.warns(RestartWarning):
                    next(iterator)
            next(iterator)
        hung = iterator._workers[1]
        assert hung.is_alive()
    said = "DataLoader timed out after 1 seconds"
    if restarts:
        said += (
            f": DataLoader worker 1 (pid {hung.pid}) hangs with dataset indices [3, 4, 5] in hand, "
            "and all 1 restarts of this epoch are used: if it was this batch each time, check "
            "these samples; otherwise raise restarts"
        )

    assert said == str(raised.value)


@pytest.mark.parametrize("way", WAYS_TO_HANG)
@pytest.mark.parametrize(
    "given",
    [{}, {"assignment": "dynamic"}, {"num_workers": "auto", "min_workers": 2, "max_workers": 2}],
)
def test_workers_that_never_begin_are_replaced(tmp_path, way, given):
    """Also if none is there that a request could be bound to; others may begin later, or never."""
    script = Script(tmp_path, "init", "init", way=way)
    options = {**given, "seed_by": "batch", "restarts": 2, "timeout": 2}
    options["worker_init_fn"] = lambda worker: script("init")
    with (
        open_loader(DataLoader, Mortal(script), **options) as loader,
        pytest.warns(RestartWarning, match=r"was killed after it hung for timeout=2 s"),
    ):
        batches = epoch(loader)

    assert list(range(24)) == [number for batch in numbers(batches) for number in batch]


@pytest.mark.thorough
@pytest.mark.parametrize("assignment", ["cycle", "dynamic"])
def test_a_start_that_hangs_is_said(tmp_path, assignment):
    """Of a worker that has not begun, the error blames no samples."""
    script = Script(tmp_path, *["init"] * 9, way="sleep")
    options = {"assignment": assignment, "seed_by": "batch", "restarts": 1, "timeout": 1}
    options["worker_init_fn"] = lambda worker: script("init")
    with open_loader(DataLoader, Mortal(script), **options) as loader:
        iterator = iter(loader)
        with pytest.warns(RestartWarning), pytest.raises(RuntimeError) as raised:
            next(iterator)
        hung = iterator._workers[0].pid

    assert (
        f"DataLoader timed out after 1 seconds: DataLoader worker 0 (pid {hung}) has not begun, "
        "and all 1 restarts of this epoch are used: see what its start waits for, or raise timeout"
    ) == str(raised.value)


@pytest.mark.thorough
def test_slow_workers_are_not_hung(tmp_path):
    """The timeout starts anew with every answer: many slow batches are no hang."""

    class Slow(Mortal):
        def __getitem__(self, index):
            time.sleep(0.1)
            return super().__getitem__(index)

    slow = Slow(Script(tmp_path), count=18)
    expected = undisturbed(Mortal(Script(tmp_path), count=18))

    assert (expected, 0, 0) == healed(slow, timeout=1)


# Messages


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (None, "no batch"),
        ([3, 1, 2], "dataset indices [3, 1, 2]"),
        ((3, "x"), "dataset indices [3, 'x']"),
        (7, "dataset index 7"),
        ("key", "dataset index 'key'"),
        ([torch.tensor(3)], "dataset indices [tensor(3)]"),
        ([None] * 5, "the next 5 samples of its iterable dataset"),
        (list(range(20)), f"dataset indices {str(list(range(16)))[:-1]}, and 4 more]"),
    ],
)
def test_requests_are_described(index, words):
    """A message names the request, and the first of many indices."""
    assert words == describe_request(index)


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [(None,), (2, None)])
def test_warnings_that_are_errors_lose_nothing(tmp_path, plan):
    """If warnings raise, the call after one goes on with the batch that was waited for."""
    script = Script(tmp_path, "item 0", "item 3", "drawn 9", "item 23")
    expected = undisturbed(Mortal(Script(tmp_path)), plan=plan, persistent_workers=True)
    options = {"restarts": 9, "persistent_workers": True}
    raised = 0

    def insist(action):
        nonlocal raised
        while True:
            try:
                return action()
            except RestartWarning:  # conftest's filters make every warning an error
                raised += 1

    with open_loader(DataLoader, Mortal(script), **options) as loader:
        epochs = []
        for stop_after in plan:
            iterator = insist(lambda: iter(loader))
            batches = iter(lambda it=iterator: insist(lambda: next(it, None)), None)
            epochs.append([batch.tolist() for batch in itertools.islice(batches, stop_after)])
        restarts = loader.stats().restarts

    assert (expected, 4) == (epochs, restarts)
    assert 1 < raised <= 4  # two that died at once raise one after the other, as one


@pytest.mark.thorough
def test_a_worker_that_never_has_a_batch_is_replaced():
    """Each epoch has fewer batches than workers; what its replacement begins with stays small."""
    with open_loader(DataLoader, range(3), restarts=1, persistent_workers=True) as loader:
        epochs = [epoch(loader) for _ in range(9)]
        process = loader._iterator._workers[1]
        told_again = loader._iterator._transport.ledger.progress.pasts[1].seeds
        process.kill()
        assert wait_until(lambda: not process.is_alive())
        with recorded() as warned:
            epochs += [epoch(loader) for _ in range(9)]

    assert [[[0, 1, 2]]] * 18 == epochs
    assert 1 == sum(each.category is RestartWarning for each in warned)
    assert (None,) == told_again


# Answers without room for a snapshot


@pytest.mark.thorough
def test_answer_without_room_for_a_snapshot(tmp_path, monkeypatch):
    """A worker that could not save its position cannot be replaced; the error says so."""
    write = worker.Worker._snapshot

    def write_if_there_is_room(self):
        if self._spec.worker_id == 1:
            raise OutOfSharedMemory("no room")
        return write(self)

    monkeypatch.setattr(worker.Worker, "_snapshot", write_if_there_is_room)
    # Worker 1's third batch, which is requested after its first has arrived.
    script = Script(tmp_path, "item 15")
    with open_loader(DataLoader, Mortal(script), restarts=9) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(OutOfSharedMemory, match="no room"):
            next(iterator)
        with pytest.raises(
            RuntimeError, match="does not contain the position where a replacement could continue"
        ):
            while True:
                with contextlib.suppress(OutOfSharedMemory):
                    next(iterator)


@pytest.mark.thorough
def test_end_without_room_for_a_snapshot(tmp_path, monkeypatch):
    """No error replaces an end, even if its snapshot had no room."""
    write = worker.Worker._snapshot

    def write_if_there_is_room(self):
        if self._position.is_exhausted:
            raise OutOfSharedMemory("no room")
        return write(self)

    monkeypatch.setattr(worker.Worker, "_snapshot", write_if_there_is_room)
    dataset = MortalStream(Script(tmp_path))

    assert (undisturbed(dataset), 0, 0) == healed(dataset)
