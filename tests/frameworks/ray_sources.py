"""
Ray Data as the dataset of a loader: `ray_sources.py FOLDER`; writes what came out, as JSON.

"direct" has the batches that Ray Data gives the trainer itself; "iterator" those of one worker that
reads the same iterator; "splits" those of two workers, each with a split.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import ray
import ray.data
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.frameworks.ray_sessions import start
from tests.frameworks.ways import IMPORT, spied
from tests.helpers.segments import in_slots

ROWS = 64
SIZE = 8
WIDTH = 1024  # smaller leaves would be copied out of their slot


class Source(IterableDataset):
    """Batches of Ray Data's iterators, one iterator per worker."""

    def __init__(self, iterators: list[Any]) -> None:
        self.iterators = [ray.cloudpickle.dumps(each) for each in iterators]
        self.address = ray.get_runtime_context().gcs_address

    def __iter__(self) -> Iterator[Any]:
        if not ray.is_initialized():
            ray.init(self.address, log_to_driver=False)
        info = get_worker_info()
        assert info is not None
        mine = pickle.loads(self.iterators[info.id])
        yield from mine.iter_torch_batches(batch_size=SIZE, device="cpu")


def columns(rows: dict[str, Any]) -> dict[str, Any]:
    return {"id": rows["id"], "x": rows["id"][:, None].repeat(WIDTH, 1) / 7}


def table() -> Any:
    return ray.data.range(ROWS, override_num_blocks=4).map_batches(columns)


def listed(batches: Iterable[dict[str, torch.Tensor]]) -> list[Any]:
    """Note each row's number, and the sum of its values."""
    return [{"id": batch["id"].tolist(), "x": batch["x"].sum(1).tolist()} for batch in batches]


def loaded(iterators: list[Any]) -> dict[str, Any]:
    """Read iterators by a worker each, twice: an epoch more must start Ray Data again."""
    with spied() as made:
        loader = IMPORT.loader(
            Source(iterators),
            batch_size=None,
            num_workers=len(iterators),
            multiprocessing_context="forkserver",
            persistent_workers=True,
        )
        epochs, inside = [], []
        with loader:
            for _ in range(2):
                epochs.append([])
                for batch in loader:
                    epochs[-1] += listed([batch])
                    inside += in_slots([batch["x"]])
    return {
        "epochs": epochs,
        "slots": all(inside),
        "ours": made.ours,
        "torchs": made.torchs,
    }


def main(folder: str) -> None:
    start()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    outcome = {
        "direct": listed(table().iter_torch_batches(batch_size=SIZE, device="cpu")),
        "iterator": loaded([table().iterator()]),
        "splits": loaded(table().streaming_split(2)),
    }
    ray.shutdown()
    Path(folder, "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
