"""What an iterator is opened with: torch's attributes, its transport, and what workers are told."""

import functools
import operator
import os
from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _sharding_worker_init_fn

from shmloader.errors import at_users_line
from shmloader.memory import policy
from shmloader.memory.segment import Handle, Segment
from shmloader.memory.segment_pool import SegmentPool
from shmloader.options.options import BY_BATCH, Options, most_workers, replaces
from shmloader.processes import starting
from shmloader.processes.signals import Signals
from shmloader.processes.watching import ParentWatch
from shmloader.stats.setting import SERVER, SERVER_WITH_SCRIPT
from shmloader.transport.transport import Transport
from shmloader.worker.snapshot import is_stateful
from shmloader.worker.worker import WorkerSpec


def take_arguments(iterator: Any, loader: Any, options: Options) -> None:
    """Begin as torch's iterators do, and draw the base seed; what this raises is torch's."""
    _set_base_attributes(iterator, loader)
    iterator._prefetch_factor = loader.prefetch_factor
    iterator._in_order = loader.in_order
    iterator._worker_init_fn = _init_function(iterator, loader)
    if iterator._prefetch_factor <= 0:
        raise AssertionError(
            "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
        )
    operator.index(loader.num_workers)
    iterator._num_workers = most_workers(loader, options)


def _set_base_attributes(iterator: Any, loader: Any) -> None:
    """Call torch's base class, whose warnings are of user code's line."""
    begin = functools.partial(_BaseDataLoaderIter.__init__, iterator, loader)
    has_device = torch.accelerator.is_available() and not loader.pin_memory_device
    if loader.pin_memory and not has_device:
        at_users_line(begin, _BaseDataLoaderIter)  # torch will warn
    else:
        begin()  # without one line more in the traceback of a sampler's error


def _init_function(iterator: Any, loader: Any) -> Any:
    """Return what each worker runs first: for data pipes it shards them too, as in torch."""
    if not isinstance(iterator._dataset, (IterDataPipe, MapDataPipe)):
        return loader.worker_init_fn
    ranks = iterator._world_size, iterator._rank
    return functools.partial(_sharding_worker_init_fn, loader.worker_init_fn, *ranks)


def transport_over(
    iterator: Any, segment: Segment, pool: SegmentPool, options: Options
) -> Transport:
    """Open an iterator's transport over a segment."""
    shape = segment.shape
    in_flight = int(iterator._prefetch_factor) * shape.workers
    transport = Transport(
        segment,
        policy.reserved_slots(in_flight, shape.workers, shape.slots),
        pool,
        heals=replaces(options),
        publishes=_publishes(iterator, options),
        # Only there is code of the dataset's run when an epoch begins.
        repeats=iterator._dataset_kind == _DatasetKind.Iterable,
        follows=options.resumable,
        grows=options.slots is None,
        most_each=int(iterator._prefetch_factor) if options.binds_late else None,
    )
    if options.slot_bytes is not None:
        transport.ledger.expect(options.slot_bytes)
    return transport


def _publishes(iterator: Any, options: Options) -> bool:
    """Returns True if each answer must say where another worker can go on after it."""
    # What a worker answers may depend on what it has answered before.
    is_map = iterator._dataset_kind == _DatasetKind.Map
    is_seeded = options.seed_by == BY_BATCH
    has_place = not (is_map and is_seeded) or is_stateful(iterator._dataset)
    return has_place and (options.restarts > 0 or options.resumable)


def spec_of(iterator: Any, options: Options, handle: Handle) -> WorkerSpec:
    """Say what each of an iterator's workers is started with, but for its id."""
    return WorkerSpec(
        parent=ParentWatch(os.getpid()),
        worker_id=0,
        num_workers=iterator._num_workers,
        dataset_kind=iterator._dataset_kind,
        dataset=iterator._dataset,
        auto_collation=iterator._auto_collation,
        collate_fn=iterator._collate_fn,
        drop_last=iterator._drop_last,
        base_seed=iterator._base_seed,
        worker_init_fn=iterator._worker_init_fn,
        shared_seed=iterator._shared_seed,
        handle=handle,
        signals=Signals.of_now(),
        publishes=_publishes(iterator, options),
        is_seeded=options.seed_by == BY_BATCH,
        fetch_threads=options.fetch_threads,
        nice=options.nice,
        worker_bytes=options.worker_bytes,
    )


def start_of(loader: Any, options: Options) -> str:
    """Name how a loader's workers are started, as a `Setting` has it."""
    context = loader.multiprocessing_context or torch.multiprocessing
    preload = preload_of(context, options)
    if preload is None:
        return starting.method_of(context)
    return SERVER_WITH_SCRIPT if "__main__" in preload else SERVER


def preload_of(context: Any, options: Options) -> tuple[str, ...] | None:
    """Return what workers find imported beside torch; None: each imports by itself."""
    return starting.preload_of(context, options.preload, starting.told_to_preload)
