"""Batches on a device: what the user gets, and what the device may read meanwhile."""

import random

import pytest
import torch

from shmloader import DataLoader, Device
from shmloader.core import locked_bytes
from shmloader.memory import page_locks
from tests.device.loaders import PAIRS, Images, all_kinds, delivered, labels_of, loader_of
from tests.device.standin import Never
from tests.helpers.copies import Child
from tests.helpers.leaves.parts import are_same, where
from tests.helpers.warned import recorded
from tests.memory.test_batch_log import records_of


@pytest.mark.core(first=1)
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_each_batch_has_its_record(backend, ahead):
    """Batches that are copied ahead are noted when they are handed out, each once, in order."""
    with loader_of(device=Device("cuda", prefetch=ahead)) as loader:
        iterator = iter(loader)
        for number in range(12):
            next(iterator)
            assert number + 1 == len(records_of(loader))
        assert list(range(12)) == records_of(loader)["ticket"].tolist()


@pytest.mark.parametrize("slots", [None, 3])
def test_a_slot_is_not_used_again_before_its_copy_is_done(gpu, slots):
    """Copies that are done as late as the trainer lets them read what their batch was."""
    draw = random.Random(1)
    with loader_of(slots=slots, persistent_workers=True) as loader:
        for _ in range(3):
            batches = []
            for batch in loader:
                batches.append(batch)
                if draw.random() < 0.5:
                    gpu.driver.finish(draw.randrange(3))
            gpu.driver.finish()
            assert PAIRS == labels_of(batches)
        assert loader.stats().copied["direct"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_every_leaf_is_moved_or_copied_out(gpu, backend, workers):
    """Plain tensors of containers and dataclasses move out of the slot; all else stays as it is."""
    batches, _ = delivered(gpu, range(6), collate_fn=all_kinds, num_workers=workers)
    for number, batch in zip((0, 2, 4), batches, strict=True):
        assert are_same(all_kinds([number]), batch)
        moved = ("large", "strided", "small", "scalar", "empty", "bytes")
        assert {"none"} == {where(batch[name]) for name in moved}
        assert torch.equal(batch["large"][2:4], batch["slices"][1])
        assert batch["array"].flags.writeable


def with_gaps(samples):
    """Views of a part of a large tensor, as a collate_fn cuts them out."""
    whole = torch.arange(1_200_000.0).reshape(1000, 1200) + float(samples[0])
    return {"whole": whole, "columns": whole[:, :700], "every seventh": whole.view(-1)[5::7]}


@pytest.mark.thorough
def test_tensors_with_gaps_are_copied_from_pinned_memory(gpu, backend):
    """A device copies whole stretches; torch would gather others first, and wait for the copy."""
    batches, copied = delivered(gpu, range(8), collate_fn=with_gaps)
    for number, batch in zip(range(0, 8, 2), batches, strict=True):
        for name, expected in with_gaps([number]).items():
            assert torch.equal(expected, batch[name])
            assert torch.empty_like(expected).stride() == batch[name].stride()
    assert {"direct": 4} == copied


@pytest.mark.thorough
def test_copies_start_before_they_are_asked_for(gpu):
    """As many batches ahead as the option says, and no more."""
    for ahead in (0, 1, 3):
        before = gpu.driver.waiting
        with loader_of(device=Device("cuda", prefetch=ahead), prefetch_factor=4) as loader:
            iterator = iter(loader)
            while iterator._transport.ledger.unread < 8:
                pass
            next(iterator)
            assert 1 + ahead == gpu.driver.waiting - before
            del iterator


@pytest.mark.thorough
def test_copies_that_are_late_cost_one_copy_more(gpu):
    """Where no slot is left a batch is copied from its slot, which is free then; nothing waits."""
    with loader_of(Images(60), slots=4) as loader:
        batches = list(loader)
        gpu.driver.finish()
        assert [[2 * n, 2 * n + 1] for n in range(30)] == labels_of(batches)
        copied, stats = loader.stats().copied, loader.stats()
    assert 30 == copied["direct"] + copied["staged"] and copied["staged"] > 0
    assert 0 == stats.spilled
    assert stats.epochs[-1].copy_s >= stats.epochs[-1].lock_s > 0


@pytest.mark.thorough
def test_locks_that_are_refused_are_said_once(gpu, backend):
    """All batches go through pinned memory then."""
    gpu.driver.set(refuses=2)
    with loader_of(persistent_workers=True) as loader:
        with recorded() as said:
            batches = [*loader, *loader]
        assert PAIRS * 2 == labels_of(batches)
        assert ["slots cannot be page-locked (CUDA error 2)"] == [
            str(each.message).partition(":")[0] for each in said
        ]
        assert {"staged": 24} == loader.stats().copied


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("side", "variables"),
    [(64, {}), (512, {"SHMLOADER_DEBUG": "1"}), (512, {"SHMLOADER_PIN": "copy"})],
)
def test_where_no_slot_is_locked(gpu, backend, monkeypatch, side, variables):
    """A small batch costs next to nothing; a device must not read pages of the debug mode."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    batches, copied = delivered(gpu, Images(side=side))
    assert (PAIRS, {"staged": 12}) == (labels_of(batches), copied)
    assert 0 == gpu.driver.ever_registered


@pytest.mark.thorough
def test_an_error_of_a_copy_is_raised_at_its_turn(gpu, backend):
    """The batches before and after it are right."""
    backend.raises_at = 5  # the third batch's first one
    found = []
    with loader_of(num_workers=1) as loader:
        iterator = iter(loader)
        for turn in range(12):
            if turn == 2:
                with pytest.raises(Never, match="no memory on the device"):
                    next(iterator)
            else:
                found.append(next(iterator))
        assert next(iterator, None) is None
        gpu.driver.finish()
    assert PAIRS[:2] + PAIRS[3:] == labels_of(found)


def a_copy_fails(gpu):
    """Returns what is said, and what becomes of the batches, if one copy fails."""
    torch.set_num_threads(1)  # a forked child has none of its parent's
    with loader_of(Images(60)) as loader, recorded() as said:
        iterator = iter(loader)
        next(iterator)
        gpu.driver.set(query_fails=700)
        next(iterator)
        gpu.driver.set(query_fails=0)
        count = len(list(iterator))
        fenced = loader.stats().slots["fenced"]
        del iterator
    page_locks.look_at_idle()
    texts = [str(each.message).partition(":")[0] for each in said]
    return texts[:1], count, fenced > 0, locked_bytes() > 0


@pytest.mark.thorough
def test_a_copy_that_failed_keeps_its_slot(gpu):
    """All others go on, and it is said once; in a process of its own, as it stays to the end."""
    expected = ["a copy to a device failed (CUDA error 700)"], 28, True, True
    assert repr(expected) == Child(lambda: a_copy_fails(gpu)).end()


@pytest.mark.thorough
def test_a_close_leaves_copies_under_way(gpu):
    """They read what is still mapped and locked, and the batch is right."""
    loader = loader_of()
    batch = next(iter(loader))
    loader.close()
    assert locked_bytes() > 0
    gpu.driver.finish()
    assert [[0, 1]] == labels_of([batch])


@pytest.mark.thorough
def test_the_transform_makes_the_batch(gpu, backend):
    """It sees the batch on the device, on the stream of copies, once for each."""
    streams = []

    def scaled(batch):
        streams.append(backend.is_copying)
        gpu.driver.finish()  # kernels of that stream come behind its copies
        return {"x": batch[0].float() / 2, "label": batch[1]}

    with loader_of(device=Device("cuda", transform=scaled)) as loader:
        found = [(batch["x"][0, 0, 0].item(), batch["label"][0].item()) for batch in loader]
    assert [(number / 2, number) for number, _ in PAIRS] == found
    assert [1] * 12 == streams


def ending(batch):
    """A transform that asks an empty iterator."""
    return next(iter(()))


@pytest.mark.core(first=1)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_transform_does_not_end_the_epoch(backend, workers, device):
    """Its StopIteration is an error, as in Python's generators."""
    options = {"num_workers": workers, "device": Device(device, transform=ending)}
    with loader_of(Images(4, 8), **options) as loader:
        with pytest.raises(RuntimeError, match="Device raised StopIteration") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.thorough
