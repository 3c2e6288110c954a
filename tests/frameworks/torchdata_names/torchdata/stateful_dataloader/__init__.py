"""Its loader is ours; all other modules are those of the checkout whose tests are run."""

import os
from typing import Any, TypeVar

import shmloader

__path__.append(os.path.join(os.environ["TORCHDATA"], "torchdata", "stateful_dataloader"))

from torchdata.stateful_dataloader.stateful import Stateful  # noqa: E402

__all__ = ["Stateful", "StatefulDataLoader"]

T_co = TypeVar("T_co", covariant=True)


class StatefulDataLoader(shmloader.DataLoader[T_co]):
    """Takes torchdata's arguments. Each batch has its snapshot, whatever is said of steps."""

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **options: Any) -> None:
        """Have workers send where they are, as those of torchdata do."""
        super().__init__(*args, resumable=True, **options)
