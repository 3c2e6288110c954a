"""pin_memory=True of a pool and of a subscriber: what they hand out lies in their slots."""

import os
import warnings

import pytest
import torch

import shmloader
from shmloader import DataLoader, Pool, publish, subscribe
from shmloader.core import locked_bytes
from tests.device.loaders import PAIRS, Images, labels_of
from tests.helpers.copies import Child
from tests.helpers.warned import recorded

NAME = f"pinned-{os.getpid()}"


def filled(number):
    return torch.full((600, 600), number)


def failing(number):
    """Return what cannot be pinned."""
    return Unpinnable()


class Unpinnable:
    def pin_memory(self):
        raise LookupError("not this result")


@pytest.mark.thorough
def test_results_of_a_pool_are_its_slots(gpu):
    """Dropped while they are copied: each waits for its copy, and the next ones come."""
    arrived, count = [], 30
    with Pool(2, "fork", pin_memory=True) as pool:
        for result in pool.map(filled, range(count)):
            assert gpu.is_pinned(result)
            arrived.append(gpu.copy(result))
            del result
            gpu.driver.finish(1)
        gpu.driver.finish()
        copied = pool.stats().copied
        assert pool.stats().locked_bytes == locked_bytes() > 0
    assert list(range(count)) == [int(each[0, 0]) for each in arrived]
    assert count == sum(copied.values()) and copied["in_place"] > 0


def test_submitted_calls_are_pinned_on_the_pools_own_thread(gpu):
    """And their errors, of pinning too, are raised by result()."""
    with Pool(1, "fork", pin_memory=True) as pool:
        future, failed = pool.submit(filled, 3), pool.submit(failing, 3)
        assert gpu.is_pinned(future.result())
        with pytest.raises(LookupError, match="not this result"):
            failed.result()
        assert 4 == int(pool.submit(filled, 4).result()[1, 1])
        del future


@pytest.mark.thorough
def test_a_subscriber_pins_its_own_copies(gpu):
    """In its own ring, whether or not the publisher's loader pins."""

    def publishes():
        loader = DataLoader(Images(), 2, num_workers=1)
        publish(loader, NAME, 1, epochs=1)

    publisher = Child(publishes)
    arrived = []
    with subscribe(NAME, pin_memory=True) as batches:
        for images, labels in batches:
            assert gpu.is_pinned(images) and gpu.is_pinned(labels)
            arrived.append((gpu.copy(images), labels.clone()))
            del images, labels
            gpu.driver.finish(1)
        gpu.driver.finish()
        copied = batches.stats().copied
        assert f"Subscription({NAME!r} of process " in repr(batches)
    assert 0 == locked_bytes()  # from its close on
    assert "None" == publisher.end()
    assert PAIRS == labels_of(arrived)
    assert 12 == sum(copied.values()) and copied["in_place"] > 0


def test_locks_that_are_refused_end_no_pool(gpu):
    """Though warnings are errors, and are said on the pool's own thread; failed calls are none."""
    gpu.driver.set(refuses=2)
    with warnings.catch_warnings(action="error"), Pool(1, "fork", pin_memory=True) as pool:
        futures = [pool.submit(filled, number) for number in range(3)]
        assert [0, 1, 2] == [int(each.result()[0, 0]) for each in futures]
        with pytest.raises(TypeError):
            pool.submit(filled).result()
        assert 3 == sum(pool.stats().copied.values())


def test_without_a_device_it_is_said_that_nothing_is_pinned():
    """Once for each pool, when its workers start, and by subscribe(); results come as they are."""
    if torch.accelerator.is_available():
        pytest.skip("there is a device")
    with recorded() as said, Pool(1, "fork", pin_memory=True) as pool:
        assert [0, 1] == [int(each[0, 0]) for each in pool.map(filled, range(2))]
    assert ["pin_memory=True has no effect"] == [str(e.message).partition(",")[0] for e in said]
    assert {} == pool.stats().copied


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_other_values_are_refused(value):
    """As by publish(consume=...)."""
    with pytest.raises(TypeError, match="pin_memory should be a bool"):
        Pool(1, pin_memory=value)
    with pytest.raises(TypeError, match="pin_memory should be a bool"):
        shmloader.subscribe("nobody", pin_memory=value, timeout=0)


def test_a_device_pins_nothing():
    """As of a loader."""
    with pytest.raises(ValueError, match="exclude each other: omit pin_memory"):
        shmloader.subscribe("nobody", pin_memory=True, device="cuda", timeout=0)
