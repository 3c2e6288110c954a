"""
SPDL's look-alike of torch's DataLoader: a process pool behind a pipeline, in order.

It has no persistent workers: it starts a pool in every epoch, even if the options ask for them.
"""

import importlib
from functools import partial

from bench.contenders._peers import PREFETCH, Collate, missing
from bench.loads.pools import Workload

label = "SPDL loader"
available = partial(missing, "spdl.dataloader", "spdl.pipeline")


def make_loader(workload: Workload, workers: int, persistent: bool, context: str) -> "SpdlLoader":
    """Make the loader; `persistent` is more than it can do."""
    make = importlib.import_module("spdl.dataloader").get_pytorch_dataloader
    loader = make(
        workload.dataset(),
        batch_size=workload.batch_size,
        collate_fn=Collate(workload),
        num_workers=workers,
        multiprocessing_context=context,
        prefetch_factor=PREFETCH,
        in_order=True,
    )
    return SpdlLoader(loader)


class SpdlLoader:
    """Its loader with a `close()`, which frees the segment of the pickled dataset."""

    def __init__(self, loader):
        self._loader = loader

    def __iter__(self):
        return iter(self._loader)

    def close(self) -> None:
        """Free the pickled dataset, which the loader itself leaves to the end of the process."""
        self._loader._shmem.close()
        self._loader._shmem.unlink()
