"""What `shmloader run` tells the processes of its program, as text in a variable."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

VARIABLE = "SHMLOADER_RUN"


@dataclass(frozen=True)
class Settings:
    """
    How loaders are served.

    Args:
        options: As for `shmloader.install()`.
        compare: torch iterates every second epoch.
        pid: The program's first process.
    """

    options: dict[str, Any]
    compare: bool
    pid: int

    def to_text(self) -> str:
        """Return it for the variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` returned, in a process of the program."""
        return cls(**json.loads(text))
