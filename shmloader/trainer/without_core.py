"""
What serves a loader where there are no slots of shared memory: torch's own loader.

Without workers the batches are as elsewhere. With workers they are torch's, options do nothing but
are checked, and one warning in the process says so. No state knows more than the beginning.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from shmloader.errors import at_users_line, warn_once
from shmloader.options import rules
from shmloader.options.options import OPTIONS, Options
from shmloader.order.order import NoPlace
from shmloader.samples.skip_errors import left_out_here
from shmloader.setup import requirements
from shmloader.stats import Held, Stats
from shmloader.trainer.without_workers import ServiceWithoutWorkers

_BEGINNING = "start"  # of a state: it is of no epoch that had begun


def note() -> str:
    """Say in a line that torch's loader runs in place of ours, and why."""
    return f"torch's own loader runs here: {requirements.LACKING}"


def say() -> None:
    """Warn once in this process."""
    named = ", ".join(OPTIONS)
    warn_once(
        f"{note()}. The batches are the same. With num_workers=0 seed_by, device and rng() work "
        f"as on Linux; with workers these options are checked and do nothing: {named}. stats() "
        "counts no batches, state_dict() does not know the position in an epoch, "
        "cached() and share() store nothing, and SharedList, SharedDict, Pool, publish(), "
        "subscribe(), tune(), trace() and the commands other than `run` are missing; so is "
        "downloaded() on Windows"
    )


class Service(ServiceWithoutWorkers):
    """Makes the iterators of one loader."""

    def __init__(self, keep_pages: bool = True) -> None:
        super().__init__()
        self.note = note()
        say()

    def iterate(self, loader: Any, options: Options) -> Any:
        """Start an iterator of torch's for a loader with workers."""
        at_users_line(loader.check_worker_number_rationality, torch.utils.data.DataLoader)
        rules.check(loader, options)
        self._loaded = None  # the beginning of an epoch: others are refused
        return _MultiProcessingDataLoaderIter(loader)

    def _place(self, loader: Any, options: Options) -> NoPlace:
        """Return what notes nothing: a loader's states are of its beginning."""
        return NoPlace()

    def load_state_dict(
        self, loader: Any, options: Options, state: Any, *, is_given: bool = False
    ) -> int | None:
        """
        Have the next iterator begin an epoch, as the state of a beginning says.

        Raises:
            ValueError, TypeError: It is another state; nothing has changed.
        """
        if isinstance(state, Mapping) and state.get("at", _BEGINNING) != _BEGINNING:
            raise ValueError(
                "this state is of a run that had begun, and torch's own loader cannot resume there "
                f"({requirements.LACKING}): load the state on Linux"
            )
        return super().load_state_dict(loader, options, state, is_given=is_given)

    def stats(self, loader: Any) -> Stats:
        """Say that nothing is counted but what this process has left out."""
        return Stats(left_out=left_out_here(loader.dataset), note=self.note)

    def held(self) -> list[Held]:
        """List no batches: none occupies a slot."""
        return []

    def logs(self) -> Iterator[Any]:
        """Refuse a trace."""
        raise RuntimeError(f"trace() has nothing to show: {self.note}")

    def close(self, loader: Any) -> None:
        """Stop the workers that live on between epochs."""
        iterator, loader._iterator, self.started = loader._iterator, None, None
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()
