"""What docs/resume.md says to register for checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import shmloader


class Place:
    """The place of the loop over a loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def state_dict(self) -> dict[str, Any]:
        return shmloader.state_dict(self.loader)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        shmloader.load_state_dict(self.loader, state)
