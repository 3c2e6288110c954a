"""What the code around a next() must not do to the batches that are copied in it."""

import contextlib
from typing import Any

import torch

_NOTHING = contextlib.nullcontext()


def ordinary_tensors() -> contextlib.AbstractContextManager[Any]:
    """
    Have tensors that are made inside be no inference tensors, of which autograd saves none.

    A batch that is copied ahead may be handed out where that mode is over.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING
