"""
What the package exports. `import shmloader` runs this when the first of these names is used.

Names of a room are absent with it, and some where there is no core; the error says why.
"""

from shmloader.dataloader import DataLoader as DataLoader
from shmloader.dataloader import wrap as wrap
from shmloader.errors import BatchTooLarge as BatchTooLarge
from shmloader.errors import EmptyBatch as EmptyBatch
from shmloader.errors import LeftOutWarning as LeftOutWarning
from shmloader.errors import OutOfSharedMemory as OutOfSharedMemory
from shmloader.errors import PreloadFailed as PreloadFailed
from shmloader.errors import RestartWarning as RestartWarning
from shmloader.errors import RetentionWarning as RetentionWarning
from shmloader.errors import ShmloaderError as ShmloaderError
from shmloader.errors import UnsendableBatch as UnsendableBatch
from shmloader.errors import UnusedOptionWarning as UnusedOptionWarning
from shmloader.errors import WorkerBroken as WorkerBroken
from shmloader.options.record import Device as Device
from shmloader.requirements import LACKING as _LACKING
from shmloader.rooms import has_room as _has_room
from shmloader.serving import close as close
from shmloader.serving import install as install
from shmloader.serving import load_state_dict as load_state_dict
from shmloader.serving import report as report
from shmloader.serving import state_dict as state_dict
from shmloader.serving import stats as stats
from shmloader.serving import trace as trace
from shmloader.serving import uninstall as uninstall
from shmloader.stats import CacheStats as CacheStats
from shmloader.stats import Epoch as Epoch
from shmloader.stats import Held as Held
from shmloader.stats import Stats as Stats
from shmloader.stats import Times as Times
from shmloader.stats import WorkerStats as WorkerStats
from shmloader.worker.collate import empty as empty
from shmloader.worker.seeds import rng as rng

# By room, for the error; a test compares them with what is imported below.
_ROOMS = {
    "advice": ("Report", "Run", "Tuned", "tune"),
    "data": ("SharedDict", "SharedList", "cached", "downloaded", "share", "tolerant"),
    "order/resuming": ("merge_states",),
    "pool": ("Pool",),
    "publishing": ("publish", "subscribe"),
}

if _has_room("advice"):
    from shmloader.advice.report import Report as Report
    from shmloader.tuning import Run as Run
    from shmloader.tuning import Tuned as Tuned
    from shmloader.tuning import tune as tune

if _has_room("data"):
    from shmloader.data import cached as cached
    from shmloader.data import downloaded as downloaded
    from shmloader.data import share as share
    from shmloader.data import tolerant as tolerant

if _has_room("data") and _LACKING is None:
    from shmloader.data import SharedDict as SharedDict
    from shmloader.data import SharedList as SharedList

if _has_room("order/resuming"):
    from shmloader.order.resuming.merging import merge_states as merge_states

if _has_room("pool") and _LACKING is None:
    from shmloader.pool.executor import Pool as Pool

if _has_room("publishing") and _LACKING is None:
    from shmloader.publishing import publish as publish
    from shmloader.publishing import subscribe as subscribe
