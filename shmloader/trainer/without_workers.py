"""What serves one loader without workers, on any system; with workers, its subclasses do."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from shmloader.errors import warn
from shmloader.options import rules
from shmloader.options.options import Options
from shmloader.order.order import NoPlace, Order
from shmloader.order.samplers import epoch_of
from shmloader.setup.components import has_component, require_component
from shmloader.trainer.parts import Parts
from shmloader.trainer.single import SingleIterator

T = TypeVar("T")

_RESUMING = "order/resuming"
_RESUMES = has_component(_RESUMING)
if _RESUMES:
    # Not when they are used: a process that has no descriptor left can import nothing.
    from shmloader.order.resuming.checkpoint import Record
    from shmloader.order.resuming.place import Place
    from shmloader.order.resuming.resumption import Resumption
    from shmloader.order.resuming.states import read


class ServiceWithoutWorkers:
    """Makes the iterators of one loader without workers, and knows where it is."""

    note = ""  # why nothing is counted
    live_workers = 0  # that were found to be right, for the next run too; 0: not known

    def __init__(self) -> None:
        self.started: Any = None  # the iterator that the next iter() returns, if one was begun
        self._started_epoch: int | None = None  # the sampler's then; None: the rest of one comes
        self._record: Record | None = None  # the last iterator's
        self._loaded: Resumption | None = None  # for the next one
        self._resumed_at: int | None = None  # the sampler's epoch where the last one went on

    @property
    def loaded(self) -> dict[str, Any] | None:
        """The state that was loaded, until an iterator goes on from it."""
        return None if self._loaded is None else self._loaded.state.raw.copy()

    def begin_with(self, workers: Any, most: int) -> None:
        """Begin with so many workers, if it is a number and fewer than the most."""

    def iterate_here(self, loader: Any, options: Options) -> SingleIterator:
        """Start an iterator of a loader without workers."""
        rules.check(loader, options)
        self._look_back(loader)
        place = self._place(loader, options)
        order = Order(loader._index_sampler, place, is_packed=False)

        def make() -> SingleIterator:
            iterator = SingleIterator(loader, options, order, Parts(place))
            if place.record is not None:
                place.record.ask = iterator.dataset_to_ask()
            return iterator

        return self._made(place, make)

    def _place(self, loader: Any, options: Options) -> NoPlace:
        """Return what knows where a new iterator is, if that component is there."""
        return Place(loader, options, self._loaded) if _RESUMES else NoPlace()

    def _made(self, place: NoPlace, make: Callable[[], T]) -> T:
        """
        Make an iterator, of which the loader's states tell from then on.

        If an interrupt or an error comes first, nothing was drawn: the next iterator has the epoch
        that this one would have had, here and in a run that is resumed.
        """
        drawn_from = place.generator_states()
        try:
            iterator = make()
            self._record = place.record
            self._loaded = None  # second: until then it is where the loader is
        except BaseException:
            for generator, state in drawn_from:
                generator.set_state(state)
            raise
        return iterator

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
            require_component("state_dict()", _RESUMING)
        if self._record is None:
            self._record = self._live_record(loader) or Record(loader, options())
        state = self._record.state_before() if is_ahead else self._record.state_dict(counted)
        return {**state, "live_workers": self.live_workers}

    def _live_record(self, loader: Any) -> Any:
        """Return the record of an iterator that a copy of a loader shares; None: it has none."""
        return None

    def load_state_dict(
        self, loader: Any, options: Options, state: Any, *, is_given: bool = False
    ) -> int | None:
        """
        Have the next iterator go on from a state.

        Args:
            is_given: The loader is a copy of one that has loaded it, and has its sampler.

        Returns:
            The sampler's epoch then; None if it has none.

        Raises:
            ValueError, TypeError: It cannot; nothing has changed.
        """
        require_component("load_state_dict()", _RESUMING)
        loaded = Resumption(loader, options, read(state)) if state != {} else None
        self._end_start()
        # One whose workers live on would begin its next epoch where it is itself.
        loader._iterator = None
        if loaded is not None and not is_given:
            loaded.give(loader)
        self._loaded, self._record = loaded, None
        if loaded is not None and options.is_auto:
            self.live_workers = int(loaded.state.live_workers)
        return None if loaded is None else loaded.sampler_epoch

    def _look_back(self, loader: Any) -> None:
        """Warn if the sampler is told to go back behind the epoch of a state that was loaded."""
        before = self._resumed_at
        self._resumed_at = None if self._loaded is None else self._loaded.sampler_epoch
        epoch = epoch_of(loader._index_sampler)
        if before is not None and self._loaded is None and epoch < before:
            warn(
                f"the loaded state resumed in the sampler's epoch {before}, and this epoch has "
                f"number {epoch}, whose order that run has used already: call "
                f"set_epoch({before + 1}) now, and count from there"
            )

    def start(self, loader: Any, begin: Callable[[], Any]) -> None:
        """Begin an epoch ahead, unless that was done."""
        if self.started_here() is None:
            is_rest = self._loaded is not None and self._loaded.is_in_epoch
            self.started = begin()
            self._started_epoch = None if is_rest else epoch_of(loader._index_sampler)

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
            f"the workers of {type(context).__name__} are threads, and only processes can fill "
            "slots: use multiprocessing_context='fork', 'spawn' or 'forkserver' (with MONAI, "
            "use_thread_workers=False), or torch's own loader"
        )
    return None
