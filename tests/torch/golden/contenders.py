"""The two loaders that are compared, by name."""

import torch.utils.data

import shmloader

LOADERS = {"torch": torch.utils.data.DataLoader, "ours": shmloader.DataLoader}
