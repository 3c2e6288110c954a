"""What a claim is: one load, and the ways to read it, all of which give the same batches."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from bench.loaders import LOADERS
from bench.loads import as_it_is

OURS, TORCH = "shmloader", "torch"
Loader = Any  # an iterable of batches, epoch after epoch, with a `close()`
Ways = dict[str, Callable[[], Loader]]


@dataclass(frozen=True)
class Claim:
    """
    A load whose figures another project has published.

    Attributes:
        batches: Of an epoch.
        expected: Makes the batch of a number, in torch's order.
        ways: What makes each way's loader: ours, torch's and others'.
        any_order: The ways that promise no order; their batches are compared by what `sorted_by`
            makes of all of an epoch.
        needs: The module without which a way is left out.
        is_moved: Its rate is told in MB/s as well.
    """

    batches: int
    expected: Callable[[int], Any]
    ways: Ways
    any_order: frozenset[str] = frozenset()
    sorted_by: Callable[[list], Any] = as_it_is
    needs: dict[str, str] = field(default_factory=dict)
    is_moved: bool = False


def both(dataset: Any, ours: dict[str, Any] | None = None, **options: Any) -> Ways:
    """Make the ways of ours and of torch's loader; ours: more of our options."""
    more = {OURS: ("ours", ours or {}), TORCH: ("torch", {})}
    return {
        way: partial(opened, name, dataset, **options, **own) for way, (name, own) in more.items()
    }


def opened(name: str, dataset: Any, **options: Any) -> Loader:
    """Make a loader whose workers live on."""
    return LOADERS[name](dataset, persistent_workers=True, **options)


def stacked(make: Callable[[int], Any], batch_size: int) -> Callable[[int], torch.Tensor]:
    """Make what stacks the samples of the batch of a number."""

    def expected(number: int) -> torch.Tensor:
        first = batch_size * number
        return torch.stack([torch.as_tensor(make(first + place)) for place in range(batch_size)])

    return expected


def missing(claim: Claim, way: str) -> str | None:
    """Say what a way lacks here, or None."""
    try:
        importlib.import_module(claim.needs.get(way, "torch"))
    except ImportError as error:
        return str(error)
    return None


class Each:
    """
    Another project's loader, whose batches are made into those of torch.

    Args:
        loader: The loader; each iteration is an epoch.
        restore: Makes the batch.
        close: Ends the loader, if it must be told.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        restore: Callable[[Any], Any] = as_it_is,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._loader, self._restore, self._close = loader, restore, close

    def __iter__(self):
        for batch in self._loader:
            yield self._restore(batch)
            del batch  # before the next one is asked for

    def close(self) -> None:
        """End it."""
        if self._close:
            self._close()
