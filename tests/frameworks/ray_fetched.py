"""
The dataset of examples/scale/ray_fetch.py in other uses: `ray_fetched.py FOLDER`; writes JSON.

"healed" tells if all batches were right though a worker was killed, "views" if the arrays that come
are not this process's own, "forkserver" if workers serve a trainer that is connected to Ray.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import shmloader

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scale"
sys.path.insert(0, str(EXAMPLES))

from ray_fetch import Fetched, Local, collate, makers  # noqa: E402
from ray_makers import names_of  # noqa: E402

NODES = SimpleNamespace(nodes=1, actors=2, side=256)  # a share is too large for Ray's short cut
COUNT = 256
LOADING = {"batch_size": 16, "collate_fn": collate, "num_workers": 2}


def right(batches: list[Any]) -> bool:
    """Returns True if batches are those of the samples in their order."""
    local = shmloader.DataLoader(Local(NODES.side, COUNT), **{**LOADING, "num_workers": 0})
    return len(batches) == len(local) and all(
        all(map(torch.equal, batch, expected))
        for batch, expected in zip(batches, local, strict=True)
    )


def healed(fetched: Fetched) -> bool:
    """Kill a worker after some batches. Returns True if a restart healed it."""
    with shmloader.DataLoader(fetched, restarts=1, slots=20, **LOADING) as loader:
        iterator = iter(loader)
        batches = [next(iterator) for _ in range(3)]
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        batches += iterator
        return right(batches) and loader.stats().restarts == 1


def views(fetched: Fetched) -> bool:
    """Fetch in this process. Returns True if the arrays lie in memory that is not its own."""
    arrays = [pictures for pictures, _ in fetched.__getitems__([*range(16)])]
    return not any(array.flags.owndata or array.flags.writeable for array in arrays)


def main(folder: str) -> None:
    with makers(NODES) as (address, _):

        def fetched() -> Fetched:
            return Fetched(address, names_of(NODES.actors), COUNT)

        outcome = {"healed": healed(fetched()), "views": views(fetched())}
        # This process is connected now, as one under Ray Train is.
        with shmloader.DataLoader(
            fetched(), multiprocessing_context="forkserver", slots=20, **LOADING
        ) as loader:
            outcome["forkserver"] = right(list(loader))
    Path(folder, "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
