"""pin_memory=True on a device: a batch is its slot, and the slot waits for the copies from it."""

import datetime
import errno
import gc
import random
import warnings
from types import SimpleNamespace

import pytest
import torch

from shmloader import DataLoader
from shmloader.core import is_capturing, locked_bytes
from shmloader.errors import RetentionWarning
from shmloader.memory import page_locks
from shmloader.pinning import captures, pinned_slots
from shmloader.stats.setting import in_use
from tests.conformance.made import Pair, Record
from tests.device.loaders import Images, all_kinds
from tests.helpers.copies import Child
from tests.helpers.segments import segment_files
from tests.helpers.warned import recorded


def loader_of(dataset=None, **options):
    options = {"batch_size": 2, "num_workers": 2, "pin_memory": True, **options}
    return DataLoader(Images() if dataset is None else dataset, **options)


def is_right(image, number):
    return bool((image == torch.tensor([2 * number, 2 * number + 1])[:, None, None]).all())


def all_locked(gpu, loader, count):
    """Iterate until every slot was locked, by holding some batches; so many were taken then."""
    iterator, held = iter(loader), []
    for _ in range(count):
        held = [*held[-6:], next(iterator)[0]]
        gpu.driver.finish()
    return iterator


@pytest.mark.thorough
def test_a_batch_is_its_slot(gpu):
    """Each large tensor is pinned, and nothing of it was copied; small ones may have moved."""
    with loader_of() as loader:
        for number, (images, labels) in enumerate(loader):
            assert gpu.driver.holds(images) and gpu.is_pinned(labels)
            assert is_right(images, number)
        assert {"in_place": 12} == loader.stats().copied
        assert 0 == loader.stats().spilled


@pytest.mark.thorough
@pytest.mark.parametrize("persistent", [False, True])
def test_slots_are_locked_once(gpu, persistent):
    """For all epochs of a loader."""
    with loader_of(persistent_workers=persistent) as loader:
        for _ in range(3):
            for images, _ in loader:
                del images
                gpu.driver.finish()
        slots = sum(loader.stats().slots.values())
        assert 0 < gpu.driver.ever_registered <= slots


@pytest.mark.parametrize("seed", range(3))
def test_a_slot_waits_for_the_copies_from_it(gpu, seed):
    """However early a batch is dropped, and whenever its copies end."""
    draw = random.Random(seed)
    arrived = []
    with loader_of(Images(60)) as loader:
        for images, labels in loader:
            arrived.append((gpu.copy(images), gpu.copy(labels)))
            del images, labels
            if draw.random() < 0.5:
                gpu.driver.finish(draw.randrange(3))
        gpu.driver.finish()
        copied = loader.stats().copied
    assert 30 == sum(copied.values()) and copied["in_place"] > 0
    assert all(is_right(images, number) for number, (images, _) in enumerate(arrived))
    assert [[2 * n, 2 * n + 1] for n in range(30)] == [each.tolist() for _, each in arrived]


@pytest.mark.thorough
def test_copies_that_never_end_keep_their_slots(gpu):
    """All other batches come, copied where no slot is left, and the last ones are right too."""
    gpu.driver.set(never=1)
    arrived = []
    told = pytest.warns(RetentionWarning, match="copies to a device may still read")
    with loader_of(Images(60)) as loader, told:
        for images, _ in loader:
            arrived.append(gpu.copy(images))
            del images
        copied = loader.stats().copied
        assert 0 < loader.stats().slots["fenced"] == copied["in_place"]
        assert 30 == copied["in_place"] + copied["pinned"]
        # Still in use, as the reports count them: nobody is to add others for them.
        slots = loader.stats().slots
        assert in_use(slots) == sum(slots.values()) - slots["spare"]
    gpu.driver.finish()
    assert all(is_right(images, number) for number, images in enumerate(arrived))


