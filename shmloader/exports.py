"""
What the package exports. `import shmloader` runs this when the first of these names is used.

Names of a component are absent with it, and some where there is no core; the error says why.
"""

import typing as _typing

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
from shmloader.interception import close as close
from shmloader.interception import install as install
from shmloader.interception import load_state_dict as load_state_dict
from shmloader.interception import report as report
from shmloader.interception import state_dict as state_dict
from shmloader.interception import stats as stats
from shmloader.interception import trace as trace
from shmloader.interception import uninstall as uninstall
from shmloader.options.options import Device as Device
from shmloader.setup.components import has_component as _has_room
from shmloader.setup.requirements import LACKING as _LACKING
from shmloader.stats import CacheStats as CacheStats
from shmloader.stats import Epoch as Epoch
from shmloader.stats import Held as Held
from shmloader.stats import Stats as Stats
from shmloader.stats import Times as Times
from shmloader.stats import WorkerStats as WorkerStats
from shmloader.worker.collate import empty as empty
from shmloader.worker.seeds import rng as rng

# By component, for the error; a test compares them with what is imported below.
_COMPONENTS = {
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

# Imported when they are asked for: as `concurrent.futures.process`, the pool cannot be imported
# once the main thread has ended, and a loader can.
_LATER = {"Pool": "shmloader.pool.executor"} if _has_room("pool") and _LACKING is None else {}

if _typing.TYPE_CHECKING:
    from shmloader.pool.executor import Pool as Pool

if _has_room("publishing") and _LACKING is None:
    from shmloader.publishing import publish as publish
    from shmloader.publishing import subscribe as subscribe
