"""
Batches that go on to another process by torch.multiprocessing.

torch sends a CPU tensor by moving its storage to memory that can be shared, in place. An ndarray or
another export of that tensor does not move with it: it would still point at the slot, which is
reused because its lease has ended. So of a tensor that lies in a slot, a clone is sent.
"""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from shmloader.core import lies_in_segment


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "cpu" and tensor.layout == torch.strided:
        storage = tensor.untyped_storage()
        if storage.nbytes() and lies_in_segment(storage.data_ptr()):
            tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return reduce_tensor(tensor)


def install() -> None:
    """Send clones of tensors that lie in slots, from this process, from now on."""
    ForkingPickler.register(torch.Tensor, _reduce_tensor)