def graphs_of(gpu):
    """Make a class as `torch.cuda.CUDAGraph`."""

    class Graph:
        def capture_begin(self):
            gpu.driver.set(capturing=1)

        def capture_end(self):
            gpu.driver.set(capturing=0)

    return Graph


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*copies to a device may still read")
def test_nothing_is_asked_of_a_driver_while_a_graph_is_captured(gpu, monkeypatch):
    """Batches come, slots stay fenced, and go on afterwards."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graphs_of(gpu))
    with loader_of(Images(160)) as loader:
        iterator = all_locked(gpu, loader, 30)
        graph = torch.cuda.CUDAGraph()
        gpu.copy(next(iterator)[0])
        graph.capture_begin()
        try:
            for number in range(31, 60):
                images, _ = next(iterator)
                assert is_right(images, number)
                gpu.copy(images)
                del images
            assert 0 == gpu.driver.spoilt
            assert loader.stats().slots["fenced"] > 0
        finally:
            graph.capture_end()
        gpu.driver.finish()
        assert all(is_right(images, 60 + n) for n, (images, _) in enumerate(iterator))
        assert 0 == gpu.driver.spoilt
        assert loader.stats().slots["fenced"] <= 2


def test_a_graph_that_goes_ends_its_capture(gpu, monkeypatch):
    """As after an interrupt between the two calls: or nothing would be recorded any more."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graphs_of(gpu))
    captures.announce()
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    graph.capture_begin()
    other.capture_begin()
    other.capture_end()
    assert is_capturing()
    del graph
    assert not is_capturing()


def test_cuda_that_cannot_start_is_left_to_torch(monkeypatch):
    """As in a child of a process that uses it: batches are copied, and torch's error is theirs."""

    def init():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert not pinned_slots.may_lock()


@pytest.mark.thorough
@pytest.mark.parametrize("error", [2, 712])
def test_a_lock_that_is_refused_is_said_once(gpu, error):
    """Batches are copied then."""
    gpu.driver.set(refuses=error)
    with loader_of() as loader:
        with pytest.warns(UserWarning, match=f"cannot be page-locked .CUDA error {error}") as told:
            for number, (images, _) in enumerate(loader):
                assert gpu.is_pinned(images) and is_right(images, number)
        assert 1 == len(told)
        assert {"staged", "pinned"} >= set(loader.stats().copied)
        assert 12 == sum(loader.stats().copied.values())


def test_small_batches_are_copied(gpu):
    """Below a MiB that takes less than to lock and fence a slot."""
    with loader_of(Images(8, side=64)) as loader:
        assert all(gpu.is_pinned(images) for images, _ in loader)
        assert {"staged": 4} == loader.stats().copied
    assert 0 == gpu.driver.ever_registered


@pytest.mark.thorough
def test_a_batch_that_outlives_its_loader_keeps_its_lock(gpu):
    """The next call of any loader undoes it, once the copies from it are done."""
    with loader_of() as loader:
        images, _ = next(iter(loader))
    before = locked_bytes()
    assert before > 0 and gpu.driver.holds(images)
    there = gpu.copy(images)
    del images, loader
    with DataLoader(range(4), num_workers=1) as other:
        list(other)
        assert before == locked_bytes()
        gpu.driver.finish()
        list(other)
        assert 0 == locked_bytes()
    assert is_right(there, 0)


@pytest.mark.thorough
def test_no_destructor_calls_the_driver(gpu):
    """What a dropped loader leaves waits for the next call."""
    loader = loader_of()
    iterator = iter(loader)
    gpu.copy(next(iterator)[0])
    records, registered = gpu.driver.records, gpu.driver.registered
    del loader, iterator
    gc.collect()
    assert (records, registered) == (gpu.driver.records, gpu.driver.registered)
    page_locks.look_at_idle()
    gpu.driver.finish()
    page_locks.look_at_idle()
    assert 0 == gpu.driver.registered


@pytest.mark.thorough
def test_what_shares_memory_in_the_slot_is_pinned_apart(gpu):
    """As with torch, which pins each tensor by itself."""
    with loader_of(range(8), collate_fn=all_kinds) as loader:
        for number, batch in enumerate(loader):
            large, part = batch["large"], batch["slices"][1]
            tensors = (large, part, batch["small"], batch["pair"].x, batch["strided"])
            assert all(map(gpu.is_pinned, tensors))
            assert gpu.driver.holds(large) and not gpu.driver.holds(part)
            assert (large == 2 * number).all() and (part == 2 * number).all()
            part.zero_()
            assert (large == 2 * number).all()
            assert (batch["array"] == 2 * number).all()
            assert (600, 1000) == batch["strided"].shape
        assert 4 == loader.stats().copied["in_place"]


def met_again(samples):
    number = float(samples[0])
    pair = [torch.full((600, 600), number), torch.full((2,), number)]
    return {"pair": pair, "large": pair[0], "small": pair[1], "again": (pair, {"pair": pair})}


