"""One look at trainings after another, and when it is over."""

from __future__ import annotations

import time

from shmloader.cli.attach.process_facts import lives
from shmloader.cli.attach.trainers import LiveTrainer, find_all, find_below, none_found
from shmloader.cli.command import CommandError
from shmloader.cli.top.show import way_to_show


def show_trainings(
    pid: int | None, *, once: bool, as_json: bool, interval_s: float, hangs_after_s: float
) -> int:
    """Show a training, or all, until it ends or Ctrl-C, and return the exit status."""
    has_seen = False
    try:
        with way_to_show(as_json, once) as show:
            while True:
                trainers, nothing, is_over = _look(pid, hangs_after_s, has_seen)
                has_seen = has_seen or bool(trainers)
                show(trainers, nothing)
                if once or is_over:
                    break
                time.sleep(interval_s)
    except KeyboardInterrupt:  # the way to leave
        pass
    return 0 if has_seen else 1


def _look(
    pid: int | None, hangs_after_s: float, has_seen: bool
) -> tuple[list[LiveTrainer], str, bool]:
    """Returns trainings, what to say if there are none, and True if there is no more to see."""
    if pid is None:
        trainers, forbidden = find_all(hangs_after_s)
        return trainers, none_found(forbidden), False
    try:
        return find_below(pid, hangs_after_s), "", False
    except CommandError as error:
        if not has_seen:
            raise
        return [], str(error) if lives(pid) else f"process {pid} has ended", True
