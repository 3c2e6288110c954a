"""Where a replacement of a worker goes on; `Progress` keeps one record for each worker."""

from dataclasses import dataclass

# In place of a snapshot that an answer lacks: nothing says where its worker was after it.
LOST = b""


@dataclass
class Past:
    """
    What the trainer knows of a worker: where its replacement would go on.

    Attributes:
        begun: The snapshot of its last answer before its epoch; None if there was none.
        seeds: Of the orders to begin an epoch since then, what all data pipes share in it; none in
            the first epoch, several only if an interrupt broke off the beginning of one.
        latest: The snapshot of its last answer since then; None if there was none.
        before: The snapshot of the answer before the newest of these, if it was in the same epoch.
        has_answered: True if it has ever answered, so that an error of its start was reported.
    """

    begun: bytes | None = None
    seeds: tuple[int | None, ...] = ()
    latest: bytes | None = None
    before: bytes | None = None
    has_answered: bool = False

    def lose(self) -> None:
        """Forget where the worker was, until its next answer."""
        self.begun, self.seeds = LOST, ()

    @property
    def is_known(self) -> bool:
        """True if a replacement can get to where the worker was."""
        return LOST not in (self.begun, self.latest)
