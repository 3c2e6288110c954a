"""
What is attached to an iterator, which calls its parts at the same moments and knows none of them.

A part has some of the hooks. One that needs another moment gets a hook here, never a line with its
name in the iterator.
"""

from collections.abc import Callable
from typing import Any

_Hooks = tuple[Callable[..., None], ...]


class Parts:
    """
    The parts of one iterator, by hook; each tuple is empty if no part has that hook.

    Attributes:
        made: (iterator, loader): torch's attributes are set, seeds among them; no worker runs.
        delivery: (transport): returns how batches get out of their slots; the first one counts.
        opened: (tasks, waiting): they are there, and no worker was started.
        begin: (epoch): it begins, and its sampler is iterated next.
        begun: (epoch): all workers are in it, and its first requests were drawn.
        looks: (): the loop asks for the next batch.
        over: (): the loop is told that the epoch is over.
        closed: (): the iterator ends; its workers can still be asked what they ran.
    """

    made: _Hooks = ()
    delivery: tuple[Callable[..., Any], ...] = ()
    opened: _Hooks = ()
    begin: _Hooks = ()
    begun: _Hooks = ()
    looks: _Hooks = ()
    over: _Hooks = ()
    closed: _Hooks = ()

    def __init__(self, *parts: Any) -> None:
        for part in parts:
            self.add(part)

    def add(self, part: Any) -> None:
        """Attach a part; its hooks are called after those of the parts before it."""
        for name in Parts.__annotations__:
            hook = getattr(part, name, None)
            if hook is not None:
                setattr(self, name, (*getattr(self, name), hook))
