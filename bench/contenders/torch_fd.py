"""
torch's DataLoader, file_descriptor strategy: a descriptor per tensor, handed over by socket.
"""

from functools import partial

from bench.contenders._torch import make_torch_loader

label = "torch fd"
make_loader = partial(make_torch_loader, "file_descriptor")


def available() -> str | None:
    """
    Say why this contender cannot run here; torch always can.
    """
    return None
