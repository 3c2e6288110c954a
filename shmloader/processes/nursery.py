"""
The trainer's side of the nursery, the process that forks replacements of dead workers.

It is for the start method fork alone. If it is gone when it is needed, another one is started as
the first one was, but now: its dataset is the trainer's of now.
"""

from typing import Any

from shmloader.processes import mother, nursery_process
from shmloader.processes.channel import Channel
from shmloader.processes.mother import Mother
from shmloader.processes.spec import Spec, Succeed


class Nursery(Mother):
    """Starts replacements."""

    patience_s = 5.0  # with a process that may still be starting
    is_worker = False

    def __init__(self, context: Any, spec: Spec, succeed: Succeed, without: str) -> None:
        """
        Make the process; it is not started.

        Args:
            context: Of multiprocessing, one that forks.
            spec: What any of the workers is started with.
            succeed: A module's function, to be called in each replacement with the spec, the
                worker's id and the progress of the dead worker.
            without: What to do where a system call is refused that this needs.
        """
        mother.try_calls(without)
        self._context, self._spec, self._succeed = context, spec, succeed
        super().__init__()

    def _new_process(self, near_end: Channel, far_end: Channel) -> Any:
        spec = self._spec
        return self._context.Process(
            target=nursery_process.run,
            args=(
                *((spec.parent.pid, spec.parent.started), spec, self._succeed, far_end),
                near_end,  # with the trainer's endpoint it would see no EOF
            ),
            daemon=True,
        )

    @property
    def others(self) -> int:
        """How many were started after the first, with the dataset as it was then."""
        return max(0, self.count - 1)
