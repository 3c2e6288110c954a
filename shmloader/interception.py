"""
Loaders of torch's own class, served by us: install() and uninstall(), and what they have done.

Key invariant: nothing of torch's class changes but `_get_iterator`, the one hook that every loader
goes through, made before or after, subclass or not. Names, identity, pickles and isinstance stay
what they were, and what we know of a loader stands here, not in its attributes.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch.utils.data

from shmloader.dataloader import DataLoader
from shmloader.introspection import reports
from shmloader.introspection.framework_wrappers import HeldLoader, held_in, is_ahead, set_epoch
from shmloader.options import rules
from shmloader.options.options import Given, Options, options_over, takes_options
from shmloader.setup import requirements
from shmloader.stats import Stats
from shmloader.stats.setting import Setting
from shmloader.trainer.chosen import Service
from shmloader.trainer.without_workers import why_unserved

if TYPE_CHECKING:
    from shmloader.advice.report import Report
    from shmloader.trainer.iterator import RingIterator

    _Make = Callable[[], RingIterator]


class _Hook:
    """What stands in for torch's `_get_iterator`, and for whom."""

    def __init__(self) -> None:
        self.torchs: Any = None  # torch's own function, or what another project put there
        self.ours: Any = None
        self.options: Options | None = None  # None: loaders are left to torch
        self.make: Callable[[Any, _Make], RingIterator | None] = lambda loader, make: make()


_hook = _Hook()
# By id, because a subclass may compare or hash as it likes.
_services: dict[int, tuple[weakref.ref[Any], Service]] = {}


@takes_options
def install(*, num_workers: Literal["auto"] | None = None, **options: Unpack[Given]) -> None:
    """
    Serve every loader of `torch.utils.data.DataLoader` in this process, and of its subclasses.

    Existing loaders are served from their next epoch on, unless torch's persistent workers run
    already. torch's own code runs a loader with `num_workers=0` or with threads for workers, and a
    subclass whose `_get_iterator` does not call torch's. Processes that this one forks are served
    too. A second call changes the options of epochs that begin later.

    On a system without slots of shared memory install() warns, and torch's own code runs every
    loader.

    Args:
        num_workers: "auto" has each loader with workers begin with its own number and find the
            right one, as `DataLoader` does. One that cannot retains its number, and random numbers
            of the others depend on the batch; a warning says so once. None retains all numbers.
        **options: As for `DataLoader`, for each loader with workers that allows them.

    Raises:
        ValueError, TypeError: An option is out of range or of a wrong type.
    """
    _, ours = options_over("install", num_workers, options)
    rules.check_alone(ours)
    _hook.options = ours
    if requirements.LACKING is not None:
        Service()  # which says so; a loader of torch's class is served by torch as it is
        return
    found: Any = torch.utils.data.DataLoader._get_iterator
    if found is _hook.ours:
        return
    torchs = _hook.torchs = found

    def _get_iterator(self: Any) -> Any:
        iterator = served_iterator(self)
        return torchs(self) if iterator is None else iterator

    _hook.ours = _get_iterator
    torch.utils.data.DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign]


def uninstall() -> None:
    """
    Undo `install()` for the next epochs; persistent workers of shmloader continue.

    Without an earlier `install()` it does nothing.
    """
    _hook.options = None
    if torch.utils.data.DataLoader._get_iterator is _hook.ours:  # still ours
        torch.utils.data.DataLoader._get_iterator = _hook.torchs  # type: ignore[method-assign]
        _hook.ours = _hook.torchs = None


def is_installed() -> bool:
    """Returns True between `install()` and `uninstall()`."""
    return _hook.options is not None


def set_maker(make: Callable[[Any, _Make], RingIterator | None]) -> None:
    """Have a function make the iterators of torch's class, by ours; None leaves one to torch."""
    _hook.make = make


def served_iterator(loader: Any) -> RingIterator | None:
    """Make an iterator of ours for a loader of torch's class; None if torch has to make one."""
    options = _hook.options
    if options is None or loader.num_workers == 0 or why_unserved(loader):
        return None

    def make() -> RingIterator:
        rules.say_once_of_workers(loader, options)
        return _service_for(loader, options).iterate(loader, rules.fitting(loader, options))

    return _hook.make(loader, make)


def _service_for(loader: Any, options: Options) -> Service:
    service = _service_of(loader)
    if service is None:
        key, service = id(loader), Service(options.keep_pages)

        def forget(_: object) -> None:
            _services.pop(key, None)

        _services[key] = weakref.ref(loader, forget), service
    return service


def _service_of(loader: Any) -> Service | None:
    if isinstance(loader, DataLoader):
        return loader._service
    entry = _services.get(id(loader))
    return entry[1] if entry is not None and entry[0]() is loader else None


