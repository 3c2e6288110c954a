"""
SHMLOADER_DEBUG=1: native code that uses a slot at the wrong time is named, and nothing else is.
"""

import ctypes
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal

import numpy
import pytest
import torch
from torch.utils.data import default_collate

import shmloader
from shmloader import DataLoader
from shmloader.core import look_for_children
from shmloader.errors import WorkerBroken
from tests.helpers.datasets import Computed, Numbered, batch
from tests.helpers.threads import on_a_thread
from tests.memory import (
    test_aliases,
    test_children,
    test_inherited,
    test_retention,
    test_stretches,
)

SIZE = 4

# Late uses, each in a child. Tickets 0 to 7 go to slots 0 to 7: none is used twice before all were.


def open_loader():
    return DataLoader(Numbered(80, 6), SIZE, num_workers=1, slots=8)


def draw(batches, count):
    """Draw some batches and return the next: no name here refers to one afterwards."""
    for _ in range(count):
        next(batches)
    return next(batches)


def release_at_once(batches):
    return draw(batches, 3).data_ptr()


def release_on_another_thread(batches):
    box = [draw(batches, 3)]
    pointer = box[0].data_ptr()
    on_a_thread(box.clear)
    return pointer


def release_a_view_of_a_view(batches):
    rows = memoryview(draw(batches, 3).numpy()[1:])
    return numpy.asarray(rows).ctypes.data - 48


def release_by_sharing(batches):
    tensor = draw(batches, 3)
    array = tensor.numpy()
    tensor.share_memory_()
    # The array is alive, but its memory was released when torch moved the tensor.
    alive.append(array)
    return array.ctypes.data


alive = []  # what a child does not drop
RELEASES = [
    release_at_once,
    release_on_another_thread,
    release_a_view_of_a_view,
    release_by_sharing,
]
USES = {
    "read": lambda address: ctypes.string_at(address, 1),
    "write": lambda address: ctypes.memset(address, 1, 1),
}
LATE_USES = [(each, "read") for each in RELEASES] + [(release_at_once, use) for use in [*USES][1:]]


def start():
    """Begin to iterate; loaders of earlier calls are dropped."""
    made = open_loader()
    alive[:] = [made, iter(made)]
    return alive[1]


