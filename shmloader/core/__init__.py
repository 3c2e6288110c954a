"""
The one extension module, and what is pickled beside it: the only door to csrc/.

Where it cannot be built, there are the few names that a loader without workers needs.
"""

from typing import TYPE_CHECKING

from shmloader.core.past import Past as Past
from shmloader.core.protocol import Kind as Kind
from shmloader.core.protocol import Order as Order
from shmloader.core.protocol import Reply as Reply
from shmloader.core.protocol import Verb as Verb
from shmloader.core.protocol import Word as Word
from shmloader.setup import requirements

if TYPE_CHECKING or requirements.LACKING is None:
    from shmloader.core._core import DEPTH_MAX as DEPTH_MAX
    from shmloader.core._core import MISSING as MISSING
    from shmloader.core._core import Answer as Answer
    from shmloader.core._core import BatchLog as BatchLog
    from shmloader.core._core import Capture as Capture
    from shmloader.core._core import DamagedRecord as DamagedRecord
    from shmloader.core._core import Delivered as Delivered
    from shmloader.core._core import Descriptor as Descriptor
    from shmloader.core._core import Desk as Desk
    from shmloader.core._core import Feed as Feed
    from shmloader.core._core import Figures as Figures
    from shmloader.core._core import HandsOut as HandsOut
    from shmloader.core._core import Indices as Indices
    from shmloader.core._core import InHand as InHand
    from shmloader.core._core import Ledger as Ledger
    from shmloader.core._core import Lent as Lent
    from shmloader.core._core import PackedRecord as PackedRecord
    from shmloader.core._core import Pins as Pins
    from shmloader.core._core import PlacedRecord as PlacedRecord
    from shmloader.core._core import Plan as Plan
    from shmloader.core._core import Posted as Posted
    from shmloader.core._core import Progress as Progress
    from shmloader.core._core import RecordFile as RecordFile
    from shmloader.core._core import RecordList as RecordList
    from shmloader.core._core import RecordWriter as RecordWriter
    from shmloader.core._core import Remains as Remains
    from shmloader.core._core import Room as Room
    from shmloader.core._core import SampleCache as SampleCache
    from shmloader.core._core import Samples as Samples
    from shmloader.core._core import Stopping as Stopping
    from shmloader.core._core import Taken as Taken
    from shmloader.core._core import Unreadable as Unreadable
    from shmloader.core._core import Window as Window
    from shmloader.core._core import after_fork as after_fork
    from shmloader.core._core import array_of_arrow as array_of_arrow
    from shmloader.core._core import before_fork as before_fork
    from shmloader.core._core import copy_tensor as copy_tensor
    from shmloader.core._core import driver_works as driver_works
    from shmloader.core._core import generation as generation
    from shmloader.core._core import in_forked_child as in_forked_child
    from shmloader.core._core import is_behind_lease as is_behind_lease
    from shmloader.core._core import is_capturing as is_capturing
    from shmloader.core._core import is_plain as is_plain
    from shmloader.core._core import locked_bytes as locked_bytes
    from shmloader.core._core import look_for_children as look_for_children
    from shmloader.core._core import met_capture as met_capture
    from shmloader.core._core import open_driver as open_driver
    from shmloader.core._core import pack_request as pack_request
    from shmloader.core._core import parking as parking
    from shmloader.core._core import poll as poll
    from shmloader.core._core import post_bytes as post_bytes
    from shmloader.core._core import relax_captures as relax_captures
    from shmloader.core._core import replay as replay
    from shmloader.core._core import segment_bytes as segment_bytes
    from shmloader.core._core import slots_within as slots_within
    from shmloader.core._core import unpack_record as unpack_record
    from shmloader.core._core import view_layout as view_layout
    from shmloader.core._core import watch_process as watch_process
else:
    from shmloader.core.plain import Delivered as Delivered
    from shmloader.core.plain import HandsOut as HandsOut
    from shmloader.core.plain import InHand as InHand
    from shmloader.core.plain import Samples as Samples
    from shmloader.core.plain import is_plain as is_plain
    from shmloader.core.plain import replay as replay

    Plan = Indices = pack_request = None  # of requests for workers

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        raise requirements.absent(f"{__name__}.{name}")
