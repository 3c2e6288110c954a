"""
What an epoch's edge costs: the wait at its first step, and its time, with and without overlap.

    python -m bench edges
    python -m bench edges --batches 400 --epochs 9

Workers that live on between epochs idle while the last batches of one are used, and start cold into
the next. `overlap_epochs=True` has them fetch what the next one will probably ask for. In the row
"guessed wrong" the training draws from the sampler's generator between each two epochs, so that no
guess is right: two are made, and then no more.
"""

import argparse
import sys
import time
from statistics import median
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset

import shmloader
from bench.options import parser_of
from bench.report.rows import Rows, add_json_option

_COLUMNS = {
    "loader": "loader",
    "first step ms": "first_ms",
    "epoch ms": "epoch_ms",
    "of ours": "of_ours",
    "foretold": "foretold",
    "used": "used",
    "correct": "correct",
}
_WRONG = "ours, guessed wrong"


class Sleeping(Dataset):
    """Samples ((3, 32, 32) uint8, int) that take a while, without a core."""

    def __init__(self, count: int, sample_s: float):
        self._count = count
        self._sample_s = sample_s
        self._picture = numpy.zeros((3, 32, 32), numpy.uint8)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[numpy.ndarray, int]:
        time.sleep(self._sample_s)
        return self._picture, index


class Contender:
    """A loader with persistent workers, and what its epochs took."""

    def __init__(self, name: str, options: argparse.Namespace):
        self.name = name
        kind = torch.utils.data.DataLoader if name == "torch" else shmloader.DataLoader
        own = {"overlap_epochs": True} if name in ("ours, overlapped", _WRONG) else {}
        self.generator = torch.Generator().manual_seed(1)
        self.loader: Any = kind(
            Sleeping(options.batches * options.batch, options.sample_ms / 1e3),
            batch_size=options.batch,
            sampler=None,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            generator=self.generator,
            **own,
        )
        self.first_s: list[float] = []
        self.epoch_s: list[float] = []
        self.drawn: list[list[int]] = []

    def run(self, step_s: float) -> None:
        """Run an epoch, each step of which takes so many seconds."""
        if self.name == _WRONG:
            self.generator.manual_seed(len(self.epoch_s))
        drawn = []
        begun = asked = time.perf_counter()
        first_s = 0.0
        for number, (_, indices) in enumerate(self.loader):
            if number == 0:
                first_s = time.perf_counter() - asked
            drawn += indices.tolist()
            _spend(step_s)
        self.epoch_s.append(time.perf_counter() - begun)
        self.first_s.append(first_s)
        self.drawn.append(drawn)

    def close(self) -> None:
        """Stop the workers."""
        if self.loader._iterator is not None:
            self.loader._iterator._shutdown_workers()


def _spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main(arguments: list[str]) -> int:
    """Print a row per loader; the exit code is 0 if all of them drew what torch draws."""
    options = _options(arguments)
    names = ["torch", "ours", "ours, overlapped", _WRONG]
    contenders = [Contender(name, options) for name in names]
    try:
        for _ in range(options.epochs):
            for contender in contenders:
                contender.run(options.step_ms / 1e3)
                time.sleep(0.1)  # what is fetched ahead must not disturb the next one
        return _show(contenders, options)
    finally:
        for contender in contenders:
            contender.close()


def _show(contenders: list[Contender], options: argparse.Namespace) -> int:
    rows = Rows(_COLUMNS, options.json)
    usual = contenders[1]
    correct = True
    for contender in contenders:
        count = options.batches * options.batch
        is_right = all(sorted(drawn) == list(range(count)) for drawn in contender.drawn)
        if contender.name != _WRONG:
            is_right = is_right and contender.drawn == contenders[0].drawn
        stats = {} if contender.name == "torch" else contender.loader.stats().foretold
        ratios = zip(contender.epoch_s[1:], usual.epoch_s[1:], strict=True)
        rows.add(
            {
                "loader": contender.name,
                "first_ms": 1e3 * median(contender.first_s[1:]),
                "epoch_ms": 1e3 * median(contender.epoch_s[1:]),
                "of_ours": median(own / other for own, other in ratios),
                "foretold": stats.get("sent", 0),
                "used": stats.get("used", 0),
                "correct": is_right,
            }
        )
        correct = correct and is_right
    return 0 if correct else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("edges", __doc__)
    parser.add_argument("--batches", type=int, default=200, help="per epoch")
    parser.add_argument("--batch", type=int, default=8, help="samples in a batch")
    parser.add_argument("--sample-ms", type=float, default=0.4)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=9, help="the first one is not shown")
    add_json_option(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
