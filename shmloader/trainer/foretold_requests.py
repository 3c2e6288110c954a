"""
Foretold requests on their way: sent ahead of torch's draw, then used, or undone by their workers.

The answers to a guess that came true are the next epoch's; of one that did not, nothing is left but
what workers drew for it, which they are told to undo before their next request.
"""

from typing import Any

from shmloader.core import Ledger
from shmloader.trainer.foretold import Foretold
from shmloader.trainer.requests import Requests

_Drawn = tuple[int, tuple[int, Any]]  # the worker, and (number, index)


class ForetoldRequests:
    """
    What was foretold of the next epoch, and what workers still have to undo.

    Attributes:
        current: What was foretold of the epoch that comes next, or that torch draws now.
        undoing: Worker that is told to undo -> its first and last ticket of each guess that was
            wrong, until it answers a later one.
    """

    def __init__(
        self, requests: Requests, ledger: Ledger, counts: dict[str, int], is_seeded: bool
    ) -> None:
        """
        Have nothing foretold.

        Args:
            counts: How many requests were sent, used and discarded, over the loader's whole life.
            is_seeded: Workers draw by the batch, so that there is nothing to undo.
        """
        self.current = Foretold()
        self.undoing: dict[int, list[tuple[int, int]]] = {}
        self._requests = requests
        self._ledger = ledger
        self._counts = counts
        self._is_seeded = is_seeded

    def send(self, worker: int, index: Any, epoch: int) -> None:
        """Send what is probably the next request of that epoch."""
        # Numbered in any case: a worker undoes no more than what was foretold of one epoch.
        numbers = (epoch, len(self.current))
        ticket = self._requests.add(worker, (index, numbers, True))
        self.current.add(ticket, worker, index)
        self._counts["sent"] += 1

    def begin_epoch(self) -> set[int]:
        """Have what was foretold compared with what torch draws now. Returns its slots."""
        if self.current.is_compared:  # the epoch before could not begin
            self._disown(self.current)
            self.current = Foretold()
        self.current.is_compared = len(self.current) > 0
        return self.current.slots()

    def keep(self, ticket: int, slot: int) -> None:
        """Keep an answer until torch has drawn."""
        if self.current.is_spoilt:
            self._ledger.discard(slot)
        else:
            self.current.answer(ticket, slot)

    def give_up(self) -> None:
        """Free what foretold answers hold, because this epoch needs it."""
        if len(self.current):
            for slot in self.current.give_up():
                self._ledger.discard(slot)

    def is_right(self) -> bool:
        """Returns True if torch drew what was foretold; otherwise what workers did is undone."""
        is_right = self.current.is_right()
        self._counts["used" if is_right else "discarded"] += len(self.current)
        if not is_right:
            self._disown(self.current)
        return is_right

    def end(self, *, was_right: bool) -> list[_Drawn]:
        """Have nothing foretold. Returns what torch drew meanwhile and no worker was sent."""
        foretold, self.current = self.current, Foretold()
        return foretold.drawn[len(foretold) if was_right else 0 :]

    def _disown(self, foretold: Foretold) -> None:
        unsent = self._requests.take_back({ticket for ticket, _ in foretold})
        sent: dict[int, list[int]] = {}  # by worker
        for ticket, guess in foretold:
            if guess.slot is not None:
                self._ledger.discard(guess.slot)
            self._requests.unanswered.pop(ticket, None)
            if ticket not in unsent and not self._is_seeded:
                sent.setdefault(guess.worker, []).append(ticket)
        for worker, tickets in sent.items():
            self.undoing.setdefault(worker, []).append((tickets[0], tickets[-1]))
            self._ledger.tell_undo(worker)

    def note_undone(self, worker: int, ticket: int) -> None:
        """Forget wrong guesses whose undoing came before a request that is answered now."""
        left = [guess for guess in self.undoing.pop(worker, []) if guess[1] >= ticket]
        if left:
            self.undoing[worker] = left

    def tell_undo_again(self, worker: int) -> None:
        """Have a replacement undo what its dead worker may have answered and not undone."""
        recalled = self._ledger.recalled
        undoing = self.undoing.get(worker, [])
        if undoing and undoing[0][0] not in recalled:
            self._ledger.tell_undo(worker)
        # Not the requests before them: an epoch that was broken off draws for what was asked.
        for ticket in [ticket for ticket in recalled if ticket not in self._requests.unanswered]:
            del recalled[ticket]