def test_the_transform_is_behind_what_the_consumers_stream_has(backend):
    """And the copies of its batch are not: what else it reads may have been made just now."""
    seen = []

    def transform(batch):
        seen.append((backend.marked, backend.calls))
        return batch

    for options in ({}, {"device": Device("cuda", transform=transform)}):
        backend.calls = 0
        with loader_of(Images(8), **options) as loader:
            assert 4 == len(list(loader))
        assert (4 if options else 0) == backend.marked
    assert [1, 2, 3, 4] == [marked for marked, _ in seen]
    assert seen == backend.followed


@pytest.mark.thorough
def test_an_error_of_the_transform_is_raised_at_its_turn(gpu, backend):
    """The next batch comes."""

    def picky(batch):
        if batch[1].numel() and batch[1][0] == 2:
            raise ValueError("not this one")
        return batch

    gpu.driver.set(is_late=0)
    with loader_of(device=Device("cuda", transform=picky)) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        with pytest.raises(ValueError, match="not this one"):
            next(iterator)
        found += list(iterator)
        assert PAIRS[:1] + PAIRS[2:] == labels_of(found)


@pytest.mark.thorough
def test_a_batch_during_capture_is_refused(backend):
    """Nothing is started or asked then; afterwards the iterator goes on."""
    with loader_of() as loader:
        iterator = iter(loader)
        next(iterator)
        backend.capturing, issued = True, backend.calls
        with pytest.raises(RuntimeError, match="while a graph is captured"):
            next(iterator)
        assert issued == backend.calls
        backend.capturing = False
        assert 11 == len(list(iterator))


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu", 0)])
@pytest.mark.parametrize("workers", [0, 2])
def test_cpu_leaves_batches_where_they_are(workers, device):
    """So that a program can run where there is no accelerator; the transform is called."""
    device = Device(device, transform=lambda batch: batch[1])
    loader = DataLoader(Images(4), 2, num_workers=workers, device=device)
    assert [[0, 1], [2, 3]] == [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_device_that_is_not_there(workers):
    """Said when the loader is iterated, with what to do."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = DataLoader(range(4), num_workers=workers, device="cuda")
    with pytest.raises(ValueError, match="names an accelerator, but none is available"):
        iter(loader)
