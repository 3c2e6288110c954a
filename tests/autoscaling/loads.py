"""Loads that take no time: how long a batch takes with some workers, and what a window shows."""

import functools
import random
from dataclasses import dataclass

from shmloader.autoscaling.controller import Controller, Limits, Window


@dataclass(frozen=True)
class Load:
    """
    A load on a machine.

    Attributes:
        waits_s: Seconds that a batch waits in its worker, for a disk or a network.
        computes_s: Seconds that it computes there, with a core of its own.
        step_s: Seconds that the step takes, with the cores that it wants.
        cores: Of the machine.
        step_cores: That the step wants.
        strangers: Cores that other programs want.
        noise: Of a window's rate, as a part of it.
    """

    waits_s: float
    computes_s: float
    step_s: float
    cores: float = 2
    step_cores: float = 1
    strangers: float = 0
    noise: float = 0.0

    @functools.cache  # noqa: B019  windows ask again and again for the same few numbers
    def at(self, workers: int) -> tuple[float, float, float]:
        """Return batches in a second, seconds of a batch, and seconds of the step."""
        slower = 1.0
        for _ in range(300):  # to where the cores that are wanted and the times agree
            batch_s, step_s = self.waits_s + self.computes_s * slower, self.step_s * slower
            rate = min(workers / batch_s, 1 / step_s)
            running = rate * (self.computes_s * slower + step_s * self.step_cores)
            slower += 0.1 * (max(1.0, (running + self.strangers) / self.cores) - slower)
        return rate, batch_s, step_s

    def window(self, workers: int, chance: random.Random) -> Window:
        """What a controller sees of it: a second, or twenty batches."""
        rate, batch_s, step_s = self.at(workers)
        seconds = max(1.0, 20 / rate)
        batches = max(1, round(rate * seconds * (1 + self.noise * chance.uniform(-1, 1))))
        waits = max(0.0, 1 - rate * step_s) * (1 + self.noise * chance.uniform(-1, 1))
        busy_s = min(rate * seconds * batch_s, workers * seconds)
        return Window(
            seconds=seconds,
            workers=workers,
            waited_s=min(waits, 1.0) * seconds,
            delivered=batches,
            made=batches,
            busy_s=busy_s,
            computed_s=busy_s * (1 - self.waits_s / batch_s),  # running, or ready to
        )

    def best(self, least: int, most: int) -> tuple[int, float]:
        """Find the number of workers with the highest rate, and that rate."""
        rates = {workers: self.at(workers)[0] for workers in range(least, most + 1)}
        best = max(rates.values())
        return min(each for each, rate in rates.items() if rate >= 0.999 * best), best


def play(
    controller: Controller,
    load: Load,
    windows: int,
    workers: int,
    most: int = 32,
    seed: int = 0,
    memory: int = 1 << 30,
) -> list[int]:
    """Play so many windows, and list how many workers there were in each, and after the last."""
    chance = random.Random(seed)
    numbers = [workers]
    for _ in range(windows):
        limits = Limits(1, most, load.cores, memory)
        numbers.append(controller.decide(load.window(numbers[-1], chance), limits))
    return numbers
