"""
Which process the kernel kills when memory is short: a worker, whose death can be healed.

The kernel takes the process that has most, and the trainer maps all slots, so it would lose the
run. Each process that starts or is a worker adds to its own `oom_score_adj`, which needs no right.
The trainer and a publisher keep theirs, and what a worker starts inherits the worker's.
"""

import contextlib

_PATH = "/proc/self/oom_score_adj"
_MOST = 1000
# In thousandths of the memory that bounds the process. Slots are half of that by default, so the
# trainer is no longer taken for them; a program that has more than half is still taken for itself.
_ADDED = 500


def own_score() -> int | None:
    """Read what this process adds to its memory; None if the system does not say."""
    with contextlib.suppress(OSError, ValueError), open(_PATH, encoding="ascii") as file:
        return int(file.read())
    return None


def volunteer(trainers_score: int | None) -> None:
    """Have the kernel take this process before the trainer, where the system lets it."""
    own = own_score()
    if trainers_score is None or own is None:
        return
    score = min(trainers_score + _ADDED, _MOST)
    if score > own:
        with contextlib.suppress(OSError), open(_PATH, "w", encoding="ascii") as file:
            file.write(str(score))
