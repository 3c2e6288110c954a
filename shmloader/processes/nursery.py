"""
The nursery, which forks replacements of dead workers of the start method fork.

A replacement has to begin with the dataset as it was when the iterator was made, and the trainer's
own dataset may have changed since. So one more process is forked beside the workers; it keeps what
they were given and forks a worker for each order. It touches nothing else: no slot, no ring, no
dataset.

If it is gone when it is needed, another one is started as the first one was, but now: its dataset
is the trainer's of now.
"""

import errno
import functools
import os
import pickle
from multiprocessing.context import ForkProcess
from typing import Any

from shmloader.processes import forking, mother, victims
from shmloader.processes.birth import Birth
from shmloader.processes.channel import Channel
from shmloader.processes.mother import Mother
from shmloader.processes.sealed import Spec, Succeed
from shmloader.processes.watching import Watch

_NAME = "shm_nursery"  # at most 15 bytes


class Nursery(Mother):
    """
    Starts replacements: the trainer's side.

    Each is started with the spec of any worker. Where a system call is refused that this needs, the
    error says what to do `without`.
    """

    patience_s = 5.0  # with a process that may still be starting
    is_worker = False

    def __init__(self, context: Any, spec: Spec, succeed: Succeed, without: str) -> None:
        mother.try_calls(without)
        self._context, self._spec, self._succeed = context, spec, succeed
        super().__init__()

    def _new_process(self, near_end: Channel, far_end: Channel) -> Any:
        # With the near end too, which it closes: with the trainer's endpoint it would see no EOF.
        arguments = self._spec, self._succeed, far_end, near_end
        return self._context.Process(target=run, args=arguments, daemon=True)

    @property
    def others(self) -> int:
        """How many were started after the first, with the dataset as it was then."""
        return max(0, self.count - 1)


def run(spec: Any, succeed: Succeed, channel: Channel, trainers_endpoint: Channel) -> None:
    """Be the nursery until the trainer shuts the channel down, or dies."""
    parent = spec.parent
    victims.volunteer(parent.score)
    handlers = forking.be_deaf(ignores=False)
    trainers_endpoint.close()
    forking.show_name(_NAME)
    try:
        sentinel, life = os.pipe()  # what it says to replacements, and our end
        be = functools.partial(_be, spec, succeed, handlers, (sentinel, life))
        forking.Forks(Watch(parent.pid, parent.started), channel, be).serve()
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

    child: Any = ForkProcess(target=work, name="Replacement", daemon=spec.is_daemon)
    return forking.bootstrap(child, sentinel)
