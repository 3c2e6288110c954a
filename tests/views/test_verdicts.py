"""What `top` says limits a loop: the same as the loop's own report, seen from outside."""

import multiprocessing
import os
import threading
import time
from dataclasses import replace

import pytest
import torch

from shmloader import DataLoader
from shmloader.cli.attach.trainers import find
from shmloader.cli.top.verdicts import report_of, verdict
from shmloader.processes import scheduling
from tests.helpers.datasets import Computed, Iterated
from tests.helpers.programs import wait_until


def sleepy(seconds, released=None):
    """Rows that take a while; with an event, one comes behind it."""

    def row(index):
        time.sleep(seconds)
        if released is not None and index == 240:
            released.wait()
        return torch.full((4,), index)

    return Computed(1600, row)


def waited_for(loader):
    """What is seen of a loader whose trainer waits for the row that does not come."""
    seen = looked_at(loader._service.pool.number)
    is_there = any(each.index == 240 for each in seen.workers) and seen.trainer == "waiting"
    return seen if is_there else None


def looked_at(number):
    """What is seen of a loader of this process."""
    return next(each for each in find(os.getpid()).loaders if each.loader == number)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cause", "seconds", "step_s", "options"),
    [
        ("fetching", 0.003, 0.001, {"num_workers": 2}),
        ("step", 0.0, 0.01, {"num_workers": 2}),
        ("held", 0.004, 0.002, {"num_workers": 6, "slots": 3}),
    ],
)
@pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")  # of so few slots
def test_the_verdict_is_that_of_the_report(cause, seconds, step_s, options):
    """From outside the cause and the advice are those that the trainer would get."""
    with DataLoader(sleepy(seconds), batch_size=4, **options) as loader:
        for _ in range(10):  # on a machine with other work another cause may be true
            inside, seen = looked_at_after(loader, step_s)
            if inside.cause == cause == report_of(seen).cause:  # read one after the other
                break

    assert cause == inside.cause == report_of(seen).cause
    assert verdict(seen).startswith(f"{cause}: the training loop waits ")
    assert options["num_workers"] == seen.plate.workers
    assert options.get("slots") == seen.plate.setting.chosen_slots


def looked_at_after(loader, step_s):
    """Iterate for two hundred steps. Returns the report, and what is seen from outside."""
    for number, batch in enumerate(loader):
        del batch
        time.sleep(step_s)
        if number == 200:
            break
    return loader.report(), looked_at(loader._service.pool.number)


@pytest.mark.parametrize(
    ("dataset", "options", "is_dynamic", "may_be_dynamic"),
    [
        (sleepy(0.0), {}, False, True),
        (sleepy(0.0), {"assignment": "dynamic"}, True, True),
        (Iterated(lambda: range(100)), {}, False, False),
        (sleepy(0.0), {"fetch_threads": 1}, False, True),
    ],
    ids=["cycle", "dynamic", "stream", "threads"],
)
def test_the_assignment_is_seen(dataset, options, is_dynamic, may_be_dynamic):
    """Who looks from outside knows the assignment, and if "dynamic" may be advised."""
    with DataLoader(dataset, num_workers=1, **options) as loader:
        next(iter(loader))
        plate = looked_at(loader._service.pool.number).plate

    assert is_dynamic == (plate.setting.assignment == "dynamic")
    assert may_be_dynamic == plate.setting.may_be_dynamic


@pytest.mark.thorough
def test_a_workers_sleep_is_no_computing(monkeypatch):
    """Of a long life a worker ran for a hundredth: it did so for its last batches too."""
    ten_s, now_s = 10**10, time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(scheduling, "scheduled_ns", lambda pid: (ten_s, ten_s))
    monkeypatch.setattr(time, "clock_gettime", lambda _: now_s + 1000)
    with DataLoader(sleepy(0.005), batch_size=4, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(24):
            next(batches)
            time.sleep(0.001)
        facts = report_of(looked_at(loader._service.pool.number)).facts

    # The kernel's two numbers alone would have it compute and wait for cores all the time.
    assert facts["worker_cpu_share"] < 0.1
    assert facts["delayed_share"] < 0.1


@pytest.mark.thorough
def test_a_halt_is_no_fast_loop(monkeypatch):
    """A loop that was fast and waits for one batch now is not said to need no faster data."""
    released = multiprocessing.Event()
    with DataLoader(sleepy(0.0, released), batch_size=4, num_workers=2) as loader:
        iterator, asked = iter(loader), time.monotonic()
        next(iterator)
        # Together longer than the start took, on any machine: a report on a start says no more.
        step_s = max(0.001, (time.monotonic() - asked) / 20)
        for _ in range(59):
            time.sleep(step_s)
            next(iterator)
        waiting = threading.Thread(target=next, args=(iterator,))
        waiting.start()
        seen = wait_until(lambda: waited_for(loader))
        released.set()
        waiting.join()
    monkeypatch.setattr("shmloader.cli.top.verdicts._STALL_S", 0.0)
    before = float((seen.records["returned_ns"] - seen.records["asked_ns"]).max()) / 1e9
    (making,) = [each.worker for each in seen.workers if each.ticket == 60]

    stalled = verdict(replace(seen, since_s=before * 3))
    assert stalled.startswith("the training loop has waited ")
    assert stalled.endswith(f"; worker {making} has it in hand (fetching)")
    assert verdict(replace(seen, since_s=before)) != stalled
    of_a_pool = verdict(replace(seen, since_s=before * 3, epoch=0))
    assert of_a_pool.startswith("the program has waited ")
    cause = report_of(seen).cause  # None: on a busy machine workers may take most of it to start
    assert cause is None or cause in verdict(replace(seen, since_s=before))
