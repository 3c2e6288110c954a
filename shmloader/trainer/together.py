"""
Which options go together: every rule stands here, with its one message.

Most rules are about workers, so a loader without any may have all options; but without workers too
batches go to a device.
"""

from dataclasses import replace
from typing import Any

from torch.utils.data.dataloader import _DatasetKind

from shmloader.errors import warn
from shmloader.trainer.options import BY_BATCH, DYNAMIC, Options
from shmloader.worker.snapshot import is_stateful

_FOR_MAPS = ("assignment", "fetch_threads", "overlap_epochs", "worker_bytes")


def check(loader: Any, options: Options) -> None:
    """
    Refuse options that cannot all be kept, of a loader whose attributes are set.

    Raises:
        ValueError: Two options contradict each other, or an option the dataset's kind.
    """
    _check_transform(options)
    if options.device is not None and loader.pin_memory:
        raise ValueError(
            f'pin_memory=True and device="{options.device}" are two ways to the same device: leave '
            "out pin_memory, because batches then come on the device, where nothing is pinned"
        )
    if loader.num_workers > 0:
        check_alone(options)
        if options.overlap_epochs and not loader.persistent_workers:
            raise ValueError(
                "overlap_epochs=True is for workers that live on between epochs: pass "
                "persistent_workers=True"
            )
        if is_iterable(loader):
            _check_for_iterable(loader, options)
        elif options.fetch_threads != 0 and _saves_dataset(loader, options):
            raise ValueError(
                f"fetch_threads={options.fetch_threads!r} with resumable=True saves no state of a "
                f"dataset, but {type(loader.dataset).__name__} has state_dict(): threads fetch "
                "samples ahead, so its state would be of those too; leave out one of both"
            )


def _check_transform(options: Options) -> None:
    if options.device_transform is not None and options.device is None:
        raise ValueError(
            "device_transform is called on batches that are on a device: pass device= too, such as "
            'device="cuda"'
        )


def check_alone(options: Options) -> None:
    """
    Refuse options that cannot all be kept, whatever the dataset.

    Raises:
        ValueError: Two options contradict each other.
    """
    _check_transform(options)
    if options.fetch_threads != 0 and options.restarts and options.seed_by != BY_BATCH:
        raise ValueError(
            f"fetch_threads={options.fetch_threads!r} with restarts={options.restarts} needs "
            'seed_by="batch": threads draw random numbers in no certain order, so a replacement '
            "could not repeat a worker's draws"
        )
    if options.fetch_threads != 0 and options.worker_bytes and options.seed_by != BY_BATCH:
        raise ValueError(
            f"fetch_threads={options.fetch_threads!r} with worker_bytes={options.worker_bytes} "
            'needs seed_by="batch": threads draw random numbers in no certain order, so a '
            "replacement could not repeat a worker's draws"
        )
    if options.fetch_threads != 0 and options.resumable and options.seed_by != BY_BATCH:
        raise ValueError(
            f"fetch_threads={options.fetch_threads!r} with resumable=True needs "
            'seed_by="batch": threads draw random numbers in no certain order, so a resumed run '
            "could not repeat a worker's draws"
        )
    by_free_hand = {
        'assignment="dynamic"': options.assignment == DYNAMIC,
        f"fetch_threads={options.fetch_threads!r}": options.fetch_threads != 0,
    }
    for name in (name for name, is_given in by_free_hand.items() if is_given):
        if options.overlap_epochs and options.seed_by != BY_BATCH:
            raise ValueError(
                f'overlap_epochs=True with {name} needs seed_by="batch": the draws of a wrong '
                "guess could not be undone, because no worker's draws are in a certain order"
            )


def advise(loader: Any, options: Options) -> None:
    """Warn of what is less exact with these options than a user may expect of them."""
    is_dynamic = options.assignment == DYNAMIC and options.seed_by != BY_BATCH
    again = "a resumed run" if options.resumable else ""
    if options.replaces:
        again = "a restart"
    if loader.num_workers > 0 and is_dynamic and again:
        warn(
            'with assignment="dynamic" and seed_by="worker" the draws of a batch depend on which '
            f"worker happens to be free, so {again} keeps the batches and their order, but not "
            'the draws: pass seed_by="batch" for the same draws in every run'
        )


def fitting(loader: Any, options: Options) -> Options:
    """Leave out what a loader cannot have, where options are for all loaders of a process."""
    left_out = _FOR_MAPS if is_iterable(loader) else ()
    if _saves_dataset(loader, options):
        left_out = (*left_out, "fetch_threads")
    if not loader.persistent_workers:
        left_out = (*left_out, "overlap_epochs")
    if loader.pin_memory:
        left_out = (*left_out, "device", "device_transform")
    return replace(options, **{name: getattr(Options, name) for name in left_out})


def is_iterable(loader: Any) -> bool:
    """Returns True if a loader's dataset is iterable-style."""
    return bool(loader._dataset_kind == _DatasetKind.Iterable)


def may_be_dynamic(loader: Any, options: Options) -> bool:
    """Returns True if the assignment of a loader may be "dynamic", with its other options."""
    has_turns = options.overlap_epochs and options.seed_by != BY_BATCH
    return not is_iterable(loader) and not has_turns


def may_have_threads(loader: Any, options: Options) -> bool:
    """Returns True if a loader has no fetching threads and may, with its other options."""
    # Threads draw in no certain order.
    needs_order = (options.restarts or options.overlap_epochs) and options.seed_by != BY_BATCH
    if is_iterable(loader) or options.fetch_threads or needs_order:
        return False
    return not _saves_dataset(loader, options)


def _saves_dataset(loader: Any, options: Options) -> bool:
    """Returns True if a loader's states have one of its dataset."""
    return options.resumable and is_stateful(loader.dataset)


def _check_for_iterable(loader: Any, options: Options) -> None:
    for name in _FOR_MAPS:
        value = getattr(options, name)
        if value != getattr(Options, name):
            raise ValueError(
                f"{name}={value!r} is for map-style datasets, whose requests name their samples, "
                f"but {type(loader.dataset).__name__} is iterable-style: leave it out"
            )
