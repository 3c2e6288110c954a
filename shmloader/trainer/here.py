"""What serves one loader without workers, on any system; with workers, its subclasses do."""

import threading
from collections.abc import Callable
from typing import Any

from shmloader.errors import warn
from shmloader.options import rules
from shmloader.options.record import Options
from shmloader.order.order import NoPlace, Order
from shmloader.order.samplers import epoch_of
from shmloader.rooms import has_room, require_room
from shmloader.trainer.parts import Parts
from shmloader.trainer.single import SingleIterator

_RESUMING = "order/resuming"
_RESUMES = has_room(_RESUMING)
if _RESUMES:
    # Not when they are used: a process that has no descriptor left can import nothing.
    from shmloader.order.resuming.place import Place
    from shmloader.order.resuming.record import Record
    from shmloader.order.resuming.resumption import Resumption
    from shmloader.order.resuming.states import read


class ServiceHere:
    """
    Makes the iterators of one loader without workers, and knows where it is.

    Attributes:
        started: The iterator that the next iter() returns; None: it makes one.
        note: Why nothing is counted; "" if it is.
    """

    note = ""

    def __init__(self) -> None:
        self.started: Any = None
        self._started_epoch: int | None = None  # the sampler's then; None: that of a loaded state
        self._record: Record | None = None  # the last iterator's
        self._loaded: Resumption | None = None  # for the next one
        self._resumed_at: int | None = None  # the sampler's epoch where the last one went on

    @property
    def loaded(self) -> dict[str, Any] | None:
        """The state that was loaded, until an iterator goes on from it."""
        return None if self._loaded is None else self._loaded.state.copy()

    def iterate_here(self, loader: Any, options: Options) -> SingleIterator:
        """Start an iterator of a loader without workers."""
        rules.check(loader, options)
        self._look_back(loader)
        place = self._place(loader, options)
        order = Order(loader._index_sampler, place, is_packed=False)
        iterator = SingleIterator(loader, options, order, Parts(place))
        if place.record is not None:
            place.record.ask = iterator.dataset_to_ask()
        self._begin_from(place)
        return iterator

    def _place(self, loader: Any, options: Options) -> NoPlace:
        """Return what knows where a new iterator is, if the room of that is there."""
        return Place(loader, options, self._loaded) if _RESUMES else NoPlace()

    def _begin_from(self, place: NoPlace) -> None:
        self._loaded, self._record = None, place.record

    def state_dict(
        self,
        loader: Any,
        options: Callable[[], Options],
        *,
        is_ahead: bool = False,
        counted: int | None = None,
    ) -> dict[str, Any]:
        """
        Say where the loader is; what was loaded and not begun is where it is.

        Args:
            is_ahead: The loop has not seen the last batch, until the epoch is over.
            counted: How many batches the loop takes, if it never asks for the end of an epoch.
        """
        if self.loaded is not None:
            return self.loaded
        if not _RESUMES:
            require_room("state_dict()", _RESUMING)
        if self._record is None:
            self._record = self._live_record(loader) or Record(loader, options())
        return self._record.state_before() if is_ahead else self._record.state_dict(counted)

    def _live_record(self, loader: Any) -> Any:
        """Return the record of an iterator that a copy of a loader shares; None: it has none."""
        return None

    def load_state_dict(self, loader: Any, options: Options, state: Any) -> int | None:
        """
        Have the next iterator go on from a state.

        Returns:
            The sampler's epoch then; None if it has none.

        Raises:
            ValueError, TypeError: It cannot; nothing has changed.
        """
        require_room("load_state_dict()", _RESUMING)
        self._loaded = Resumption(loader, options, read(state)) if state != {} else None
        self._record = None
        self._end_start()
        # One whose workers live on would begin its next epoch where it is itself.
        loader._iterator = None
        return None if self._loaded is None else self._loaded.sampler_epoch

    def _look_back(self, loader: Any) -> None:
        """Warn if the sampler is told to go back behind the epoch of a state that was loaded."""
        before = self._resumed_at
        self._resumed_at = None if self._loaded is None else self._loaded.sampler_epoch
        epoch = epoch_of(loader._index_sampler)
        if before is not None and self._loaded is None and epoch < before:
            warn(
                f"the state that was loaded went on in the sampler's epoch {before}, and this "
                f"epoch is its {epoch}, whose order that run has had: call "
                f"set_epoch({before + 1}) now, and count on from there"
            )

    def start(self, loader: Any, begin: Callable[[], Any]) -> None:
        """Begin an epoch ahead, unless that was done."""
        if self.started_here() is None:
            is_resumed = self._loaded is not None
            self.started = begin()
            self._started_epoch = None if is_resumed else epoch_of(loader._index_sampler)

    def take_started(self, loader: Any) -> Any:
        """Return the iterator that was started ahead, if iter() would begin the same one now."""
        started = self.started_here()
        if started is None or self._started_epoch in (None, epoch_of(loader._index_sampler)):
            self.started = None
            return started
        # Workers that live on go to the new epoch by themselves.
        if loader._iterator is None:
            self._end_start()
        self.started = None
        return None

    def started_here(self) -> Any:
        """Return the iterator that was started ahead, unless a parent of this process did it."""
        if getattr(self.started, "is_of_another_process", False):
            self.started = None
        return self.started

    def _end_start(self) -> None:
        """Undo a start of an epoch ahead."""
        self.started = None


def why_unserved(loader: Any) -> str | None:
    """Say why the workers of a loader cannot fill slots; None if they can."""
    context = loader.multiprocessing_context
    process = getattr(context, "Process", None)
    if isinstance(process, type) and issubclass(process, threading.Thread):
        return (
            f"the workers of {type(context).__name__} are threads, and slots are filled by "
            "processes: use multiprocessing_context='fork', 'spawn' or 'forkserver' (with MONAI, "
            "use_thread_workers=False), or torch's own loader"
        )
    return None
