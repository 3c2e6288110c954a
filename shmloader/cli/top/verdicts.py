"""What limits a loader that runs, in a line."""

from __future__ import annotations

from shmloader.metrics.live import LiveLoader


def verdict(loader: LiveLoader) -> str | None:
    """Say what limits a loader and what to change; None if that is not known."""
    return None
