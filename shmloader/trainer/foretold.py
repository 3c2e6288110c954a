"""Requests that were sent to workers before torch drew them, until it is known whether it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmloader.trainer.foretelling import is_same


@dataclass
class Guess:
    """One of them: for which batch of the next epoch, to which worker; its slot once answered."""

    number: int
    worker: int
    index: Any
    slot: int | None = None


class Foretold:
    """
    What was foretold of one epoch, by ticket.

    Attributes:
        is_compared: True while torch draws, and each draw is kept to be compared.
        is_spoilt: True if a part is missing, so that nothing of it can be used.
        drawn: What torch drew meanwhile: the worker, and (number, index).
    """

    def __init__(self) -> None:
        self.is_compared = False
        self._guesses: dict[int, Guess] = {}
        self.drawn: list[tuple[int, tuple[int, Any]]] = []
        self.is_spoilt = False

    def __len__(self) -> int:
        return len(self._guesses)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._guesses

    def __iter__(self) -> Iterator[tuple[int, Guess]]:
        return iter(list(self._guesses.items()))

    def add(self, ticket: int, worker: int, index: Any) -> None:
        """Note a request of the next epoch that is sent now, in the order of its batches."""
        self._guesses[ticket] = Guess(len(self._guesses), worker, index)

    def answer(self, ticket: int, slot: int) -> None:
        """Note that a worker has answered."""
        self._guesses[ticket].slot = slot

    def slots(self) -> set[int]:
        """The slots with answers that nobody has asked for yet."""
        return {guess.slot for guess in self._guesses.values() if guess.slot is not None}

    def worker_of(self, number: int) -> int | None:
        """The worker that was sent what may be batch `number`, while torch draws."""
        if not self.is_compared:
            return None
        guesses = self._guesses.values()
        return next((guess.worker for guess in guesses if guess.number == number), None)

    def count(self, worker: int) -> int:
        """Count what a worker was sent."""
        return sum(guess.worker == worker for guess in self._guesses.values())

    def spoil(self, ticket: int) -> None:
        """Note that a request could not be sent."""
        self.is_spoilt |= ticket in self._guesses

    def give_up(self) -> set[int]:
        """Spoil it, and return the slots of its answers, to be freed."""
        slots, self.is_spoilt = self.slots(), True
        for guess in self._guesses.values():
            guess.slot = None
        return slots

    def draw(self, worker: int, message: tuple[int, Any]) -> None:
        """Keep what torch drew: the worker, and (number, index)."""
        self.drawn.append((worker, message))

    def is_right(self) -> bool:
        """Returns True if torch drew all that was foretold, for the same workers."""
        if self.is_spoilt or len(self.drawn) < len(self._guesses):
            return False
        return all(
            guess.number == number and guess.worker == worker and is_same(guess.index, index)
            for guess, (worker, (number, index)) in zip(
                self._guesses.values(), self.drawn, strict=False
            )
        )
