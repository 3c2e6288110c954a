"""torch's DataLoader, file_system strategy: a name in shared memory per tensor."""

from functools import partial

from bench.contenders._torch import TorchLoader, make_like_torch

label = "torch fs"
make_loader = partial(make_like_torch, TorchLoader, strategy="file_system")
