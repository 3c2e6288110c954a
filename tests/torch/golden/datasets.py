"""Datasets of the golden runs; importable by name, so that spawned workers find them."""

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.helpers.datasets import Computed

from .samples import make_sample

# Seven batches of three, the last one short; a shard of it has four batches.
SAMPLE_COUNT = 20


class BulkMapStyle(Computed):
    """Samples by a list of indices at once."""

    def __getitems__(self, indices):
        return [make_sample(index) for index in indices]


class Stream(IterableDataset):
    """
    Every worker yields every sample.

    The reported length is that of one worker's stream, so that torch's length warning comes up.
    """

    def __iter__(self):
        return map(make_sample, range(SAMPLE_COUNT))

    def __len__(self):
        return SAMPLE_COUNT

    def __repr__(self):
        # The default one holds an address, which would differ within the length warning.
        return type(self).__name__


class ShardedStream(Stream):
    """Each worker yields its share of the samples."""

    def __iter__(self):
        info = get_worker_info()
        return map(make_sample, range(info.id, SAMPLE_COUNT, info.num_workers))


def shuffled_pipe():
    """Return a DataPipe that torch shards and shuffles by itself."""
    return IterableWrapper(range(SAMPLE_COUNT)).shuffle().sharding_filter().map(make_sample)


DATASETS = {
    "map": lambda: Computed(SAMPLE_COUNT, make_sample),
    "bulk": lambda: BulkMapStyle(SAMPLE_COUNT, make_sample),
    "iterable": Stream,
    "sharded": ShardedStream,
    "pipe": shuffled_pipe,
}
