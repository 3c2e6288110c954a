"""The same on a GPU, where there is one: what no stand-in can show."""

import pytest
import torch

from shmloader import DataLoader, Device
from tests.device.loaders import Images, all_kinds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

COUNT = 200
OPTIONS = {"batch_size": 2, "num_workers": 2, "persistent_workers": True}


def busy(side=2048):
    """Keep the current stream busy, so that the trainer is far ahead of the device."""
    left = torch.rand(side, side, device="cuda")
    for _ in range(20):
        left = (left @ left).clamp_(0, 1)
    return left


def count_wrong(batches):
    """Use each batch on the device behind much other work, and drop it at once."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    seen = []
    for images, labels in batches:
        busy()
        wrong += (images != labels[:, None, None]).sum()
        seen.append(labels)
        del images, labels
    numbers = torch.cat(seen).tolist()
    return int(wrong), numbers


@pytest.mark.parametrize("slots", [None, 3])
def test_batches_are_right_behind_a_busy_device(slots):
    """Each byte, in two epochs, with every slot used many times while copies are late."""
    with DataLoader(Images(COUNT), device="cuda", slots=slots, **OPTIONS) as loader:
        for _ in range(2):
            assert (0, list(range(COUNT))) == count_wrong(loader)
        copied = loader.stats().copied
        assert COUNT == sum(copied.values()) and copied["direct"] > 0
        assert slots is not None or "staged" not in copied


def test_batches_are_right_on_a_stream_of_the_users():
    """The stream that is current at next() waits, and is noted."""
    stream = torch.cuda.Stream()
    with DataLoader(Images(COUNT), device="cuda", **OPTIONS) as loader, torch.cuda.stream(stream):
        assert (0, list(range(COUNT))) == count_wrong(loader)


def test_every_leaf_is_where_it_should_be():
    """Plain tensors on the device with their strides, all else on the CPU."""
    with DataLoader(range(4), device="cuda", collate_fn=all_kinds, **OPTIONS) as loader:
        for number, batch in zip((0, 2), loader, strict=True):
            expected = all_kinds([number])
            for name in ("large", "strided", "small", "scalar", "empty", "bytes"):
                assert "cuda" == batch[name].device.type
                assert expected[name].stride() == batch[name].stride()
                assert torch.equal(expected[name], batch[name].cpu())
            assert "cpu" == batch["sparse"].device.type


def test_a_transform_on_the_device():
    """Its results are right, although it runs on another stream than their use."""

    def halves(batch):
        return busy(512)[:1, :1] * 0 + batch[0].float() / 2, batch[1]

    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    device = Device("cuda", transform=halves)
    with DataLoader(Images(COUNT), device=device, **OPTIONS) as loader:
        for images, labels in loader:
            busy(1024)
            wrong += (images * 2 != labels[:, None, None]).sum()
            del images, labels
    assert 0 == int(wrong)


def test_a_transform_sees_what_was_computed_just_before():
    """On the consumer's stream, which may still be busy with it."""
    factor = torch.zeros((), dtype=torch.int32, device="cuda")

    def scaled(batch):
        return batch[0] * factor, batch[1]

    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    device = Device("cuda", prefetch=0, transform=scaled)
    with DataLoader(Images(COUNT), device=device, **OPTIONS) as loader:
        batches = iter(loader)
        for number in range(COUNT // 2):
            busy(1024)
            factor.fill_(number)
            images, labels = next(batches)
            wrong += (images != labels[:, None, None] * number).sum()
            del images, labels
        del batches
    assert 0 == int(wrong)


def test_later_epochs_take_no_more_memory():
    """Without workers that live on too, where each epoch is another iterator."""
    with DataLoader(Images(20), 2, num_workers=2, device="cuda") as loader:
        taken = []
        for _ in range(6):
            assert 0 == count_wrong(loader)[0]
            taken.append(torch.cuda.memory_reserved())
    assert taken[1] == taken[-1]


def test_pin_memory_is_torchs():
    """Batches are pinned, right, and may be copied without waiting and dropped."""
    with DataLoader(Images(COUNT), pin_memory=True, **OPTIONS) as loader:
        batches = iter(loader)
        assert all(leaf.is_pinned() for leaf in next(batches))
        moved = ([leaf.to("cuda", non_blocking=True) for leaf in batch] for batch in batches)
        assert (0, list(range(2, COUNT))) == count_wrong(moved)
        del batches, moved


def count_wrong_in_place(count, stream=None, slots=None):
    """Copy each page-locked batch without waiting, behind other work, and drop it at once."""
    options = {**OPTIONS, "pin_memory": True, "slots": slots}
    wrong, seen = torch.zeros((), dtype=torch.int64, device="cuda"), []
    with DataLoader(Images(count), **options) as loader, torch.cuda.stream(stream):
        for _ in range(2):
            for images, labels in loader:
                assert images.is_pinned() and labels.is_pinned()
                busy()
                there = images.to("cuda", non_blocking=True)
                wrong += (there != labels.to("cuda", non_blocking=True)[:, None, None]).sum()
                seen += labels.tolist()
                del images, labels
        copied = loader.stats().copied
    return int(wrong), seen, copied


@pytest.mark.parametrize("slots", [None, 3])
@pytest.mark.parametrize("on_a_side_stream", [False, True])
def test_page_locked_batches_are_right(slots, on_a_side_stream):
    """Each byte, on whatever stream it is copied, however early its batch is dropped."""
    stream = torch.cuda.Stream() if on_a_side_stream else None
    wrong, seen, copied = count_wrong_in_place(COUNT, stream, slots)
    assert (0, 2 * list(range(COUNT))) == (wrong, seen)
    assert copied.get("in_place", 0) > 0 and COUNT == sum(copied.values())
    if slots is None:
        assert "staged" not in copied


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_is_not_spoilt(mode):
    """Batches are taken and dropped in it, and next() asks nothing of the device."""
    still = torch.zeros(8, device="cuda")
    with DataLoader(Images(60), pin_memory=True, **OPTIONS) as loader:
        batches = iter(loader)
        first = next(batches)[0].to("cuda", non_blocking=True)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            still.add_(1)
            for _ in range(4):
                next(batches)
        graph.replay()
        assert 1 == int(still[0]) and 0 == int(first[0].sum())
        rest = [images.to("cuda", non_blocking=True)[:, 0, 0] for images, _ in batches]
        assert list(range(10, 60)) == torch.cat(rest).tolist()


def test_no_batch_in_a_captured_graph():
    """next() says so; before and behind the capture it works."""
    with DataLoader(Images(8), device="cuda", **OPTIONS) as loader:
        batches = iter(loader)
        images = next(batches)[0].float()
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            (images * 2).sum()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            images.mul_(2)
            with pytest.raises(RuntimeError, match="while a graph is captured"):
                next(batches)
        graph.replay()
        assert 3 == len(list(batches))
        del batches
