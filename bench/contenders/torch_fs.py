"""
torch's DataLoader, file_system strategy: a name in shared memory per tensor.
"""

from functools import partial

from bench.contenders._torch import make_torch_loader

label = "torch fs"
make_loader = partial(make_torch_loader, "file_system")


def available() -> str | None:
    """
    Say why this contender cannot run here; torch always can.
    """
    return None
