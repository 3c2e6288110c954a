"""
States as each version of their format has them, with the batches that came next.

    python -m tests.resume.earlier tests/resume/states_2.json

writes a file for the version of now. One is written when the version goes up, by the last commit
that has it, and never changed: a state that a user has saved does not change either.
"""

import base64
import json
import sys
from pathlib import Path

from torch.utils.data import DistributedSampler

from shmloader import merge_states
from tests.resume.interrupted import (
    BATCHES,
    COUNT,
    Counting,
    Drawing,
    Placed,
    Run,
    Stream,
    disturb,
    opened,
    plain,
    quiet,
)

FOLDER = Path(__file__).parent
WORKERS = {"num_workers": 2, "seed_by": "worker", "resumable": True}
# A run and how many batches it had when its state was taken.
RUNS = {
    "by batch": (Run(Drawing, {}), 4),
    "by batch, its last step": (Run(Drawing, {"num_workers": 1}), BATCHES),
    "by worker": (Run(Drawing, WORKERS), 4),
    "a stream": (Run(Stream, {"num_workers": 1}), 4),
    "a stream, by worker": (Run(Stream, {**WORKERS, "num_workers": 1}), 4),
    "iterators with a state": (Run(Placed, WORKERS), 4),
    "a dataset with a state": (Run(Counting, WORKERS), 4),
}
MERGED = "two ranks, merged"


def rank_of(ranks, rank):
    """Make the loader of a rank, whose batches are parts of the same steps."""
    sampler = DistributedSampler(range(COUNT), ranks, rank)
    return opened(Drawing(), {"batch_size": 4 // ranks, "shuffle": False, "sampler": sampler})


def opened_for(name):
    """Make the loader that goes on with a row's state."""
    return (
        rank_of(1, 0) if name == MERGED else opened(RUNS[name][0].dataset(), RUNS[name][0].options)
    )


def batches_of(loader):
    """What is left of an epoch, and the next one."""
    return [[plain(batch) for batch in loader] for _ in range(2)]


def gone_on(name, state):
    """What comes after a state."""
    disturb(1)
    with quiet(), opened_for(name) as loader:
        loader.load_state_dict(state)
        return batches_of(loader)


def read(path):
    """The rows of a file: name, state, and the batches that came."""
    rows = json.loads(path.read_text(), object_hook=_with_bytes)
    return {name: (row["state"], row["epochs"]) for name, row in rows.items()}


def _taken(loader, position):
    iterator = iter(loader)
    for _ in range(position):
        next(iterator)
    return loader.state_dict()


def _states():
    """Yield each row's name and state."""
    for name, (run, position) in RUNS.items():
        disturb(0)
        with quiet(), opened(run.dataset(), run.options) as loader:
            yield name, _taken(loader, position)
    yield MERGED, merge_states([_taken(rank_of(2, rank), 2) for rank in range(2)])


def _as_text(value):
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"a state holds {value!r}")


def _with_bytes(found):
    return base64.b64decode(found["base64"]) if list(found) == ["base64"] else found


def main(path):
    """Write the file."""
    rows = [
        f"{json.dumps(name)}: {_text({'state': state, 'epochs': gone_on(name, state)})}"
        for name, state in _states()
    ]
    Path(path).write_text("{\n" + ",\n".join(rows) + "\n}\n")


def _text(row):
    return json.dumps(row, default=_as_text)


if __name__ == "__main__":
    main(sys.argv[1])
