"""A drop-in for torch.utils.data.DataLoader whose batches lie in shared memory from the start."""

import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from shmloader.setup import components, requirements

if TYPE_CHECKING:
    from shmloader.exports import *
else:
    # torch takes seconds to import, and the command line can help and refuse without it. So names
    # and modules of the package are imported when they are first used.
    def __getattr__(name: str) -> object:
        # Names with an underscore are what pickle, doctest and inspect ask any module for.
        if name == "__all__" or not name.startswith("_"):
            if name not in _BOTH and find_spec(f"{__name__}.{name}") is not None:
                return import_module(f"{__name__}.{name}")
            exports = vars(import_module("shmloader.exports"))
            names = {each: exports[each] for each in exports if not each.startswith("_")}
            later = exports["_LATER"]
            globals().update(names, __all__=sorted({*names, *later}))
            if name in later:
                globals()[name] = getattr(import_module(later[name]), name)
            if name in globals():
                return globals()[name]
            for folder, absent in exports["_COMPONENTS"].items():
                if name in absent:
                    components.require_component(name, folder)
                    raise requirements.absent(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})

    _BOTH = {"stats"}  # a function for users, and a folder

    class _Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            # An import of the folder puts it here, whenever that is; `from shmloader.stats import`
            # does not look here.
            if name not in _BOTH or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

        def __reduce__(self) -> tuple[object, tuple[str]]:
            # cloudpickle, which knows plain modules alone, may find it in what a function uses.
            return import_module, (self.__name__,)

    sys.modules[__name__].__class__ = _Package


__version__ = version("shmloader")