def met_again_in_a_pickle(samples):
    return {"date": datetime.date(2026, 1, 1), **met_again(samples)}


def all_tensors(batch):
    (first, second), (third, fourth) = batch["again"][0], batch["again"][1]["pair"]
    return [*batch["pair"], batch["large"], batch["small"], first, second, third, fourth]


@pytest.mark.core(first=1)
@pytest.mark.parametrize("collate", [met_again, met_again_in_a_pickle])
@pytest.mark.parametrize("where", [{}, {"SHMLOADER_PIN": "copy"}])
def test_a_tensor_that_is_met_again_is_pinned_apart(gpu, monkeypatch, where, collate):
    """As with torch: who changes labels that were the inputs changes the labels alone."""
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    with loader_of(range(8), collate_fn=collate) as loader:
        for number, batch in enumerate(loader):
            for tensor in all_tensors(batch):
                assert gpu.is_pinned(tensor) and (tensor == 2 * number).all()
                tensor.fill_(-1)


class Held:
    """A user's batch class, which pins what it holds."""

    def __init__(self, samples):
        self.inputs = self.labels = torch.full((600, 600), float(samples[0]))

    def pin_memory(self):
        self.inputs, self.labels = self.inputs.pin_memory(), self.labels.pin_memory()
        return self


@pytest.mark.thorough
def test_a_users_class_that_pins_a_tensor_twice_has_two(gpu):
    """As with torch, though the tensor was pinned already."""
    with loader_of(range(4), collate_fn=Held) as loader:
        for number, batch in enumerate(loader):
            assert gpu.is_pinned(batch.inputs) and gpu.is_pinned(batch.labels)
            batch.labels.fill_(-1)
            assert (batch.inputs == 2 * number).all()


def test_an_interrupt_that_leaves_a_mode_on_leaves_pin_memory_as_it_is(gpu):
    """Or a slot that a user pins later would be held, and copied the second time."""
    mode = pinned_slots.EachApart()
    with loader_of() as loader, mode:
        images, _ = next(iter(loader))
        mode.end()
        assert images.pin_memory() is images.pin_memory() is images


def of_two_records(samples):
    large, small = torch.full((600, 600), 1.0), torch.ones(3)
    return {
        "records": [Record(large, large), Record(small, small), Record(large, small)],
        "parts": [large, large, Pair(small, small)],
    }


@pytest.mark.parametrize("where", [{}, {"SHMLOADER_PIN": "copy"}])
def test_what_torch_does_not_look_into_stays_as_it_is(gpu, monkeypatch, where):
    """A tensor that stands twice in objects is one there, and another one in each container."""
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    with loader_of(range(2), collate_fn=of_two_records) as loader:
        (batch,) = loader
    first, second, third = batch["records"]
    in_parts = [*batch["parts"][:2], *batch["parts"][2]]

    assert first.value is first.other is third.value
    assert second.value is second.other is third.other
    assert 6 == len({each.data_ptr() for each in (first.value, second.value, *in_parts)})


@pytest.mark.thorough
@pytest.mark.parametrize("side", [512, 8])
def test_inference_mode_makes_no_inference_tensors(gpu, side):
    """As with torch, whose thread that pins is in no mode."""
    with loader_of(Images(8, side)) as loader, torch.inference_mode():
        assert not any(tensor.is_inference() for batch in loader for tensor in batch)


@pytest.mark.thorough
def test_a_forked_child_leaves_the_driver_alone(gpu):
    """It reads its batch, drops it, and closes what it inherited."""
    with loader_of() as loader:
        iterator = iter(loader)
        images, _ = next(iterator)
        records = gpu.driver.records

        def drop():
            nonlocal images
            found = images[:, 0, 0].tolist()  # no threads in the child
            del images
            page_locks.look_at_idle()
            loader.close()
            return found, gpu.driver.records

        assert repr(([0, 1], records)) == Child(drop).end()
        del images
        assert all(is_right(each, n + 1) for n, (each, _) in enumerate(iterator))


def meets_a_capture(gpu):
    """Returns True if a loader meets one capture, and copies its batches from then on."""
    torch.set_num_threads(1)  # a forked child has none of its parent's
    with loader_of(Images(160)) as loader, recorded() as told:
        iterator = all_locked(gpu, loader, 30)
        gpu.copy(next(iterator)[0])
        gpu.driver.set(capturing=1)
        are_right = [is_right(images, 31 + n) for n, (images, _) in enumerate(iterator)]
        copied = loader.stats().copied
    said = [str(each.message) for each in told if "graph was being captured" in str(each.message)]
    return all(are_right) and gpu.driver.spoilt == len(said) == 1 < copied["staged"]