def stats(loader: Any) -> Stats:
    """
    Return what was done for a loader since it was made, over all epochs and live iterators.

    Args:
        loader: A `DataLoader` of shmloader; one of torch's that is served; or an object that holds
            such loaders, such as a framework's wrapper: then it is their sum.

    Returns:
        All zeros if it has not been iterated, or was not served.

    Raises:
        TypeError: The object is not a DataLoader, and holds none.
    """
    nothing = Stats() if requirements.LACKING is None else Stats(note=Service().note)
    return sum((service.stats(inner) for inner, service in _served_in(loader)), nothing)


def report(loader: Any) -> Report:
    """
    Report what limits a loop, and what to change, as `DataLoader.report` does.

    Args:
        loader: As for `stats`; of several loaders that it holds, the one that waited longest.

    Raises:
        TypeError: The object is not a DataLoader, and holds none.
    """
    found = _served_in(loader)
    if not found:
        return reports.report_of(Service(), loader, Options())
    inner, service = max(found, key=lambda each: each[1].stats(each[0]).next.total_s)
    return reports.report_of(service, inner, _options_of(inner))


def _options_of(loader: Any) -> Options:
    if isinstance(loader, DataLoader):
        return loader._options()
    return rules.fitting(loader, _hook.options or Options())


def served_by(loader: Any) -> tuple[Service, Setting] | None:
    """Return what serves a loader with workers, and what it is run with; None: it is torch's."""
    service = _service_of(loader)
    return None if service is None else (service, service.setting(loader, _options_of(loader)))


def trace(loader: Any, path: str | os.PathLike[str]) -> None:
    """
    Write a trace of the last batches of a loader, as `DataLoader.trace` does.

    Args:
        loader: As for `stats`; all loaders that it holds are in the file.
        path: The file.

    Raises:
        TypeError: The object is not a DataLoader, and holds none.
        RuntimeError: The loader was not served, no worker has returned a batch yet, or it was
            closed since.
        OSError: The file cannot be written.
    """
    reports.write_trace(path, [service for _, service in _served_in(loader)])


def close(loader: Any) -> None:
    """
    Stop the workers of a loader and free all shared memory but that of batches in use.

    Args:
        loader: As for `stats`; all loaders that it holds are closed.

    Raises:
        TypeError: The object is not a DataLoader, and holds none.
    """
    for inner, service in _served_in(loader):
        service.close(inner)


def state_dict(loader: Any) -> dict[str, Any]:
    """
    Return a loop's position in a loader's epoch, as `DataLoader.state_dict` does.

    Args:
        loader: A `DataLoader` of shmloader; one of torch's that is served; or an object that holds
            one such loader. The batch that Accelerate's loader has prefetched counts as not
            delivered.

    Raises:
        TypeError: The object is not such a loader, is not served, or holds several; or Accelerate's
            dispatcher reads it for several ranks.
        ValueError: Accelerate has prefetched from a dataset with `state_dict()`, without workers.
    """
    held, service = _one_in(loader)
    ahead = is_ahead(held.holders)
    return service.state_dict(held.loader, lambda: _options_of(held.loader), is_ahead=ahead)


def load_state_dict(loader: Any, state: Mapping[str, Any]) -> None:
    """
    Have the next epoch of a loader resume from a state, as `DataLoader.load_state_dict` does.

    Args:
        loader: As for `state_dict`.
        state: What `state_dict` returned, in this run or another, or `merge_states`.

    Raises:
        TypeError: The object is not such a loader, as for `state_dict`; or the state is not a
            dictionary.
        ValueError: The state is of another loader; nothing has changed then.
    """
    held, service = _one_in(loader)
    is_ahead(held.holders)  # or it is refused, as it was when a state was asked for
    epoch = service.load_state_dict(held.loader, _options_of(held.loader), state)
    if epoch is not None:
        set_epoch(held.holders, epoch)


def _one_in(loader: Any) -> tuple[HeldLoader, Service]:
    """Find the one loader in an object, and what serves it or will serve it."""
    found = held_in(loader)
    if len(found) != 1:
        count = f"{len(found)} loaders: pass one of them" if found else "none"
        raise TypeError(f"{type(loader).__name__} is not a torch DataLoader, and holds {count}")
    inner = found[0].loader
    service = _service_of(inner)
    if service is None:
        torchs = torch.utils.data.DataLoader._get_iterator
        is_plain = type(inner)._get_iterator is torchs  # another one may make its own iterators
        will_be = _hook.options is not None and inner.num_workers > 0 and is_plain
        if not will_be or why_unserved(inner):
            raise TypeError(
                f"{type(inner).__name__} is not served by shmloader, so its position is unknown: "
                "call shmloader.install() first, with num_workers above 0, or use "
                "shmloader.DataLoader. A class that makes its own iterators cannot be served"
            )
        assert _hook.options is not None, "it will be"
        service = _service_for(inner, _hook.options)
    return found[0], service


def _served_in(loader: Any) -> list[tuple[Any, Service]]:
    loaders = [held.loader for held in held_in(loader)]
    if not loaders:
        raise TypeError(f"{type(loader).__name__} is not a torch DataLoader, and holds none")
    services = ((found, _service_of(found)) for found in loaders)
    return [(found, service) for found, service in services if service is not None]
