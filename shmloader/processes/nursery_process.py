"""
The nursery's process, which forks replacements of dead workers of the start method fork.

A replacement has to begin with the dataset as it was when the iterator was made, and the trainer's
own dataset may have changed since. So one more process is forked beside the workers; it keeps what
they were given and forks a worker for each order. It touches nothing else: no slot, no ring, no
dataset.
"""

import errno
import functools
import os
import pickle
from multiprocessing import context
from typing import Any

from shmloader.processes import forking, victims
from shmloader.processes.birth import Birth, close_inherited
from shmloader.processes.channel import Channel
from shmloader.processes.spec import Succeed
from shmloader.processes.watching import Watch

_NAME = "shm_nursery"  # at most 15 bytes


def run(
    trainer: tuple[int, str | None],
    spec: Any,
    succeed: Succeed,
    channel: Channel,
    trainers_endpoint: Channel,
) -> None:
    """
    Be the nursery until the trainer shuts the channel down, or dies.

    Args:
        trainer: The trainer's pid and start time.
        spec: What workers are started with.
        succeed: Called in each replacement.
        channel: This side's endpoint, at which orders come in.
        trainers_endpoint: The other endpoint, which came along by the fork.
    """
    victims.volunteer(spec.parent.score)
    handlers = forking.be_deaf(ignores=False)
    trainers_endpoint.close()
    close_inherited()
    forking.show_name(_NAME)
    try:
        sentinel, life = os.pipe()  # what it says to replacements, and our end
        be = functools.partial(_be, spec, succeed, handlers, (sentinel, life))
        forking.Forks(Watch(*trainer), channel, be).serve()
    except OSError as error:
        raise SystemExit(error.errno or errno.EIO) from error


def _be(
    spec: Any,
    succeed: Succeed,
    handlers: dict[int, Any],
    pipe: tuple[int, int],
    birth: Birth,
    _: list[int],
) -> int:
    """Be a replacement, as a process of multiprocessing. Returns the exit code."""
    sentinel, life = pipe
    os.close(life)

    def work() -> None:
        forking.hear_again(handlers, spec.signals)
        worker_id, progress = pickle.loads(birth.content())
        birth.close()
        succeed(spec, worker_id, progress)

    child: Any = context.ForkProcess(target=work, name="Replacement", daemon=spec.is_daemon)
    return forking.bootstrap(child, sentinel)
