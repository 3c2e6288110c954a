"""DataLoader: torch's, over slots of shared memory; wrap() makes one of any torch loader."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, SupportsIndex, TypeVar, Unpack, cast

import torch.utils.data
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from shmloader import describing, looking
from shmloader.errors import at_users_line, if_allowed
from shmloader.holders import counted_by
from shmloader.options import rules
from shmloader.options.record import (
    OPTIONS,
    Device,
    Given,
    Options,
    by_name,
    options_of,
    takes_options,
    with_options,
)
from shmloader.stats import Held, Stats
from shmloader.trainer.chosen import Service
from shmloader.trainer.here import why_unserved

T = TypeVar("T", covariant=True)

if TYPE_CHECKING:
    from shmloader.advice.report import Report

    class _Torchs(torch.utils.data.DataLoader[T], Options):
        """Torch's class, with each option as an attribute."""

else:
    # How many parameters torch's class has is for type checkers alone: here it is not subscripted.
    _Torchs = {T: torch.utils.data.DataLoader}


class Indexed(Protocol[T]):
    """What is no `Dataset` by name and is taken for one, as by torch: a list, a range, a tensor."""

    def __getitem__(self, index: int, /) -> T: ...

    # For checkers alone: torch's own datasets have none, and what they are of is known by name.
    def __iter__(self) -> Iterator[Any]: ...


# Where Lightning notes the arguments of a loader made in one of its hooks, to build it again.
_SAVED_BY_LIGHTNING = "__pl_saved_kwargs"

_LOADED = "_loaded_state"  # the key of a state that a copy goes on from too


