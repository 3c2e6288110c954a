"""Data that lives beside a loader: samples once in memory, and downloads on the disk."""

from shmloader.data.cache import Cached, cached
from shmloader.data.downloads import Downloads, DownloadStats, downloaded

__all__ = ["Cached", "DownloadStats", "Downloads", "cached", "downloaded"]
