"""What a list or dict in shared memory answers to code that would change it."""

from typing import TYPE_CHECKING, Any

_CHANGES = frozenset(
    (
        *("append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse"),
        *("setdefault", "sort", "update"),
    )
)
_INSTEAD = "do not name objects to share() that are changed, or change a copy"


class Unchanging:
    """Refuses the changes of a list or dict by their names."""

    if not TYPE_CHECKING:  # checkers refuse them as of any other class

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name not in _CHANGES:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise AttributeError(f"a {kind} cannot be changed, so it has no {name}(): {_INSTEAD}")

        def __setitem__(self, key: Any, value: Any) -> None:
            raise TypeError(f"no item of a {type(self).__name__} can be set: {_INSTEAD}")

        def __delitem__(self, key: Any) -> None:
            raise TypeError(f"no item of a {type(self).__name__} can be deleted: {_INSTEAD}")
