"""Which accelerator an option names."""

import torch

from shmloader.device.backend import Backend
from shmloader.device.cuda import Cuda


def backend_for(device: str | torch.device) -> Backend:
    """Find the accelerator that an option names."""
    wanted = torch.device(device)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != wanted.type:
        has = "none is available" if found is None else f'what is available is "{found.type}"'
        raise ValueError(
            f'device="{device}" names an accelerator, but {has}: omit device, or pass '
            'device="cpu", which leaves batches in CPU memory'
        )
    count = torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ValueError(
            f'device="{device}" does not exist: what is available is "{wanted.type}:0"'
            + (f' to "{wanted.type}:{count - 1}"' if count > 1 else "")
        )
    if wanted.index is None:
        wanted = torch.device(wanted.type, torch.accelerator.current_device_index())
    if wanted.type == "cuda":
        return Cuda(wanted)
    return Backend(wanted)