class DataLoader(_Torchs[T], Generic[T]):
    """
    A torch DataLoader whose workers write batches into shared memory.

    Takes every argument of `torch.utils.data.DataLoader` and behaves like it. With `num_workers=0`
    it is torch's own path, and an `UnusedOptionWarning` names the options that are for workers.
    Each is also an attribute.

    Args:
        slots: Number of slots, 1 to 2^20; each holds one batch on its way or in use. Default:
            `prefetch_factor * num_workers + 6`, or fewer under a short `ulimit -f`; the 6 serve
            batches that are held, and more come if batches are dropped late. Fewer only cost speed.
        slot_bytes: Bytes touched ahead in each slot, so that its first batch adds no pages; at most
            the memory that there is. Default: learnt from the last batches.
        ring_bytes: Ceiling in bytes for what all slots keep, 65536 to 2^62; a larger batch is an
            error. Default: half of the memory of the machine or control group, which the ranks of
            one machine share. With `slots=None` and `slot_bytes` given there are at most
            `ring_bytes // slot_bytes` slots.
        keep_pages: True keeps memory for the next epoch, which is what makes it fast, unless sizes
            vary too much to know how much, or others need it. False gives it back at the end of
            each epoch; `close()` does so at any time.
        restarts: How many deaths of workers are healed in each epoch: another worker takes the
            dead one's place, and every batch comes as it would have. With `timeout`, a worker that
            hangs for longer is killed and replaced too. 0 raises as torch does.
        assignment: "cycle" asks the workers in turn, as torch does. "dynamic" asks the one with the
            fewest unanswered requests, so that a slow sample holds up its own worker alone; the
            batches and their order stay the same. Map-style datasets only.
        seed_by: "worker" seeds `random`, `numpy.random` and torch in each worker once, as torch
            does. "batch" seeds them before each batch, and gives `shmloader.rng()`, so that no draw
            depends on the number of workers (0 included), their assignment, threads or restarts.
        fetch_threads: Threads in each worker that fetch the samples of the requests it holds, for
            datasets that wait for a network or a disk; `tune()` finds how many. 0: none, the
            worker itself fetches. The dataset must be safe for threads. Map-style datasets only.
        nice: Added to the trainer's niceness in each worker, 0 to 19. With 19, workers hardly take
            a core from a training step that computes on all of them.
        worker_bytes: Bytes of private memory by which a worker may grow after its start, for
            datasets that leak: one that grew more is replaced between two batches, and no batch
            changes. It is looked at once a second. None: never. Map-style datasets only.
        resumable: True has workers send with each batch where they are, so that a loader that loads
            a state goes on with the same random draws although `seed_by` is "worker", and with the
            states of the dataset and its iterator. Without it the order goes on, and
            an iterable dataset is fetched again up to its place.
        preload: Names of modules that workers of "spawn" or "forkserver" find imported, such as
            `("torchvision",)`: they are forked from a process that has imported these and torch.
            "forkserver" has such a process by default, "spawn" if this is given; with `()` each
            worker imports by itself, as with torch. "__main__" stands for the script.
        device: Where batches arrive, such as "cuda", or a `Device`, which says more: every plain
            CPU tensor of their containers and dataclasses is copied there, ahead of the step and on
            a stream of its own; all else stays what it is. Not with `pin_memory=True`. "cpu" copies
            nothing. Experimental: it has not run on a GPU yet.

    Raises:
        ValueError: As torch's, and for options out of range or that do not go together.
        TypeError: As torch's, and for options of a wrong type; numpy's integers are integers.

    While iterating:
        PreloadFailed: A module of `preload` cannot be imported.
        BatchTooLarge: A batch needs more than `ring_bytes`.
        OutOfSharedMemory: The machine has no room for a batch's pages.
        UnsendableBatch: A leaf of a batch cannot be pickled.
        WorkerBroken: A worker wrote what the protocol does not allow.
    """

    _device: Device | None  # the option, even in a class with a device of its own

    @takes_options
    def __init__(
        self,
        dataset: Dataset[T] | Indexed[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        **options: Unpack[Given],
    ) -> None:
        ours = options_of("DataLoader.__init__", options)
        self._set_options(ours)
        super().__init__(
            cast("Dataset[T]", dataset),
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        rules.check(self, ours)
        rules.advise(self, ours)

    def _set_options(self, options: Options) -> None:
        own = vars(self).get("device")
        vars(self).update(by_name(options), _device=options.device)
        if own is not None and not isinstance(own, Device):
            self.device = own  # many classes have one for themselves
        self._service = Service(self.keep_pages)

    def start(self) -> None:
        """
        Begin now what the next `iter(loader)` would: workers start and fetch the first batches.

        For the time in which a model is compiled or a checkpoint loaded. What `iter()` draws from
        random generators and samplers is drawn now, and the dataset of workers is that of now. It
        does nothing if it was called since the last `iter()`. `close()`, `load_state_dict()` and
        another epoch of the sampler, by `set_epoch()`, undo it, but for the draws.
        """
        self._service.start(self, super().__iter__)

    def __iter__(self) -> Any:
        started = self._service.take_started(self)
        return super().__iter__() if started is None else started

    def _get_iterator(self) -> Any:
        options = self._options()
        if self.num_workers == 0:
            return self._service.iterate_here(self, options)
        return self._service.iterate(self, options)

    def _options(self) -> Options:
        # They are attributes, which may have been changed.
        options = by_name(self)
        if not isinstance(options["device"], Device):
            options["device"] = self._device
        return Options(**options)

    def check_worker_number_rationality(self) -> None:
        """Warn of more workers than processors, as torch does, but at the line of user code."""
        with if_allowed():  # the system may refuse to tell how many there are
            at_users_line(super().check_worker_number_rationality, torch.utils.data.DataLoader)

    def __repr__(self) -> str:
        """Describe the loader in one line, without running code of the dataset's."""
        name = "shmloader.DataLoader" if type(self) is DataLoader else type(self).__name__
        return describing.describe(self, name, inspect.signature(DataLoader.__init__).parameters)

    def stats(self) -> Stats:
        """Count what this loader has done since it was made, over all epochs and live iterators."""
        return self._service.stats(self)

    def report(self, picture: str | os.PathLike[str] | None = None) -> Report:
        """
        Say what limits the loop, and what to change: `print(loader.report())`.

        It judges the last epoch, which may be running, by the last 2,048 of its batches, from the
        one on with which the workers' start is over.

        Args:
            picture: A file for a picture of the waits and fetches of its last 400 batches, such as
                "waits.png".

        Raises:
            ImportError: matplotlib draws the picture, and is not installed: the extra `cli`.
            ValueError: There is no batch to draw.
            OSError: The picture cannot be written.
        """
        report = looking.report_of(self._service, self, self._options())
        if picture is not None:
            looking.draw(self._service, picture, report.cause or "")
        return report

    def held(self) -> list[Held]:
        """
        List the batches that still occupy a slot, because something points into it.

        Spilled batches occupy none, nor do the small leaves of a large batch. What is held after
        `close()` is memory of its own that goes with the batch.
        """
        return self._service.held()

    def trace(self, path: str | os.PathLike[str]) -> None:
        """
        Write what the trainer and each worker did for the last batches, up to 2048 per iterator.

        Args:
            path: A JSON file of Chrome's trace events, which https://ui.perfetto.dev opens. It is
                replaced as a whole.

        Raises:
            RuntimeError: No worker has returned a batch yet, or the loader was closed since.
            OSError: The file cannot be written.
        """
        looking.write_trace(path, [self._service])

    def state_dict(self) -> dict[str, Any]:
        """
        Say where the loader is in its epoch, for `load_state_dict` of one like it in another run.

        Of the batches that were delivered by its last iterator, not of those on their way. It is a
        copy, never raises, and takes microseconds; where the dataset or the sampler has a
        state_dict(), what that takes comes on top.

        Returns:
            ints, strs and bytes under keys that are always the same, and what such a state_dict()
            returned: for torch.save(), and without bytes for JSON too.
        """
        counted = counted_by(sys._getframe(1), self)
        return self._service.state_dict(self, self._options, counted=counted)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Have the next iter() go on where a state says.

        Workers of the last epoch are let go. The batches are those that would have come, random
        draws included with `seed_by="batch"` or `resumable=True`.

        Args:
            state: What `state_dict` returned, here or in another run, or `merge_states`, for
                another number of ranks; {} forgets one that was loaded.

        Raises:
            ValueError: It was saved by a loader of another dataset length, batch size, sampler,
                `seed_by`, number of ranks or version, or is damaged. Nothing has changed then.
            TypeError: It is no dictionary.
        """
        self._service.load_state_dict(self, self._options(), state)

    def close(self) -> None:
        """
        Stop all workers and free all shared memory that no batch in use lies in.

        Batches that are held stay valid. Iterating again starts afresh. Leaving `with loader:` does
        the same.
        """
        self._service.close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        service = state.pop("_service", None)  # it lives with a process
        if service is not None and service.loaded is not None:
            state[_LOADED] = service.loaded
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        loaded = self.__dict__.pop(_LOADED, None)
        self._service = Service(self.keep_pages)
        self._go_on_from(loaded)

    def _go_on_from(self, loaded: Mapping[str, Any] | None) -> None:
        """Load what was loaded into the loader that this is a copy of, which warned of it."""
        if loaded is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._service.load_state_dict(self, self._options(), loaded)


def _class_over(kind: type[torch.utils.data.DataLoader[Any]]) -> type[DataLoader[Any]]:
    """The class of a wrapped loader: ours before its own class."""
    if kind in (torch.utils.data.DataLoader, DataLoader):
        return DataLoader
    if issubclass(kind, DataLoader):
        return kind
    body: dict[str, Any] = {"__init__": _init_over(kind), "__reduce_ex__": _reduce_wrapped}
    body["__doc__"] = kind.__doc__
    body["__module__"] = kind.__module__
    if kind.__repr__ is not torch.utils.data.DataLoader.__repr__:
        body["__repr__"] = kind.__repr__
    return type(kind.__name__, (DataLoader, kind), body)


def _init_over(kind: type[torch.utils.data.DataLoader[Any]]) -> Callable[..., None]:
    """
    Make an __init__ that takes the kind's own arguments and our options.

    Lightning reads its signature, and builds the loader again with another sampler.
    """
    theirs = inspect.signature(kind.__init__)
    ours = OPTIONS.keys() - theirs.parameters.keys()

    def __init__(self: DataLoader[Any], *arguments: Any, **options: Any) -> None:
        given = {name: options.pop(name) for name in ours & options.keys()}
        self._set_options(Options(**given))
        kind.__init__(self, *arguments, **options)
        rules.check(self, self._options())
        rules.advise(self, self._options())

    made: Any = __init__
    made.__signature__ = with_options(theirs)
    return __init__


def _reduce_wrapped(loader: DataLoader[Any], protocol: SupportsIndex) -> tuple[Any, ...]:
    # The class was made by wrap() and has no name to be pickled by.
    return _rebuild_wrapped, (type(loader).__bases__[1], loader.__getstate__())


def _rebuild_wrapped(
    kind: type[torch.utils.data.DataLoader[Any]], state: dict[str, Any]
) -> DataLoader[Any]:
    loader = object.__new__(_class_over(kind))
    loader.__setstate__(state)
    return loader


def _refuse_if_unserved(loader: Any) -> None:
    """Raise TypeError for a loader whose batches would not come from the wrapped one."""
    kind = type(loader)
    if issubclass(kind, DataLoader):
        return
    inner = _loaders_in(vars(loader))
    if not issubclass(kind, torch.utils.data.DataLoader):
        raise TypeError(_PROXY.format(kind=kind.__qualname__) + _way_inside(inner))
    if inner and kind.__iter__ is not torch.utils.data.DataLoader.__iter__:
        raise TypeError(_THROUGH.format(kind=kind.__qualname__) + _way_inside(inner))
    if kind._get_iterator is not torch.utils.data.DataLoader._get_iterator:
        raise TypeError(_OWN_ITERATORS.format(kind=kind.__qualname__))
    for name, value in vars(loader).items():
        if name != "_iterator" and isinstance(value, _BaseDataLoaderIter):
            raise TypeError(_LIVE_ITERATOR.format(kind=kind.__qualname__, name=name))
    reason = why_unserved(loader)
    if reason:
        raise TypeError(reason)


def _loaders_in(attributes: dict[str, Any]) -> list[str]:
    """List the attributes that are loaders, and in lists the places that are."""
    found = []
    for name, value in attributes.items():
        if issubclass(type(value), torch.utils.data.DataLoader):
            found.append(name)
        elif type(value) is list:
            kinds = map(type, value)
            places = [
                i for i, it in enumerate(kinds) if issubclass(it, torch.utils.data.DataLoader)
            ]
            found += [f"{name}[{place}]" for place in places]
    return found


def _way_inside(inner: list[str]) -> str:
    if not inner:
        return ": wrap the loader before it is given to that"
    return f": wrap the loader inside, loader.{inner[0]} = shmloader.wrap(loader.{inner[0]})"


_PROXY = "wrap() takes a torch.utils.data.DataLoader, but {kind} only stands for one"
_THROUGH = "wrap() would have no effect on {kind}, which iterates another loader"
_OWN_ITERATORS = (
    "wrap() would take from {kind} the iterators that it makes in _get_iterator(): if that calls "
    "super()._get_iterator(), construct a class Served({kind}, shmloader.DataLoader) instead, "
    "otherwise a shmloader.DataLoader with the same arguments"
)
_LIVE_ITERATOR = (
    "wrap() would have no effect on {kind}, which goes on with the live iterator in loader.{name}: "
    "wrap it before it is iterated, or construct a class Served({kind}, shmloader.DataLoader)"
)


@takes_options
def wrap(loader: torch.utils.data.DataLoader[T], **options: Unpack[Given]) -> DataLoader[T]:
    """
    Make a torch DataLoader, even of a subclass, deliver through shared memory.

    Neither the dataset nor a sampler is built again: the new loader shares them with the old one. A
    loader that gets its batches past the wrapped one is refused, and the error says what to do.

    Args:
        loader: A `torch.utils.data.DataLoader`.
        **options: As for `DataLoader`.

    Returns:
        A `shmloader.DataLoader` that is also an instance of the given loader's class.

    Raises:
        TypeError: It is no torch DataLoader, it makes its own iterators, holds a live one or goes
            through another loader, its workers are threads, or an option is of a wrong type.
        ValueError: An option is out of range, or two do not go together.
    """
    ours = options_of("wrap", options)
    if not isinstance(loader, torch.utils.data.DataLoader):
        got = f"wrap() takes a torch.utils.data.DataLoader, but got {type(loader).__name__}"
        inner = _loaders_in(getattr(loader, "__dict__", {}))
        raise TypeError(got + (_way_inside(inner) if inner else ""))
    _refuse_if_unserved(loader)
    wrapped: DataLoader[T] = object.__new__(_class_over(type(loader)))
    state = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    wrapped.__dict__.update(state, _iterator=None)
    wrapped._set_options(ours)
    rules.check(wrapped, ours)
    rules.advise(wrapped, ours)
    if isinstance(loader, DataLoader):
        wrapped._go_on_from(loader._service.loaded)
    if _SAVED_BY_LIGHTNING in state:
        saved = state[_SAVED_BY_LIGHTNING]
        wrapped.__dict__[_SAVED_BY_LIGHTNING] = {**saved, **by_name(ours)}
    return wrapped
