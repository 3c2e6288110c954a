"""Data that lives beside a loader: once in memory for all processes, or once on the disk."""

from typing import TYPE_CHECKING

from shmloader.data.cache import Cached, cached
from shmloader.data.downloads import Downloads, DownloadStats, downloaded
from shmloader.data.sharing import Sharing, share
from shmloader.data.tolerant import Tolerant, TolerantStream, tolerant
from shmloader.setup import requirements

if TYPE_CHECKING or requirements.LACKING is None:
    from shmloader.data.shared_dict import SharedDict
    from shmloader.data.shared_list import SharedList

__all__ = [
    "Cached",
    "DownloadStats",
    "Downloads",
    "SharedDict",
    "SharedList",
    "Sharing",
    "Tolerant",
    "TolerantStream",
    "cached",
    "downloaded",
    "share",
    "tolerant",
]
