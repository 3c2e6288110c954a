"""
MinatoLoader's load: most samples take little, one in five takes much longer.

Its paper has 7.5 times the rate of torch's loader, with all cores busy and in no order. Its class
puts one sample after another into a queue, and the trainer makes batches of what comes; so does its
way here, without its code, which needs CUDA. Ours keeps torch's order. Samples sleep.
"""

import multiprocessing
import random
import time
from functools import partial
from typing import Any

import torch

from bench.loads import Made
from bench.questions.claims.claim import Claim, living
from bench.questions.claims.latency import row

_BATCH, _BATCHES = 4, 40
_COUNT = _BATCH * _BATCHES
_WORKERS = 4
_LIGHT_S = 0.003
_ONE_IN = 5
_ANY, _QUEUED = "torch, in no order", "MinatoLoader's way"


class Heavy:
    """Makes a sample; one in five, anywhere, takes so many times longer."""

    def __init__(self, times: int) -> None:
        chosen = random.Random(1).sample(range(_COUNT), _COUNT // _ONE_IN)
        self._seconds = dict.fromkeys(chosen, _LIGHT_S * times)

    def __call__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds.get(index, _LIGHT_S))
        return row(index)


class Queued:
    """Processes that put samples into one queue, and batches of those that come first."""

    def __init__(self, times: int) -> None:
        context = multiprocessing.get_context("fork")
        self._samples, self._producers = context.Queue(10 * _BATCH), []
        make = Heavy(times)
        for worker in range(_WORKERS):
            told = context.SimpleQueue()
            share = range(worker, _COUNT, _WORKERS)
            process = context.Process(target=self._produce, args=(make, share, told), daemon=True)
            process.start()
            self._producers.append((told, process))

    def _produce(self, make: Heavy, share: range, told: Any) -> None:
        while told.get():
            for index in share:
                self._samples.put(make(index).numpy())

    def __iter__(self):
        for told, _ in self._producers:
            told.put(True)
        for _ in range(_BATCHES):
            came = [torch.from_numpy(self._samples.get()) for _ in range(_BATCH)]
            yield torch.stack(came)

    def close(self) -> None:
        """End the processes."""
        for told, process in self._producers:
            told.put(False)
            process.join()


def _claim(times: int) -> Claim:
    dataset = Made(_COUNT, Heavy(times))
    options = {"batch_size": _BATCH, "num_workers": _WORKERS, "prefetch_factor": 4}
    return Claim(
        _BATCHES,
        dataset,
        Made(_COUNT, row),
        options,
        {"assignment": "dynamic"},
        {
            _ANY: lambda: living("torch", dataset, in_order=False, **options),
            _QUEUED: partial(Queued, times),
        },
        any_order=frozenset({_ANY, _QUEUED}),
    )


CLAIMS = {f"one in five takes {times} times longer": _claim(times) for times in (6, 20)}
