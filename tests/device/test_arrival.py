"""Batches on a device: what the user gets, and what the device may read meanwhile."""

import gc
import itertools
import warnings

import numpy
import pytest
import torch
from torch.utils.data import Dataset

from shmloader import DataLoader, Device
from shmloader.core import is_behind_lease
from shmloader.device import copies as copies_module
from tests.device.loaders import Images, Record, all_kinds, loader_of
from tests.device.standin import Never, StandIn
from tests.helpers.warned import recorded
from tests.memory.test_batch_log import records_of


def numbers_in(batch):
    images, labels = batch
    assert images[:, 0, 0].tolist() == images[:, -1, -1].tolist() == labels.tolist()
    return labels.tolist()


def wrong(batches, expected):
    """The batches that are not as expected, when all copies are done."""
    return [
        (found, right) for found, right in zip(batches, expected, strict=True) if found != right
    ]


PAIRS = [[number, number + 1] for number in range(0, 24, 2)]


def test_batches_are_the_same_on_the_device(monkeypatch):
    """The order and values are those of a loader without a device, read from the slots."""
    backend = StandIn()
    with loader_of(monkeypatch, backend) as loader:
        batches = list(loader)
        backend.finish()
        assert [] == wrong([numbers_in(batch) for batch in batches], PAIRS)
        assert {"direct": 12} == loader.stats().copied
        assert [] == loader.held()
    assert [] == backend.faults
    assert {} == backend.registered


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_each_batch_has_its_record(monkeypatch, ahead):
    """Batches that are copied ahead are noted when they are handed out, each once, in order."""
    with loader_of(monkeypatch, StandIn(), device=Device("cuda", prefetch=ahead)) as loader:
        iterator = iter(loader)
        for number in range(12):
            next(iterator)
            assert number + 1 == len(records_of(loader))
        assert list(range(12)) == records_of(loader)["ticket"].tolist()


def test_a_slot_is_not_used_again_before_its_copy_is_done(monkeypatch):
    """Copies that are done as late as the trainer lets them read what their batch was."""

    asked = itertools.count()

    def one_now_and_then(backend):
        if next(asked) % 7 == 6:
            backend.run(next(number for number, op in enumerate(backend.ops) if op is not None))

    backend = StandIn(when_asked=lambda backend: backend.waiting and one_now_and_then(backend))
    with loader_of(monkeypatch, backend, slots=3, persistent_workers=True) as loader:
        for _ in range(2):
            batches = list(loader)
            backend.finish()
            assert [] == wrong([numbers_in(batch) for batch in batches], PAIRS)
    assert [] == backend.faults
    assert backend.most_waiting > 2


def test_every_leaf_is_moved_or_copied_out(monkeypatch):
    """Plain tensors of containers and dataclasses move; all else stays, and none is in a slot."""
    backend = StandIn()
    with loader_of(monkeypatch, backend, range(6), collate_fn=all_kinds) as loader:
        batches = list(loader)
        backend.finish()
    for number, batch in zip((0, 2, 4), batches, strict=True):
        expected = all_kinds([number])
        assert list(expected) == list(batch)
        for name in ("large", "strided", "small", "scalar", "empty", "bytes"):
            assert torch.equal(expected[name], batch[name]), name
            assert expected[name].dtype is batch[name].dtype
            assert expected[name].stride() == batch[name].stride(), name
            assert not is_behind_lease(batch[name].data_ptr())
        assert torch.equal(batch["large"][2:4], batch["slices"][1])
        assert type(batch["pair"]).__name__ == "Pair"
        assert torch.equal(torch.zeros(2, dtype=torch.bfloat16), batch["pair"].y[0])
        assert Record is type(batch["record"])
        assert float(number) == batch["record"].x[1].item()
        assert numpy.array_equal(expected["array"], batch["array"])
        assert batch["array"].flags.writeable
        assert torch.equal(torch.eye(3), batch["sparse"].to_dense())
        rest = ("text", "raw", "number", "none")
        assert [expected[name] for name in rest] == [batch[name] for name in rest]
    assert [] == backend.faults


