"""torchdata: nodes over a loader of ours, and its own iterators beside us."""

from __future__ import annotations

import shmloader

from .conftest import assert_left_alone
from .needs import needs
from .training import WORKERS, Pictures, plain

needs("torchdata.nodes", "torchdata.stateful_dataloader")

from torchdata.nodes import (  # noqa: E402
    IterableWrapper,
    Loader,
    ParallelMapper,
    Prefetcher,
)
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402


def brighter(batch):
    """Change a batch in a thread of the nodes; the loader's own is left as it is."""
    pictures, labels = batch
    return pictures * 1.5, labels


def nodes(loader):
    """Build a pipeline over a loader: threads that change its batches, and take them ahead."""
    mapped = ParallelMapper(IterableWrapper(loader), brighter, num_workers=2, method="thread")
    return Loader(Prefetcher(mapped, prefetch_factor=2))


def test_nodes_over_a_loader(compare, way):
    """Nodes whose source is a loader, with threads that hold batches, have torch's losses."""
    compare(lambda way: plain(nodes(way.loader(Pictures(), shuffle=True, **WORKERS))), way)


def test_a_loader_beneath_a_node_is_not_copied_out():
    """What the threads hold of batches fits into the slots that a loader has by default."""
    with shmloader.DataLoader(Pictures(), **WORKERS) as loader:
        plain(nodes(loader))

        assert 0 == loader.stats().spilled


def test_stateful_loader_is_left_alone():
    """It makes its own iterators, with a state."""
    opened = lambda: StatefulDataLoader(Pictures(), shuffle=True, **WORKERS)  # noqa: E731
    assert_left_alone(opened, len(Pictures()) // 8)
