"""Small leaves of a batch side by side in one block, which is copied to the device at once."""

import torch

from shmloader.device.backend import Backend
from shmloader.memory import policy

# A leaf that is kept on the device costs at most so much beside its own, as in private memory.
BLOCK_BYTES = policy.SHARED_BYTES
_APART = 64  # bytes, from which any type can be read by any kernel


class Blocks:
    """The small leaves of one batch on their way."""

    def __init__(self, backend: Backend, writes: list[torch.Tensor]) -> None:
        """Begin a batch; what copies write is appended."""
        self._backend = backend
        self._writes = writes
        self._host: torch.Tensor | None = None  # the block in hand
        self._there: torch.Tensor
        self._used = 0  # bytes of it

    def put(self, leaf: torch.Tensor) -> torch.Tensor:
        """Copy a leaf of at most BLOCK_BYTES into a block. Returns it on the device."""
        begin = -(-self._used // _APART) * _APART
        host = self._host
        if host is None or begin + leaf.nbytes > BLOCK_BYTES:
            self.send()
            begin, block_bytes = 0, (BLOCK_BYTES,)
            self._there = torch.empty(block_bytes, dtype=torch.uint8, device=self._backend.device)
            host = self._host = self._backend.pinned(block_bytes, (1,), torch.uint8)
        self._used = begin + leaf.nbytes
        # As torch's to(): dense strides stay, others become those of a contiguous tensor.
        strides = leaf.stride() if leaf.is_contiguous() else torch.empty_like(leaf).stride()
        _over(host, begin, leaf, strides).copy_(leaf)
        return _over(self._there, begin, leaf, strides)

    def send(self) -> None:
        """Begin the copy of the block in hand, if there is one."""
        host, self._host = self._host, None
        if host is not None:
            self._writes.append(self._there)
            self._backend.copy(self._there[: self._used], host[: self._used])


def _over(
    block: torch.Tensor, begin: int, leaf: torch.Tensor, strides: tuple[int, ...]
) -> torch.Tensor:
    """Make a tensor like a leaf, in a block from that byte on."""
    made = torch.empty(0, dtype=leaf.dtype, device=block.device)
    return made.set_(block.untyped_storage(), begin // leaf.itemsize, leaf.shape, strides)
