"""A class of tensordict's decorator, which makes another class of it, found under its name."""

import torch
from tensordict import tensorclass


@tensorclass
class Observation:
    """What an environment shows."""

    image: torch.Tensor
    reward: torch.Tensor
