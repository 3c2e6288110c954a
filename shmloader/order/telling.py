"""What the logger is told while a resumed epoch draws or fetches again what came before."""

import time

from shmloader import log

_EVERY_S = 5.0
OF_SAMPLER = "the sampler has drawn %d of %d batches again"
OF_DATASET = "the dataset without state_dict() has yielded %d of %d batches again"


class Telling:
    """Tells how far something long is and how long it will take, now and then."""

    def __init__(self, what: str) -> None:
        """Tell nothing yet; `what` takes how much is done, and of how much."""
        self._what = what
        self._began = self._told = time.monotonic()

    def tell(self, done: int, total: int) -> None:
        """Tell it, unless that was done within the last five seconds."""
        now = time.monotonic()
        if now - self._told < _EVERY_S or done <= 0:
            return
        self._told = now
        left_s = (now - self._began) * (total - done) / done
        log.tell(f"resuming: {self._what}; %.0f s left", done, total, left_s)
