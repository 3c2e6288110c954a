"""Two ranks under Accelerate, started by a launcher: `accelerate_ranks.py FOLDER [dispatch]`."""

from __future__ import annotations

import sys
from typing import Any

from tests.frameworks.needs import stand_in_for_operators

stand_in_for_operators()

import accelerate  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from tests.frameworks.accelerate_loops import ACCUMULATED, prepared, train  # noqa: E402
from tests.frameworks.ranks import write  # noqa: E402
from tests.frameworks.training import WORKERS, Pictures, seed  # noqa: E402
from tests.frameworks.ways import INSTALL, TORCH, WRAP, Way, spied  # noqa: E402


def numbers(accelerator: accelerate.Accelerator, way: Way, count: int, size: int) -> Any:
    """Prepare a loader of the numbers from 0, twice: the second time must change nothing."""
    loader = way.loader(TensorDataset(torch.arange(count)), batch_size=size, num_workers=2)
    once = prepared(accelerator, way, loader)
    twice = accelerator.prepare(once)
    assert once is twice
    return twice


def main(folder: str, *options: str) -> None:
    configuration = accelerate.DataLoaderConfiguration(dispatch_batches="dispatch" in options)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATED, dataloader_config=configuration
    )
    for way in (TORCH, WRAP, INSTALL):
        seed()
        with way.active(), spied() as made:
            loader = way.loader(Pictures(), shuffle=True, **WORKERS)
            losses = train(accelerator, prepared(accelerator, way, loader))
            # Ten numbers in batches of two ranks times three: the last ones are padded.
            metrics = numbers(accelerator, way, count=10, size=3)
            gathered = [accelerator.gather_for_metrics(batch) for (batch,) in metrics]
            seen = [batch for (batch,) in numbers(accelerator, way, count=16, size=4)]
        extra = {"gathered": torch.cat(gathered).tolist(), "seen": torch.cat(seen).tolist()}
        write(folder, way, accelerator.process_index, losses, made, **extra)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
