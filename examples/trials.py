"""
Trials of a search that share one loader: each trains with a learning rate of its own.

    python examples/trials.py

This process publishes a loader's batches, and four processes subscribe to them. What each trial
finds is what it would have found with a loader of its own, to the last bit.
"""

import multiprocessing

import torch
from torch.utils.data import TensorDataset

from shmloader import DataLoader, publish, subscribe

LEARNING_RATES = (0.3, 0.1, 0.03, 0.01)
EPOCHS = 2


def loader_of_rows() -> DataLoader:
    """Make the loader, which is the same one at each call."""
    rows = torch.linspace(-1, 1, 64 * 4).reshape(64, 4)
    order = torch.Generator()
    order.manual_seed(1)
    dataset = TensorDataset(rows, rows.square().sum(dim=1, keepdim=True))
    return DataLoader(dataset, 8, shuffle=True, generator=order, num_workers=2)


def losses_of(batches, learning_rate: float) -> list[float]:
    """Train a small model, and return the loss of each step."""
    torch.set_num_threads(1)  # a forked process has none of torch's threads
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    losses = []
    for _ in range(EPOCHS):
        for rows, targets in batches:
            loss = (model(rows) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def trial(name: str, learning_rate: float, results) -> None:
    """Train on what is published, and put the losses where the search finds them."""
    with subscribe(name) as batches:
        results.put((learning_rate, losses_of(batches, learning_rate)))


def search(name: str = "trials") -> dict[float, list[float]]:
    """Run all trials at once. Returns the losses by learning rate."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    trials = [context.Process(target=trial, args=(name, rate, results)) for rate in LEARNING_RATES]
    for each in trials:
        each.start()
    publish(loader_of_rows(), name, subscribers=len(trials))  # until the last one has left
    for each in trials:
        each.join()
    return dict(results.get() for _ in trials)


if __name__ == "__main__":
    found = search()
    for rate in LEARNING_RATES:
        same = found[rate] == losses_of(loader_of_rows(), rate)
        print(f"learning rate {rate:g}: last loss {found[rate][-1]:.4f}, as alone: {same}")