@pytest.mark.thorough
def test_an_unannounced_capture_is_met_once(gpu):
    """It is spoilt, and said so; in a process of its own, which copies from then on."""
    assert "True" == Child(lambda: meets_a_capture(gpu)).end()


@pytest.mark.thorough
def test_cuda_may_have_no_context_yet(gpu):
    """Slots are locked once there is one, as after the first kernel."""
    gpu.driver.set(is_active=0)
    with loader_of(Images(40)) as loader, warnings.catch_warnings(action="error"):
        iterator = iter(loader)
        next(iterator)
        gpu.driver.set(is_active=1)
        for _ in iterator:
            pass
        assert loader.stats().copied["in_place"] > 10


@pytest.mark.thorough
def test_locks_of_a_loader_that_pins_no_more(gpu):
    """Its segment is used again, and its slots wait for devices all the same."""
    with loader_of(Images(60), slots=12) as loader:
        all_locked(gpu, loader, 20)
        loader.pin_memory = False
        arrived = []
        for images, _ in loader:
            arrived.append(gpu.copy(images) if gpu.driver.holds(images) else images.clone())
            del images
            gpu.driver.finish(1)
        assert loader.stats().spilled < 10
    gpu.driver.finish()
    assert all(is_right(images, number) for number, images in enumerate(arrived))


@pytest.mark.thorough
def test_pages_of_a_closed_loader_go(gpu):
    """Though a batch of it is held: all but those that it lies in."""
    loader = loader_of(Images(60))
    iterator = all_locked(gpu, loader, 20)
    images, _ = next(iterator)
    del iterator
    loader.close()
    gpu.driver.finish()
    page_locks.look_at_idle()
    assert locked_bytes() <= images.nbytes + (1 << 16)
    assert sum(segment_files().values()) <= images.nbytes + (4 << 20)


def test_locks_go_where_pages_go(gpu):
    """With keep_pages=False nothing is locked between epochs."""
    with loader_of(keep_pages=False, persistent_workers=True) as loader:
        for _ in range(2):
            for images, _ in loader:
                del images
                gpu.driver.finish()
            assert 0 == locked_bytes()
        assert sum(segment_files().values()) <= 4 << 20


def test_without_room_nothing_is_locked(gpu, monkeypatch):
    """Half of what is available may be locked."""
    monkeypatch.setattr(page_locks.limits, "available_bytes", lambda: 5 << 20)
    with loader_of() as loader, warnings.catch_warnings(action="error"):
        list(loader)
        assert 1 == gpu.driver.ever_registered


def locks_of(loader):
    """Return the locks of the slots of a loader that was given a batch."""
    iterator = iter(loader)
    next(iterator)
    return page_locks.of_ledger(iterator._transport.ledger)


@pytest.mark.parametrize("error", [errno.EBUSY, errno.ENODEV, errno.EINTR, errno.EPERM])
def test_some_locks_fail_only_for_now(gpu, monkeypatch, error):
    """While a graph is captured, before CUDA has a context, or as a signal comes: none is final."""
    with loader_of() as loader:
        locks = locks_of(loader)
        failing = SimpleNamespace(
            payload_bytes=lambda slot: 1 << 20, locked=lambda slot: 0, lock=lambda *_: -error
        )
        with monkeypatch.context() as patch:
            patch.setattr(locks, "ledger", failing)
            assert not locks.lock(0)

        assert (error == errno.EPERM) == (locks.complaint() is not None)


@pytest.mark.parametrize("waits", [False, True])
def test_a_slot_is_waited_for_while_copies_keep_some(gpu, monkeypatch, waits):
    """If no copy keeps a slot, there is nothing to look at."""
    with loader_of() as loader:
        locks = locks_of(loader)
        ledger = SimpleNamespace(awaits_copies=waits, idle=0, payload_bytes=lambda slot: 1 << 30)
        with monkeypatch.context() as patch:
            patch.setattr(locks, "ledger", ledger)
            patch.setattr(locks, "look", lambda: vars(ledger).update(idle=1))

            assert waits == locks.wait_for_slot(0)
