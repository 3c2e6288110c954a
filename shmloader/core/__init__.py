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
    from shmloader.core._core import *  # noqa: F403 - what _core.pyi names
else:
    from shmloader.core.plain import Delivered as Delivered
    from shmloader.core.plain import HandsOut as HandsOut
    from shmloader.core.plain import InHand as InHand
    from shmloader.core.plain import Samples as Samples
    from shmloader.core.plain import is_plain as is_plain

    Plan = Indices = pack_request = replay = None  # of requests for workers, and of states

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        raise requirements.absent(f"{__name__}.{name}")
