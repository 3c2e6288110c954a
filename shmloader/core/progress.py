"""Where a replacement of a worker goes on; the ledger keeps one record for each worker."""

from dataclasses import dataclass


@dataclass
class Progress:
    """
    What the trainer knows of a worker: where its replacement would go on.

    Attributes:
        seed: Shared by all data pipes in this epoch.
        latest: The snapshot of the last answer that had one; None if there was none yet.
        is_known: True if no answer without a snapshot came after that one.
        answered: True if the worker has answered in this epoch with a snapshot.
        has_answered: True if it has ever answered, so that an error of its start was reported.
        has_resumed: True if it has begun another epoch since its start.
        epoch: The snapshot with which its epoch began; None in the first epoch.
        epoch_is_known: True if that was the snapshot of the last answer at that moment.
        owes_resume: True if it died with a resume that its replacement has to be told again.
        is_resumed: True if it was another run's worker, whose dataset had the state of `epoch`.
        skips_epoch: True if that resume is the first order of the replacement.
    """

    seed: int | None = None
    latest: bytes | None = None
    is_known: bool = True
    answered: bool = False
    has_answered: bool = False
    has_resumed: bool = False
    epoch: bytes | None = None
    epoch_is_known: bool = True
    is_resumed: bool = False
    owes_resume: bool = False
    skips_epoch: bool = False
