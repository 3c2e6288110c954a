"""
Bringing a dataset to where another copy of it was: by its state_dict(), or by fetching again.

Used by workers that take the place of others, and by an iterator without workers that was resumed.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shmloader.worker.snapshot import Position


def enter_epoch(dataset: Any, position: Position, begin: Callable[[], Any]) -> Any:
    """
    Begin an epoch of a dataset where the position says. Returns what `begin` does: torch's fetcher.

    Of an iterable dataset without a state it is still at the beginning.
    """
    # A dataset that is its own iterator may go back to its start in __iter__: restore after it.
    is_iterator = isinstance(dataset, Iterator)
    if position.dataset is not None and not is_iterator:
        dataset.load_state_dict(position.dataset)
    fetcher = begin()
    if position.dataset is not None and is_iterator:
        dataset.load_state_dict(position.dataset)
    if position.iterator is not None:
        fetcher.dataset_iter.load_state_dict(position.iterator)
    if position.has_ended:
        fetcher.ended = True
    return fetcher


def has_ended(fetcher: Any) -> bool:
    """Returns True if an iterable dataset yields no more: an error ends a generator too."""
    frame = getattr(fetcher.dataset_iter, "gi_frame", fetcher)
    return bool(fetcher.ended) or frame is None


def has_state(position: Position) -> bool:
    """Returns True if the dataset, or its iterator, told where it was."""
    return position.dataset is not None or position.iterator is not None


def has_to_replay(position: Position) -> bool:
    """Returns True if only fetching again brings an iterable dataset to its position."""
    return position.attempts > 0 and not has_state(position)


def replay(
    fetch: Callable[[int, Any], Any],
    position: Position,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """
    Fetch again what was answered, to bring an iterator to its position.

    Args:
        fetch: Is called with how many requests were answered before, and the request.
        show: Is called between them with how many were fetched again, and of how many.
    """
    for attempt in range(position.attempts):
        show(attempt, position.attempts)
        try:
            fetch(attempt, position.index)
        except StopIteration:
            return
        except Exception:
            # The answer was this error.
            continue
