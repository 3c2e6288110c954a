"""PyTorch Geometric: loaders whose batches are graphs, collated into slots."""

from __future__ import annotations

import pytest
import torch

from .needs import needs
from .training import WORKERS, plain
from .ways import IMPORT, INSTALL, WRAP, assert_lie_in_slots, made

needs("torch_geometric")

from torch_geometric.data import Data, Dataset  # noqa: E402
from torch_geometric.loader import (  # noqa: E402
    DataLoader,
    DenseDataLoader,
    DynamicBatchSampler,
    RandomNodeLoader,
)
from torch_geometric.nn import GCNConv, global_mean_pool  # noqa: E402

GRAPHS = 48
FEATURES = 8


def graph(index, nodes):
    """Make graph number `index`: its features are drawn, its edges are not."""
    around = torch.arange(nodes)
    edges = torch.stack([around, (around + 1 + index % 3) % nodes])
    return Data(torch.rand(nodes, FEATURES) + index / GRAPHS, edges, y=torch.tensor([index % 4]))


class Graphs(Dataset):
    """Graphs of 5 to 11 nodes, whose features a worker draws."""

    def len(self):
        return GRAPHS

    def get(self, index):
        return graph(index, 5 + index % 7)


class Meshes(Graphs):
    """Graphs of the same number of nodes, which a dense loader stacks."""

    def get(self, index):
        mesh = graph(index, 6)
        return Data(x=mesh.x, y=mesh.y)


class Net(torch.nn.Module):
    """Classes of graphs by a convolution over the edges; of dense batches by their means."""

    def __init__(self):
        super().__init__()
        self.convolution = GCNConv(FEATURES, 16)
        self.head = torch.nn.Linear(16, 4)

    def forward(self, batch):
        if batch.x.dim() == 3:
            return self.head(self.convolution.lin(batch.x).relu().mean(1))
        hidden = self.convolution(batch.x, batch.edge_index).relu()
        return self.head(global_mean_pool(hidden, batch.batch))


def train(loader):
    """Train by hand. Returns the loss of each step."""
    net = Net()

    def loss_of(batch):
        labels = batch.y.flatten()[: batch.num_graphs if "ptr" in batch else None]
        return torch.nn.functional.cross_entropy(net(batch), labels)

    return plain(loader, net=net, loss_of=loss_of)


def test_loader(compare, way):
    """Batches of graphs train to torch's losses in each way."""
    compare(lambda way: train(made(way, DataLoader, Graphs(), shuffle=True, **WORKERS)), way)


def test_batches_of_nodes(compare):
    """Batches bounded by their number of nodes, by PyG's own batch sampler."""

    def of_nodes(way):
        dataset = Graphs()
        sampler = DynamicBatchSampler(dataset, max_num=60, mode="node")
        return train(made(way, DataLoader, dataset, batch_sampler=sampler, num_workers=2))

    compare(of_nodes, INSTALL)


def test_dense_loader(compare):
    """Graphs of one size, stacked."""
    compare(lambda way: train(made(way, DenseDataLoader, Meshes(), shuffle=True, **WORKERS)))


def test_parts_of_one_graph(compare):
    """A loader that cuts a large graph into parts in its workers."""

    def parts(way):
        torch.manual_seed(1)
        large = graph(1, 200)
        large.y = torch.arange(200) % 4
        loader = made(way, RandomNodeLoader, large, num_parts=8, shuffle=True, num_workers=2)
        net = torch.nn.ModuleList([GCNConv(FEATURES, 4)])
        return [
            torch.nn.functional.cross_entropy(net[0](part.x, part.edge_index), part.y).item()
            for _ in range(2)
            for part in loader
        ]

    compare(parts, WRAP)


def leaves(batch):
    """List the tensors of a batch of graphs."""
    return [value for _, value in sorted(batch.to_dict().items()) if torch.is_tensor(value)]


@pytest.mark.parametrize("way", [IMPORT, WRAP], ids=str)
def test_leaves_lie_in_slots(way):
    """All tensors of a batch lie in its slot."""

    def leaves_of(batch):
        assert 5 == len(leaves(batch))  # x, edge_index, y, batch, ptr
        return leaves(batch)

    assert_lie_in_slots(made(way, DataLoader, Graphs(), **WORKERS), leaves_of)
