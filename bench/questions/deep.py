"""
1,000 batches of 9.6 MB ahead of a training that is elsewhere for a while, with torch and with ours.

    python -m bench deep
    python -m bench deep --most 200 --away 3

Every batch is compared. One process for each loader; it takes 11 GB of memory for 1,000 batches.
"""

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice

import torch
from torch.utils.data import default_collate

from bench.driver import alone
from bench.loaders import LOADERS, opened
from bench.loads.images import SIDE, crops
from bench.question import Options, Question, number

_BATCH, _ROUNDS, _WORKERS = 64, 2, 2
_BATCH_BYTES = _BATCH * 3 * SIDE * SIDE


def records(options: Options) -> Iterator[dict]:
    """Yield a row for each loader; it is right if all batches were."""
    count = _ROUNDS * options.most * _BATCH
    dataset = crops(count)
    batches = (range(at, at + _BATCH) for at in range(0, count, _BATCH))
    right = [list(_look(default_collate([dataset[i] for i in batch]))) for batch in batches]
    for loader in LOADERS:
        ran = alone(partial(run, loader, options.most, options.away))
        yield {"loader": loader, **ran, "correct": ran["looks"] == right}


def _look(batch: list[torch.Tensor]) -> tuple[int, int]:
    """What a step reads here: a part of each picture, and all labels. It tells batches apart."""
    pictures, labels = batch
    return int(pictures[:, :, ::56, ::56].sum()), int(labels.sum())


def run(loader: str, most: int, away_s: float) -> dict:
    """Take the batches. Returns the rate of the last round, and what was seen."""
    options: dict = {"num_workers": _WORKERS, "prefetch_factor": most // _WORKERS}
    if loader == "ours":
        options["ring_bytes"] = round(1.1 * (most + 8) * _BATCH_BYTES)
    with opened(loader, crops(_ROUNDS * most * _BATCH), _BATCH, **options) as loaded:
        batches = iter(loaded)
        looks = [_look(next(batches))]
        for _ in range(_ROUNDS):
            time.sleep(away_s)
            begin, before = time.perf_counter(), len(looks)
            looks += map(_look, islice(batches, most))
            rate = (len(looks) - before) / (time.perf_counter() - begin)
    return {"batches/s then": rate, "looks": looks}


QUESTION = Question(
    records,
    {
        "most": number(1000, "batches ahead, an even number"),
        "away": number(12.0, "seconds that training is away"),
    },
)
