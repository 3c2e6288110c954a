"""From where a replacement of a worker goes on; the ledger keeps one record for each worker."""

from dataclasses import dataclass


@dataclass
class Progress:
    """
    What the trainer knows of a worker: where its replacement would go on.

    Attributes:
        seed: The one that its data pipe shares in this epoch.
        latest: The snapshot of its last answer that had one; None: there was none yet.
        is_known: Whether no answer without a snapshot came after that one.
        answered: Whether it has answered in this epoch.
        epoch: The snapshot with which its epoch began; None: it is in its first.
        epoch_is_known: Whether that was the snapshot of the last answer then.
        owes_resume: Whether it died with a resume that its replacement is to be told again.
        skips_epoch: Whether that resume is the first that the replacement will be told.
    """

    seed: int | None = None
    latest: bytes | None = None
    is_known: bool = True
    answered: bool = False
    epoch: bytes | None = None
    epoch_is_known: bool = True
    owes_resume: bool = False
    skips_epoch: bool = False
