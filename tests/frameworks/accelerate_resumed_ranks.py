"""Two ranks under Accelerate that go on within an epoch: `... FOLDER (whole | resumed)`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from tests.frameworks.needs import stand_in_for_operators

stand_in_for_operators()

import accelerate  # noqa: E402
import torch  # noqa: E402

import shmloader  # noqa: E402
from tests.frameworks.places import Place  # noqa: E402
from tests.frameworks.ranks import write  # noqa: E402
from tests.frameworks.training import WORKERS, Pictures, seed  # noqa: E402
from tests.frameworks.ways import spied  # noqa: E402

COUNT, SAVED_AT, STEPS = 72, 7, 15  # an epoch of a rank has five steps


def main(folder: str, part: str) -> None:
    seed()
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
    )
    loader = torch.utils.data.DataLoader(Pictures(COUNT), shuffle=True, **WORKERS)
    loader = accelerator.prepare(loader)
    loader.base_dataloader = shmloader.wrap(loader.base_dataloader, seed_by="batch")
    accelerator.register_for_checkpointing(Place(loader))
    saved = Path(folder, "saved")
    with spied() as made, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if part == "resumed":
            accelerator.load_state(saved)
        seen: list[float] = []
        first = SAVED_AT if part == "resumed" else 0
        while first + len(seen) < STEPS:
            for pictures, _ in loader:
                seen.append(pictures.sum().item())
                if part == "whole" and len(seen) == SAVED_AT:
                    accelerator.save_state(saved)
    told = sum("this state was saved by rank 0 of 2" in str(each.message) for each in caught)
    write(folder, part, accelerator.process_index, seen, made, told=told)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
