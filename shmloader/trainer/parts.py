"""
What is attached to an iterator, which calls its parts at the same moments and knows none of them.

A part has some of the hooks. One that needs another moment gets a hook here, never a line with its
name in the iterator.
"""

from collections.abc import Callable
from typing import Any

_Hooks = tuple[Callable[..., None], ...]


class Parts:
    """The parts of one iterator, by hook; each tuple is empty if no part has that hook."""

    # (iterator, loader): torch's attributes are set, seeds among them; no worker runs.
    made: _Hooks = ()
    # (transport): returns how batches get out of their slots; the first one counts.
    delivery: tuple[Callable[..., Any], ...] = ()
    opened: _Hooks = ()  # (tasks): they are there, and no worker was started
    begin: _Hooks = ()  # (epoch): it begins, and its sampler is iterated next
    begun: _Hooks = ()  # (epoch): all workers are in it, and its first requests were drawn
    looks: _Hooks = ()  # (): the loop asks for the next batch
    over: _Hooks = ()  # (): the loop is told that the epoch is over
    closed: _Hooks = ()  # (): the iterator ends; its workers can still be asked what they ran

    def __init__(self, *parts: Any) -> None:
        for part in parts:
            self.add(part)

    def add(self, part: Any) -> None:
        """Attach a part; its hooks are called after those of the parts before it."""
        for name in Parts.__annotations__:
            hook = getattr(part, name, None)
            if hook is not None:
                setattr(self, name, (*getattr(self, name), hook))
