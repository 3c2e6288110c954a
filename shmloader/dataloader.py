"""DataLoader: torch's, over slots of shared memory; wrap() makes one of any torch loader."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    Self,
    SupportsIndex,
    TypeVar,
    Unpack,
    cast,
)

import torch.utils.data
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from shmloader.introspection import loader_repr, reports
from shmloader.introspection.framework_wrappers import counted_by
from shmloader.options import rules
from shmloader.options.options import (
    AUTO,
    OPTIONS,
    Device,
    Given,
    Options,
    by_name,
    options_of,
    options_over,
    takes_options,
    with_options,
    with_workers,
)
from shmloader.stats import Held, Stats
from shmloader.trainer import forewarning
from shmloader.trainer.chosen import Service
from shmloader.trainer.without_workers import why_unserved

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
    torch's own code runs, and an `UnusedOptionWarning` names the options that are for workers.
    Each option is also an attribute.

    Args:
        slots: Number of slots, 1 to 2^20; each holds one batch in flight or in use. Default:
            `prefetch_factor * num_workers + 6`, or fewer under a short `ulimit -f`. The 6 are for
            batches that you hold; more are added if batches are dropped late. Fewer slots only cost
            speed.
        slot_bytes: Bytes that are pre-faulted in each slot, so that its first batch adds no pages;
            at most the memory of the machine. Default: estimated from the last batches.
        ring_bytes: Most bytes that all slots together retain, 65536 to 2^62; a larger batch is an
            error. Default: half of the memory of the machine or control group, which the ranks of
            one machine share. With `slots=None` and `slot_bytes` given there are at most
            `ring_bytes // slot_bytes` slots.
        keep_pages: True retains memory for the next epoch, which makes that epoch fast, unless
            batch sizes vary too much to estimate how much, or others need the memory. False
            releases it at the end of each epoch; `close()` does so at any time.
        restarts: How many worker deaths per epoch the loader recovers from: the worker is replaced,
            and every batch is delivered as it would have been. With `timeout`, a worker that hangs
            for longer is killed and replaced too. 0 raises as torch does.
        min_workers, max_workers: With `num_workers="auto"` the fewest and the most workers, 1 to
            4096. Then the loader adds and removes workers while it runs, by how long the loop
            waits for them, and no batch changes: "auto" implies `seed_by="batch"`. Default:
            1, and 4 for each usable core, from 4 to 32. `loader.num_workers` is the most. A number
            given with `max_workers` means "auto" too; one below it is the first. Map-style datasets
            only.
        assignment: "cycle" sends requests to the workers in turn, as torch does. "dynamic" sends
            each to the worker with the fewest outstanding requests, so that a slow sample delays
            its own worker alone; the batches and their order stay the same. Map-style datasets
            only.
        seed_by: "worker" seeds `random`, `numpy.random` and torch in each worker once, as torch
            does. "batch" seeds them before each batch, and enables `shmloader.rng()`; then random
            numbers do not depend on the number of workers (0 included), assignment, threads or
            restarts.
        fetch_threads: Threads in each worker that fetch the samples of its requests, for datasets
            that wait for a network or a disk; `tune()` finds how many. With 0 the worker's main
            thread fetches. The dataset must be thread-safe. Map-style datasets only.
        nice: Added to the training process's niceness in each worker, 0 to 19. With 19, workers
            hardly take a core from a training step that computes on all cores.
        worker_bytes: Bytes of private memory by which a worker may grow after its start, for
            datasets that leak. A worker that grew more is replaced between two batches, and no
            batch changes; growth is checked once a second. None: no limit. Map-style datasets only.
        resumable: True has workers send their position with each batch. A loader that loads such a
            state resumes with the same random numbers even if `seed_by` is "worker", and with the
            states of the dataset and its iterator. Without it the order resumes, and the samples of
            an iterable dataset up to its position are fetched again.
        preload: Names of modules that are imported once for all workers of "spawn" or "forkserver",
            such as `("torchvision",)`: workers are forked from a process that has imported them and
            torch. "forkserver" has such a process by default, "spawn" if this is given; with `()`
            each worker imports its modules itself, as with torch. "__main__" means the script.
        device: Where batches arrive, such as "cuda", or a `Device` with more options: every plain
            CPU tensor in their containers and dataclasses is copied there, before the step needs it
            and on a separate stream; all other values are delivered unchanged. Not with
            `pin_memory=True`. "cpu" copies nothing. Experimental: one GPU model was tried.

    Raises:
        ValueError: As torch's, and for options that are out of range or exclude each other.
        TypeError: As torch's, and for options of a wrong type; numpy's integers are accepted.

    While iterating:
        PreloadFailed: A module of `preload` cannot be imported.
        BatchTooLarge: A batch needs more than `ring_bytes`.
        OutOfSharedMemory: The machine has no memory for a batch's pages.
        UnsendableBatch: A value in a batch cannot be pickled.
        WorkerBroken: A worker wrote what the protocol does not allow.
    """

    _device: Device | None  # the option, even in a class with a device of its own
    _most_workers = 0  # what num_workers is with "auto", until it is set

    @takes_options
    def __init__(
        self,
        dataset: Dataset[T] | Indexed[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
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
        most, settled = with_workers(num_workers, options)
        ours = options_of("DataLoader.__init__", settled)
        self._set_options(ours)
        super().__init__(
            cast("Dataset[T]", dataset),
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            most,
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
        self._begin_with(num_workers, ours)

    def _begin_with(self, num_workers: Any, options: Options) -> None:
        """Have as many workers as may be, begin with so many if it is a number; check options."""
        if self.max_workers is not None and self.num_workers > 0:
            self._service.begin_with(num_workers, self.max_workers)
            self.num_workers = self._most_workers = self.max_workers
        rules.check(self, options)
        rules.advise(self, options)

    def _set_options(self, options: Options) -> None:
        own = vars(self).get("device")
        vars(self).update(by_name(options), _device=options.device)
        if own is not None and not isinstance(own, Device):
            self.device = own  # many classes have one for themselves
        self._service = Service(self.keep_pages)

    def start(self) -> None:
        """
        Start the workers now, before `iter(loader)`: they fetch the first batches.

        Call it before you compile a model or load a checkpoint. What `iter()` draws from random
        generators and samplers is drawn now, and workers get the dataset in its present state. A
        second call before the next `iter()` does nothing. `close()`, `load_state_dict()` and
        another epoch of the sampler, by `set_epoch()`, undo the start, but not the drawing of
        random numbers.
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
        was_set = self.num_workers not in (0, self._most_workers)
        if was_set and self._most_workers > 0 and self.max_workers is not None:
            options["max_workers"] = self.num_workers  # which is the most
        return Options(**options)

    def check_worker_number_rationality(self) -> None:
        """Warn of more workers than processors, as torch does, but at the line of user code."""
        if self.max_workers is not None:
            return  # there are as many as pay
        forewarning.check_worker_number(self, super().check_worker_number_rationality)

    def __repr__(self) -> str:
        """Describe the loader in one line, without running code of the dataset's."""
        name = "shmloader.DataLoader" if type(self) is DataLoader else type(self).__name__
        return loader_repr.describe(self, name, inspect.signature(DataLoader.__init__).parameters)

    def stats(self) -> Stats:
        """Return what this loader has done since it was made, in all epochs and live iterators."""
        return self._service.stats(self)

    def report(self) -> Report:
        """
        Report what limits the loop, and what to change: `print(loader.report())`.

        The report is on the last epoch, which may be running: on its last 2,048 batches, without
        those for which workers were started.
        """
        return reports.report_of(self._service, self, self._options())

    def held(self) -> list[Held]:
        """
        List the batches that still occupy a slot, because something points into it.

        Batches that were copied out occupy no slot, nor do the small values of a large batch. Once
        its slots are closed, as by `close()`, a batch is not listed; its memory is freed with it.
        """
        return self._service.held()

    def trace(self, path: str | os.PathLike[str]) -> None:
        """
        Write a trace of the training process and each worker, up to 2048 batches per iterator.

        Args:
            path: A JSON file of Chrome's trace events, which https://ui.perfetto.dev opens. An
                existing file is replaced at once.

        Raises:
            RuntimeError: No worker has returned a batch yet, or the loader was closed since.
            OSError: The file cannot be written.
        """
        reports.write_trace(path, [self._service])

    def state_dict(self) -> dict[str, Any]:
        """
        Return the loader's position in its epoch, for `load_state_dict` in another run.

        The position is that after the batches which the last iterator delivered, not those in
        flight. The call returns a copy, never raises, and takes microseconds, plus the time of the
        state_dict() of a dataset or sampler that has one.

        Returns:
            ints, strs and bytes under keys that are always the same, and what a state_dict() of the
            dataset or sampler returned: for torch.save(), and without bytes for JSON too.
        """
        counted = counted_by(sys._getframe(1), self)
        return self._service.state_dict(self, self._options, counted=counted)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Have the next iter() resume from a state.

        Workers of the last epoch are ended. The batches are those that would have come, with the
        same random numbers if `seed_by="batch"` or `resumable=True`.

        Args:
            state: What `state_dict` returned, in this run or another, or `merge_states`, for
                another number of ranks; {} undoes an earlier call.

        Raises:
            ValueError: The state is damaged, or was saved by a loader of another dataset length,
                batch size, sampler, `seed_by`, number of ranks or version. Nothing has changed
                then.
            TypeError: The state is not a dictionary.
        """
        self._service.load_state_dict(self, self._options(), state)

    def close(self) -> None:
        """
        Stop all workers and free all shared memory but that of batches in use.

        Batches that are held stay valid. Iterating again starts new workers. Leaving `with loader:`
        does the same.
        """
        self._service.close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
                self._service.load_state_dict(self, self._options(), loaded, is_given=True)


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
        self._begin_with(self.num_workers, self._options())

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
    if not issubclass(kind, torch.utils.data.DataLoader):
        raise TypeError(_PROXY.format(kind=kind.__qualname__))
    if kind.__iter__ is not torch.utils.data.DataLoader.__iter__ and _holds_loader(loader):
        raise TypeError(_THROUGH.format(kind=kind.__qualname__))
    if kind._get_iterator is not torch.utils.data.DataLoader._get_iterator:
        raise TypeError(_OWN_ITERATORS.format(kind=kind.__qualname__))
    for name, value in vars(loader).items():
        if name != "_iterator" and isinstance(value, _BaseDataLoaderIter):
            raise TypeError(_LIVE_ITERATOR.format(kind=kind.__qualname__, name=name))
    reason = why_unserved(loader)
    if reason:
        raise TypeError(reason)


def _holds_loader(loader: Any) -> bool:
    """Returns True if an attribute of a loader is another one, or a list with one."""
    values = vars(loader).values()
    held = [each for value in values for each in (value if type(value) is list else [value])]
    return any(issubclass(type(each), torch.utils.data.DataLoader) for each in held)


def _number_of(loader: Any) -> Any:
    """How many workers a loader has; of one that finds how many, what it has found."""
    is_auto = isinstance(loader, DataLoader) and loader.max_workers is not None
    if is_auto and loader.num_workers > 0:
        return loader._service.live_workers or AUTO
    return loader.num_workers


_PROXY = "wrap() takes a torch DataLoader, but {kind} is only a proxy of one: wrap the one inside"
_THROUGH = "wrap() would have no effect on {kind}, which iterates another loader: wrap that one"
_OWN_ITERATORS = (
    "wrap() would bypass the iterators that {kind} makes in _get_iterator(). If that method calls "
    "super()._get_iterator(), construct a class Served({kind}, shmloader.DataLoader) instead; "
    "otherwise a shmloader.DataLoader with the same arguments"
)
_LIVE_ITERATOR = (
    "wrap() would have no effect on {kind}, which continues with the live iterator in "
    "loader.{name}: wrap the loader before it is iterated, or construct a class Served({kind}, "
    "shmloader.DataLoader)"
)


@takes_options
def wrap(
    loader: torch.utils.data.DataLoader[T],
    *,
    num_workers: Literal["auto"] | None = None,
    **options: Unpack[Given],
) -> DataLoader[T]:
    """
    Make a torch DataLoader, even of a subclass, deliver through shared memory.

    The new loader shares the dataset and the sampler with the old one; of a `shmloader.DataLoader`
    it takes over no options but torch's. A loader whose batches would bypass the new one is
    refused, and the error says what to do.

    Args:
        loader: A `torch.utils.data.DataLoader`.
        num_workers: "auto" begins with the loader's own number and finds the right one, as
            `DataLoader` does; None retains the number.
        **options: As for `DataLoader`.

    Returns:
        A `shmloader.DataLoader` that is also an instance of the given loader's class.

    Raises:
        TypeError: The argument is not a torch DataLoader, it makes its own iterators, holds a live
            one or iterates another loader, its workers are threads, or an option is of a wrong
            type.
        ValueError: An option is out of range, or two exclude each other.
    """
    most, ours = options_over("wrap", num_workers, options)
    if not isinstance(loader, torch.utils.data.DataLoader):
        kind = type(loader).__name__
        raise TypeError(f"wrap() takes a torch.utils.data.DataLoader, but got {kind}")
    _refuse_if_unserved(loader)
    wrapped: DataLoader[T] = object.__new__(_class_over(type(loader)))
    state = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    wrapped.__dict__.update(state, _iterator=None)
    wrapped._set_options(ours)
    if num_workers is not None and loader.num_workers == 0:
        wrapped.num_workers, wrapped.prefetch_factor = most, loader.prefetch_factor or 2
    wrapped._begin_with(_number_of(loader) or most, ours)
    if isinstance(loader, DataLoader):
        wrapped._go_on_from(loader._service.loaded)
    if _SAVED_BY_LIGHTNING in state:
        saved = state[_SAVED_BY_LIGHTNING]
        wrapped.__dict__[_SAVED_BY_LIGHTNING] = {**saved, **by_name(ours)}
    return wrapped
