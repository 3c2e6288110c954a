"""Data that lives beside a loader: what was downloaded once stays on the disk."""

from shmloader.data.downloads import Downloads, DownloadStats, downloaded

__all__ = ["DownloadStats", "Downloads", "downloaded"]
