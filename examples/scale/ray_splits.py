"""
A pipeline of Ray Data as a dataset: `Splits`, for the loaders of ray_data_source.py.

    loader = shmloader.DataLoader(
        Splits(pipeline.streaming_split(2), batch_size=16),
        batch_size=None,  # they are batches already
        num_workers=2,  # one for each split
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
"""

import pickle

import ray
from torch.utils.data import IterableDataset, get_worker_info


class Splits(IterableDataset):
    """
    Batches of a Ray Data pipeline; each worker reads its own split.

    Args:
        splits: One per worker of the loader, of `streaming_split`.
        batch_size: Rows in a batch; the last one of a worker may have fewer.
    """

    def __init__(self, splits, batch_size):
        # A split is unpickled by a process that is connected, which a worker is not when it starts.
        self.splits = [ray.cloudpickle.dumps(split) for split in splits]
        self.address = ray.get_runtime_context().gcs_address
        self.batch_size = batch_size

    def __iter__(self):
        if not ray.is_initialized():
            ray.init(self.address, log_to_driver=False, logging_level="WARNING")
        split = pickle.loads(self.splits[get_worker_info().id])
        yield from split.iter_torch_batches(batch_size=self.batch_size, device="cpu")
