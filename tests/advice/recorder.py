"""
Records loops that were run: their batches' times with one setting, and their rates with others.

    python -m tests.advice.recorder

The model is held against these files; run it again on another machine to hold it against that.
"""

import json
import time
import warnings
from pathlib import Path

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset

from shmloader import DataLoader
from shmloader.stats.setting import CYCLE
from shmloader.tuning import _Search

FOLDER = Path(__file__).parent / "recorded"
SECONDS = 4.0  # of each run


class Records(IterableDataset):
    """Arrays that take 3 ms each: WORKLOADS' W1, small."""

    def __iter__(self):
        while True:
            time.sleep(0.003125)
            yield numpy.random.random((10, 150))


class HeavyTail(Dataset):
    """One sample in 100 takes 50 times longer: W3."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(0.1 if index * 7919 % 100 == 3 else 0.002)
        return torch.full((64,), float(index))


class Uneven(Dataset):
    """Samples that take from 1 to 9 ms."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(0.001 * (1 + index * 7919 % 9))
        return torch.full((64,), float(index))


def as_it_is(samples):
    return samples


LOOPS = {
    "records": (
        lambda: DataLoader(Records(), batch_size=128, num_workers=2, collate_fn=as_it_is),
        0.05,
        [(2, 4), (2, 2), (4, 2), (6, 2), (8, 4), (12, 2)],
    ),
    "heavy_tail": (
        lambda: DataLoader(HeavyTail(), batch_size=8, num_workers=2),
        0.016,
        [(2, 2), (2, 4), (2, 8), (3, 2), (4, 2), (4, 8)],
    ),
    "uneven": (
        lambda: DataLoader(Uneven(), batch_size=4, num_workers=2),
        0.004,
        [(2, 2), (1, 2), (3, 2), (4, 2), (6, 2), (6, 4)],
    ),
}


def record(name):
    """Run a loop with each setting; the first one's times are kept."""
    make, step_s, settings = LOOPS[name]
    search = _Search(make(), step_s, SECONDS * 6, lambda line: print(name, line, flush=True))
    cases = [search._run(*setting, CYCLE) for setting in settings]
    first = cases[0]
    return {
        "setting": settings[0],
        "cores": first.setting.cores,
        "making_s": numpy.round(first.making, 6).tolist(),
        "step_s": numpy.round(first.step, 6).tolist(),
        "rates": [
            [*setting, round(case.facts["batches_per_s"], 3)]
            for setting, case in zip(settings, cases, strict=True)
        ],
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    for each in LOOPS:
        text = json.dumps(record(each))
        (FOLDER / f"{each}.json").write_text(text + "\n")
