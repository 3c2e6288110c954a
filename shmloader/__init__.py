"""A drop-in for torch.utils.data.DataLoader whose batches lie in shared memory from the start."""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shmloader import requirements, rooms

if TYPE_CHECKING:
    from shmloader.exports import *
else:
    # torch takes seconds to import, and the command line can help and refuse without it. So names
    # and modules of the package are imported when they are first used.
    def __getattr__(name: str) -> object:
        # Names with an underscore are what pickle, doctest and inspect ask any module for.
        if name == "__all__" or not name.startswith("_"):
            if find_spec(f"{__name__}.{name}") is not None:
                return import_module(f"{__name__}.{name}")
            exports = vars(import_module("shmloader.exports"))
            names = {each: exports[each] for each in exports if not each.startswith("_")}
            globals().update(names, __all__=sorted(names))
            if name in globals():
                return globals()[name]
            for room, absent in exports["_ROOMS"].items():
                if name in absent:
                    rooms.require_room(name, room)
                    raise requirements.absent(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})


__version__ = version("shmloader")
