"""torch's DataLoader, file_descriptor strategy: a descriptor per tensor, handed over by socket."""

from functools import partial

from bench.contenders._torch import TorchLoader, make_like_torch

label = "torch fd"
make_loader = partial(make_like_torch, TorchLoader, strategy="file_descriptor")