def test_small_leaves_share_a_block_and_large_ones_have_their_own(monkeypatch):
    """A label that is kept costs a block of a few kilobytes, and no image."""
    backend = StandIn()
    with loader_of(monkeypatch, backend, range(2), collate_fn=all_kinds) as loader:
        (batch,) = loader
        backend.finish()
    assert (
        batch["small"].untyped_storage().data_ptr() == batch["pair"].x.untyped_storage().data_ptr()
    )
    assert batch["small"].untyped_storage().nbytes() <= 8192
    assert batch["large"].untyped_storage().nbytes() == batch["large"].nbytes


def with_gaps(samples):
    """Views of a part of a large tensor, as a collate_fn cuts them out."""
    whole = torch.arange(1_200_000.0).reshape(1000, 1200) + float(samples[0])
    return {"whole": whole, "columns": whole[:, :700], "every seventh": whole.view(-1)[5::7]}


def test_tensors_with_gaps_are_copied_from_pinned_memory(monkeypatch):
    """A device copies whole stretches; torch would gather others first, and wait for the copy."""
    backend = StandIn()
    with loader_of(monkeypatch, backend, range(8), collate_fn=with_gaps) as loader:
        batches = list(loader)
        backend.finish()
        for number, batch in zip(range(0, 8, 2), batches, strict=True):
            for name, expected in with_gaps([number]).items():
                assert torch.equal(expected, batch[name])
                assert torch.empty_like(expected).stride() == batch[name].stride()
        assert {"direct": 4} == loader.stats().copied
    assert [] == backend.faults


def test_an_object_that_is_met_twice_is_one_on_the_device(monkeypatch):
    """As in a batch that is not moved."""

    def collate(samples):
        shared = torch.ones(3)
        return [shared, {"again": shared}]

    backend = StandIn()
    with loader_of(monkeypatch, backend, range(2), collate_fn=collate) as loader:
        (batch,) = loader
        backend.finish()
        assert batch[0] is batch[1]["again"]


def test_copies_start_before_they_are_asked_for(monkeypatch):
    """As many batches ahead as the option says, and no more."""
    for ahead in (0, 1, 3):
        backend = StandIn(when_asked=lambda backend: None)
        device = Device("cuda", prefetch=ahead)
        loader = loader_of(monkeypatch, backend, device=device, prefetch_factor=4)
        with loader:
            iterator = iter(loader)
            while iterator._transport.figures.unread < 8:
                pass
            next(iterator)
            copies = 2  # of each batch: its image, and the block with its label
            assert copies * (1 + ahead) == backend.waiting
            backend.when_asked = StandIn.finish
            del iterator


def test_small_batches_go_through_pinned_memory(monkeypatch):
    """Their slots need no pages ahead for a copy that costs next to nothing."""
    backend = StandIn()
    with loader_of(monkeypatch, backend, Images(side=64)) as loader:
        batches = list(loader)
        backend.finish()
        assert [] == wrong([numbers_in(batch) for batch in batches], PAIRS)
        assert {"staged": 12} == loader.stats().copied
    assert [] == backend.ever_registered


def test_a_batch_larger_than_what_is_registered_is_staged(monkeypatch):
    """The length is learnt from the first batch; a longer one goes through pinned memory."""
    sizes = [700, 700, 1600, 700]
    backend = StandIn()

    class Growing(Dataset):
        def __len__(self):
            return len(sizes)

        def __getitem__(self, index):
            return torch.full((sizes[index], 512), index)

    options = {"batch_size": None, "num_workers": 1, "slots": 2}
    with loader_of(monkeypatch, backend, Growing(), **options) as loader:
        found = list(loader)
        backend.finish()
        assert {"direct": 3, "staged": 1} == loader.stats().copied
    assert [(number, size) for number, size in enumerate(sizes)] == [
        (int(each[-1, -1]), len(each)) for each in found
    ]
    assert [] == backend.faults


@pytest.mark.parametrize("refused", [0, 2])
def test_registration_that_fails_is_said_once(monkeypatch, refused):
    """Also half-way: the slots that are registered stay so, the others are staged."""
    backend = StandIn()
    backend.refuses_from = refused
    with loader_of(monkeypatch, backend, persistent_workers=True) as loader:
        with recorded() as said:
            batches = list(loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            batches += list(loader)
        backend.finish()
        assert [] == wrong([numbers_in(batch) for batch in batches], PAIRS * 2)
        (warning,) = said
        assert "no more memory can be page-locked" in str(warning.message)
        assert loader.stats().copied["staged"] > 0
        assert (loader.stats().copied.get("direct", 0) > 0) == (refused > 0)
    assert [] == backend.faults
    assert {} == backend.registered


def test_with_debug_nothing_is_registered(monkeypatch):
    """The guard changes the protection of pages, so the device must not read them."""
    monkeypatch.setenv("SHMLOADER_DEBUG", "1")
    backend = StandIn()
    with loader_of(monkeypatch, backend) as loader:
        batches = list(loader)
        backend.finish()
        assert [] == wrong([numbers_in(batch) for batch in batches], PAIRS)
    assert [] == backend.ever_registered


def test_an_error_of_a_copy_is_raised_at_its_turn(monkeypatch):
    """The batches before and after it are right."""
    backend = StandIn()
    backend.raises_at = 5  # the third batch's first one
    found = []
    with loader_of(monkeypatch, backend, num_workers=1) as loader:
        iterator = iter(loader)
        for turn in range(12):
            if turn == 2:
                with pytest.raises(Never, match="no memory on the device"):
                    next(iterator)
            else:
                found.append(next(iterator))
        assert next(iterator, None) is None
        backend.finish()
    assert [] == wrong([numbers_in(batch) for batch in found], PAIRS[:2] + PAIRS[3:])


def test_an_error_of_the_dataset_comes_as_without_a_device(monkeypatch):
    """At its turn, and iteration goes on."""

    class Failing(Images):
        def __getitem__(self, index):
            if index == 2:
                raise KeyError("two")
            return super().__getitem__(index)

    backend = StandIn()
    with loader_of(monkeypatch, backend, Failing(8)) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        with pytest.raises(KeyError, match="two"):
            next(iterator)
        found += list(iterator)
        backend.finish()
        assert [[0, 1], [4, 5], [6, 7]] == [numbers_in(batch) for batch in found]


def test_what_a_failed_copy_reads_is_never_used_again(monkeypatch):
    """The device may still read it: its memory stays until the process ends, and no page goes."""
    backend = StandIn(when_asked=lambda backend: None)
    with loader_of(monkeypatch, backend) as loader:
        iterator = iter(loader)
        next(iterator)
        backend.fails_at = 0
        with pytest.raises(Never, match="the copy failed"):
            list(iterator)
    (left,) = copies_module._abandoned
    assert {} != backend.registered
    assert [] == backend.unregistered
    backend.finish()  # reads what is still mapped
    # What only the end of the process does:
    copies_module._abandoned.clear()
    left._lost.clear()


def test_copies_that_do_not_end_are_waited_for_at_the_end(monkeypatch):
    """Within limits; until then nothing is unregistered, and no slot is given back."""
    asked = itertools.count()
    backend = StandIn(when_asked=lambda backend: next(asked) > 20 and backend.finish())
    loader = loader_of(monkeypatch, backend)
    batch = next(iter(loader))
    loader.close()
    assert [0, 1] == numbers_in(batch)
    assert [] == backend.faults
    assert {} == backend.registered
    assert next(asked) > 20


def test_the_transform_makes_the_batch(monkeypatch):
    """It sees the batch on the device, on the stream of copies, once for each."""
    backend = StandIn()
    streams = []

    def scaled(batch):
        streams.append(backend.is_copying)
        backend.finish()  # kernels of that stream come behind its copies
        return {"x": batch[0].float() / 2, "label": batch[1]}

    with loader_of(monkeypatch, backend, device=Device("cuda", transform=scaled)) as loader:
        found = [(batch["x"][0, 0, 0].item(), batch["label"][0].item()) for batch in loader]
    assert [(number / 2, number) for number, _ in PAIRS] == found
    assert [1] * 12 == streams


def ending(batch):
    """A transform that asks an empty iterator."""
    return next(iter(()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_transform_does_not_end_the_epoch(monkeypatch, workers, device):
    """Its StopIteration is an error, as in Python's generators."""
    options = {"num_workers": workers, "device": Device(device, transform=ending)}
    with loader_of(monkeypatch, StandIn(), Images(4, 8), **options) as loader:
        with pytest.raises(RuntimeError, match="Device raised StopIteration") as caught:
            list(loader)
        assert isinstance(caught.value.__cause__, StopIteration)


def test_the_transform_is_behind_what_the_consumers_stream_has(monkeypatch):
    """And the copies of its batch are not: what else it reads may have been made just now."""
    seen = []

    def transform(batch):
        seen.append((backend.marked, backend.calls))
        return batch

    for options in ({}, {"device": Device("cuda", transform=transform)}):
        backend = StandIn()
        with loader_of(monkeypatch, backend, Images(8), **options) as loader:
            assert 4 == len(list(loader))
        assert [] == backend.faults
        assert (4 if options else 0) == backend.marked
    assert [1, 2, 3, 4] == [marked for marked, _ in seen]
    assert seen == backend.followed


def test_an_error_of_the_transform_is_raised_at_its_turn(monkeypatch):
    """The next batch comes."""

    def picky(batch):
        if batch[1].numel() and batch[1][0] == 2:
            raise ValueError("not this one")
        return batch

    def at_once(backend, to, source):
        to.copy_(source)

    backend = StandIn()
    monkeypatch.setattr(backend, "copy", lambda to, source: to.copy_(source))
    with loader_of(monkeypatch, backend, device=Device("cuda", transform=picky)) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        with pytest.raises(ValueError, match="not this one"):
            next(iterator)
        found += list(iterator)
        assert PAIRS[:1] + PAIRS[2:] == [numbers_in(batch) for batch in found]


def test_a_batch_during_capture_is_refused(monkeypatch):
    """Nothing is started or asked then; afterwards the iterator goes on."""
    backend = StandIn()
    with loader_of(monkeypatch, backend) as loader:
        iterator = iter(loader)
        next(iterator)
        backend.capturing, issued = True, len(backend.ops)
        with pytest.raises(RuntimeError, match="while a graph is captured"):
            next(iterator)
        assert issued == len(backend.ops)
        backend.capturing = False
        assert 11 == len(list(iterator))


def test_an_end_during_capture_asks_nothing(monkeypatch):
    """As of an iterator that garbage collection comes upon: its slots stay as they are."""
    backend = StandIn()
    with loader_of(monkeypatch, backend) as loader:
        iterator = iter(loader)
        next(iterator)
        registered = dict(backend.registered)
        backend.capturing, backend.when_asked = True, None  # what is asked fails
        del iterator
        assert registered == backend.registered
        backend.capturing, backend.when_asked = False, StandIn.finish
        assert 12 == len(list(loader))
    copies_module._abandoned.clear()


def test_pages_go_back_between_epochs_if_they_are_not_kept(monkeypatch):
    """Slots are unregistered first."""
    backend = StandIn()
    options = {"persistent_workers": True, "keep_pages": False}
    with loader_of(monkeypatch, backend, **options) as loader:
        for _ in range(2):
            assert 12 == len(list(loader))
            gc.collect()
            assert {} == backend.registered
            assert loader.stats().resident_bytes < 1 << 20
        backend.finish()
    assert [] == backend.faults


def test_registered_pages_stay_in_a_resting_segment(monkeypatch):
    """Another loader's need takes none of them: the device would go on reading what is gone."""
    backend = StandIn()
    with loader_of(monkeypatch, backend, persistent_workers=True) as loader:
        list(loader)
        before = loader.stats().resident_bytes
        loader._service.pool.give_back(while_running=True)
        locked = sum(backend.registered.values())
        assert before >= loader.stats().resident_bytes >= locked > 0
        assert 12 == len(list(loader))


def test_without_workers_batches_go_to_the_device_too(monkeypatch):
    """The same leaves move, and the same stay."""
    backend = StandIn()
    seen = []
    options = {"num_workers": 0, "collate_fn": all_kinds}
    device = Device("cuda", transform=seen.append)
    loader = loader_of(monkeypatch, backend, range(4), device=device, **options)
    assert [None, None] == list(loader)
    for number, batch in zip((0, 2), seen, strict=True):
        expected = all_kinds([number])
        assert torch.equal(expected["strided"], batch["strided"])
        assert type(batch["pair"]).__name__ == "Pair"
        assert batch["record"].name == "one"
        assert torch.equal(torch.eye(3), batch["sparse"].to_dense())


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