def in_a_child(act):
    """
    Run a function in a forked child that guards its segments.

    Returns:
        How the child ended, and what it wrote to stderr.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        os.dup2(write_end, 2)
        os.environ["SHMLOADER_DEBUG"] = "1"
        try:
            act()
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as errors:
        text = errors.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


LATE = "shmloader: slot 3 was used after its release, at byte 40 of the batch of ticket 3, the last"


@pytest.mark.parametrize(
    ("release", "use"), LATE_USES, ids=[f"{made.__name__}-{use}" for made, use in LATE_USES]
)
def test_late_use_faults_and_is_named(release, use):
    """A raw pointer used after the release faults there, and the message names ticket and slot."""
    status, errors = in_a_child(lambda: USES[use](release(start()) + 40))

    assert -signal.SIGSEGV == status
    assert errors.startswith(LATE)


# Uses of a slot that another batch has by then, the trainer's writes beyond a batch and handlers of
# faults are in forks_guard.c, writes behind a batch that is in flight in ladder_guard.c.


# Writes beyond a batch in the worker


@pytest.fixture
def guarded(monkeypatch):
    """Guard the segments that this test makes."""
    monkeypatch.setenv("SHMLOADER_DEBUG", "1")
    yield
    gc.collect()
    multiprocessing.active_children()
    look_for_children()  # closes the pipes that tell of children


def overrun(tensor, count=1):
    """Write beyond the end, like native code with a wrong length."""
    ctypes.memset(tensor.data_ptr() + tensor.nbytes, 0x55, count)


class OverrunIn:
    """
    A collate function that writes beyond the end of batch `number`, at a moment of its making.
    """

    def __init__(self, number, moment):
        self.number = number
        self.moment = moment

    def __call__(self, samples):
        if self.moment == "empty":
            made = torch.stack(samples, out=shmloader.empty((SIZE, 6), torch.float64))
        else:
            made = default_collate(samples)
        if samples[0][0] == SIZE * self.number * 1000:
            overrun(made, 64 if self.moment == "collated" else 1)
        if self.moment == "between":
            return made, shmloader.empty((100,), torch.float64).fill_(1)
        return made


def tensor_of(made):
    return made[0] if isinstance(made, (tuple, list)) else made


@pytest.mark.core(first=1)
@pytest.mark.parametrize("moment", ["empty", "collated", "between"])
def test_overrun_in_the_worker_is_that_batchs_error(guarded, moment):
    """A worker's write beyond a batch is an error with worker, ticket and slot; others pass."""
    collate = OverrunIn(3, moment)
    with DataLoader(Numbered(40, 6), SIZE, num_workers=1, slots=8, collate_fn=collate) as loader:
        batches, right = iter(loader), []
        for _ in range(3):
            right.append(tensor_of(next(batches)).clone())
        message = r"worker 0, ticket 3, slot 3: something was written beyond the end of the batch"
        with pytest.raises(WorkerBroken, match=message):
            next(batches)
        right += [tensor_of(made).clone() for made in batches]

    numbers = [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert all(torch.equal(batch(n, SIZE, 6), made) for n, made in zip(numbers, right, strict=True))


# No false alarm


def case(test, *arguments):
    """Another module's test and what it is called with."""
    words = [getattr(argument, "__name__", str(argument)) for argument in arguments]
    return pytest.param(test, arguments, id="-".join([test.__name__[5:], *words]))


RIGHTFUL = [
    *(
        pytest.param(test_aliases.test_slot_lives_as_long_as_an_alias, (keeper, None), id=name)
        for name, keeper in test_aliases.KEEPERS.items()
    ),
    case(test_aliases.test_a_cache_of_everything_never_runs_out_of_slots, 2, 2, 6),
    case(test_children.test_a_daemon_reads_held_batches_as_long_as_it_lives),
    case(test_children.test_a_child_of_a_worker_reads_what_the_worker_made),
    case(test_retention.test_zero_copy_again_after_release, True),
    case(test_retention.test_spills_are_counted),
    case(test_retention.test_streams_on_fewer_slots_than_workers, True),
    case(test_stretches.test_kept_leaves_are_torchs, 1),
    case(test_stretches.test_memory_that_no_leaf_uses_is_not_kept),
    *(
        case(test_inherited.test_a_child_forked_in_mid_epoch_takes_nothing, way, {})
        for way in test_inherited.WAYS[-2:]
    ),
]


@pytest.mark.core(first=1)
@pytest.mark.filterwarnings("ignore::shmloader.RetentionWarning")
@pytest.mark.parametrize(("test", "arguments"), RIGHTFUL)
def test_rightful_uses_pass(guarded, test, arguments):
    """Correct uses of batches, as in other tests, are not disturbed by the guard."""
    test(*arguments)


@pytest.mark.thorough
def test_batches_that_end_with_a_page_pass(guarded):
    """A batch with no room for all of its canary, or for any of it, is delivered all the same."""
    lengths = list(range(3900, 4100))
    dataset = Computed(len(lengths), lambda i: torch.full((lengths[i],), i, dtype=torch.uint8))
    with DataLoader(dataset, batch_size=None, num_workers=1) as loader:
        seen = [len(made) for i, made in enumerate(loader) if bool((made == i).all())]

    assert lengths == seen


@pytest.mark.parametrize("value", ["yes", "2", "true"])
def test_a_value_that_means_nothing_is_refused(monkeypatch, value):
    """A mistyped switch is an error that lists the choices, not a guard that is off."""
    monkeypatch.setenv("SHMLOADER_DEBUG", value)
    loader = DataLoader(Numbered(8), num_workers=1)

    with pytest.raises(ValueError, match=f"SHMLOADER_DEBUG={value}: choose 0 or 1"):
        iter(loader)


@pytest.mark.parametrize("value", ["", "0"])
def test_off_is_off(monkeypatch, value):
    """An empty variable and 0 make no guard: the slots stay readable."""
    monkeypatch.setenv("SHMLOADER_DEBUG", value)
    with DataLoader(Numbered(8), num_workers=1) as loader:
        batches = iter(loader)
        pointer = next(batches).data_ptr()
        next(batches)

        assert 1 == len(ctypes.string_at(pointer, 1))
