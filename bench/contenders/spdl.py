"""
SPDL: its look-alike of torch's DataLoader, and its subprocess pipeline with shared segments.

The former is a process pool behind a pipeline. Of the latter, one subprocess is one worker; the
trainer takes from them in turn. Segments have to be as large as the largest batch.
"""

import importlib
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.batches import leaves, payload_bytes
from bench.contenders import Contender
from bench.contenders._peers import PREFETCH, Collate, Share, largest
from bench.driver import missing
from bench.loads.pools import Workload

_ALIGNMENT = 64  # of each leaf in a segment
_HELD = 3  # segments beside those in the queue: one being filled, two with the trainer


class SpdlLoader:
    """Its loader with a `close()`, which frees the segment of the pickled dataset."""

    def __init__(self, workload: Workload, workers: int):
        make = importlib.import_module("spdl.dataloader").get_pytorch_dataloader
        self._loader = make(
            workload.dataset(),
            batch_size=workload.batch_size,
            collate_fn=Collate(workload),
            num_workers=workers,
            multiprocessing_context="fork",
            prefetch_factor=PREFETCH,
            in_order=True,
        )

    def __iter__(self):
        return iter(self._loader)

    def close(self) -> None:
        """Free the pickled dataset, which the loader itself leaves to the end of the process."""
        self._loader._shmem.close()
        self._loader._shmem.unlink()


class PoolLoader:
    """One of SPDL's subprocesses per worker, each sending every n-th batch."""

    def __init__(self, workload: Workload, workers: int):
        self._workload, self._workers = workload, workers
        self._segment_bytes = largest(workload, Collate(workload), _segment_bytes)
        self._starters = ThreadPoolExecutor(workers)
        self._parts: list = []

    def __iter__(self):
        self._parts = self._parts or [self._start(worker) for worker in range(self._workers)]
        turns = [iter(part) for part in self._parts]
        # A part begins its epoch when it is first asked, so all are asked at the same time.
        firsts = [self._starters.submit(next, turn, None) for turn in turns]
        for number in range(self._workload.batches):
            if number < self._workers:
                yield firsts[number].result()
                firsts[number] = None  # a future keeps its result, and with it the segment
            else:
                yield next(turns[number % self._workers])
        for turn in turns:
            next(turn, None)

    def close(self) -> None:
        """End the subprocesses."""
        for part in self._parts:
            part._shutdown()
        self._starters.shutdown()

    def _start(self, worker: int):
        # Its pool takes its condition from the default start method, not from `mp_context`.
        multiprocessing.set_start_method("fork", force=True)
        pipeline = importlib.import_module("spdl.pipeline")
        pool = pipeline.SharedMemorySegmentPool(self._segment_bytes, PREFETCH + _HELD)
        share = partial(Share, self._workload, worker, self._workers, Collate(self._workload))
        return pipeline.iterate_in_subprocess(
            share, buffer_size=PREFETCH, mp_context="fork", arena=pool
        )


def _segment_bytes(batch) -> int:
    return payload_bytes(batch) + _ALIGNMENT * len(leaves(batch))


def _refuses(workload: Workload) -> str | None:
    if workload.name == "ragged":  # whose samples are parts of one tensor of 69 MB
        return "it sends the whole memory of which a tensor is a part"
    return None


CONTENDERS = {
    "spdl_loader": Contender(
        "SPDL loader", SpdlLoader, partial(missing, "spdl.dataloader", "spdl.pipeline")
    ),
    "spdl_pool": Contender("SPDL pool", PoolLoader, partial(missing, "spdl.pipeline"), _refuses),
}
