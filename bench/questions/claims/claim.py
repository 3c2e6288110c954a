"""What a claim is: one load, and the ways to read it, all of which give the same batches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, Dataset

from bench.loaders import LOADERS
from bench.loads import as_it_is

TORCH = "torch"


@dataclass(frozen=True)
class Claim:
    """
    A load whose figures another project has published.

    Attributes:
        batches: Of an epoch.
        dataset: What is loaded.
        free: The same samples at no cost.
        options: Of ours and of torch's loader.
        ours: More of our options.
        others: What makes the loaders of other ways.
        any_order: The ways that promise no order.
        needs: The module without which a way is left out.
        is_moved: Its rate is told in MB/s as well.
    """

    batches: int
    dataset: Any
    free: Dataset
    options: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Callable[[], Any]] = field(default_factory=dict)
    any_order: frozenset[str] = frozenset()
    needs: dict[str, str] = field(default_factory=dict)
    is_moved: bool = False

    @property
    def ways(self) -> dict[str, Callable[[], Any]]:
        """What makes each way's loader: batches, epoch after epoch, and a `close()`."""
        return {
            "shmloader": lambda: living("ours", self.dataset, **self.options, **self.ours),
            TORCH: lambda: living("torch", self.dataset, **self.options),
            **self.others,
        }

    def expected(self) -> DataLoader:
        """Return the batches as torch's loader has them."""
        how = {
            name: self.options[name]
            for name in ("batch_size", "collate_fn")
            if name in self.options
        }
        return DataLoader(self.free, **how)


def living(name: str, dataset: Any, **options: Any) -> Any:
    """Make a loader whose workers live on."""
    return LOADERS[name](dataset, persistent_workers=True, **options)


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
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._loader, self._restore, self.close = loader, restore, close

    def __iter__(self):
        for batch in self._loader:
            yield self._restore(batch)
            del batch  # before the next one is asked for
