"""Compare a loader whose workers die with torch's own, in which no worker dies."""

import warnings
from collections import Counter

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from shmloader import DataLoader, RestartWarning
from shmloader.options.options import OPTIONS
from tests.helpers.mortal import Script

RESTARTS = 50


def open_loader(kind, dataset, **options):
    """Make a loader of either class whose order and seeds are always the same."""
    settings = {"batch_size": 3, "num_workers": 2, "multiprocessing_context": "fork"}
    settings["generator"] = torch.Generator().manual_seed(11)
    return kind(dataset, **{**settings, **options})


def epoch(loader, stop_after=None):
    """
    Iterate once: the content of each batch, or the error instead of it, as plain values.

    Args:
        stop_after: How many batches to take; None: all.
    """
    batches = []
    iterator = iter(loader)
    while len(batches) != stop_after:
        try:
            batches.append(next(iterator).tolist())
        except StopIteration:
            break
        except (LookupError, NameError) as error:  # NameError: after a failed init
            batches.append(str(error).strip().splitlines()[-1])
    return batches


def undisturbed(dataset, plan=(None,), **options):
    """Iterate torch's own loader once for each entry of the plan, as `epoch` takes it."""
    loader = open_loader(TorchDataLoader, dataset, **options)
    try:
        return [epoch(loader, stop_after) for stop_after in plan]
    finally:
        if loader.persistent_workers:
            # A raised error keeps the iterator in a cycle, and its workers with it.
            loader._iterator._shutdown_workers()


def healed(dataset, plan=(None,), between=lambda loader: None, **options):
    """
    Iterate this project's loader likewise.

    Args:
        between: Called with the loader after each epoch but the last.

    Returns:
        The epochs, how many workers were replaced, and how many warnings said so.
    """
    epochs, options = [], {"restarts": RESTARTS, **options}
    told = warnings.catch_warnings(record=True, action="always", category=RestartWarning)
    with told as warned, open_loader(DataLoader, dataset, **options) as loader:
        for number, stop_after in enumerate(plan):
            epochs.append(epoch(loader, stop_after))
            if number + 1 < len(plan):
                between(loader)
        restarts = loader.stats().restarts
    return epochs, restarts, sum(issubclass(each.category, RestartWarning) for each in warned)


def assert_heals(make, script, quiet, deaths=None, **options):
    """
    Check that a run with deaths equals the run without them, and that all deaths happened.

    Args:
        make: Makes the dataset of a script, or (dataset, further options).
        script: Which workers die, and where.
        quiet: A script without deaths.
        deaths: How many there are; default: as many as the script says.
    """
    dataset, own = parts(make(quiet))
    expected = undisturbed(dataset, **{**own, **torch_options(options)})
    dataset, own = parts(make(script))
    actual, restarts, warned = healed(dataset, **{"between": script.arm, **own, **options})
    deaths = sum(script.deaths.values()) if deaths is None else deaths

    assert [] == script.left
    if options.get("in_order", True):
        assert expected == actual
    else:
        assert list(map(counted, expected)) == list(map(counted, actual))
    assert (deaths, deaths) == (restarts, warned)


def assert_case_heals(folder, make, points, options):
    """
    Check a case: which workers die and where, and how the loader is used.

    Args:
        points: Where a worker dies; options["later"]: where in later epochs.
        options: The loader's, and those of `assert_heals`.
    """
    options = dict(options)
    script = Script(folder, *points, later=options.pop("later", ()))
    assert_heals(make, script, Script(folder), **options)


def parts(made):
    return made if isinstance(made, tuple) else (made, {})


def counted(batches):
    return Counter(map(repr, batches))


def torch_options(options):
    """Leave the options that torch's loader has too."""
    ours = {"between", *OPTIONS}
    return {name: value for name, value in options.items() if name not in ours}
