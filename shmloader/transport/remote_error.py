"""An error on its way to another process, whatever its own code raises as it is said or pickled."""

import functools
import pickle
import traceback
from dataclasses import dataclass
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

from shmloader.errors import attempt, text_of

_CAUSE: Any = BaseException.__cause__


@dataclass
class RemoteError:
    """
    An error of another process.

    Attributes:
        pickled: The error; empty if it cannot be pickled.
        text: With its traceback there.
    """

    pickled: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "RemoteError":
        """Make it of what was raised here."""
        lines, _ = attempt(functools.partial(traceback.format_exception, error))
        text = type(error).__name__ if lines is None else "".join(lines)
        pickled, reason = attempt(functools.partial(pickle.dumps, error))
        if reason is not None:
            text += f"\n(the exception cannot be pickled: {_named(reason)})"
        return cls(pickled or b"", text)

    def open(self, what: str = "") -> BaseException:
        """Make it again, or an error that says what it ended and why it cannot be made."""
        text = f'\n"""\n{self.text}"""'
        error: Any = RuntimeError(what + text)
        if self.pickled:
            error, reason = attempt(functools.partial(pickle.loads, self.pickled))
            if reason is not None:
                error = _unreadable(what + text, _named(reason))
            elif not issubclass(type(error), BaseException):
                error = _unreadable(what + text, f"it became {type(error).__name__}")
        # By Python's own accessor: that of the error's class may refuse.
        _CAUSE.__set__(error, RemoteTraceback(text))
        return error  # type: ignore[no-any-return]


def _named(reason: BaseException) -> str:
    return f"{type(reason).__name__}: {text_of(reason)}"


def _unreadable(text: str, why: str) -> RuntimeError:
    return RuntimeError(f"{text}\n(the exception cannot be unpickled: {why})")
