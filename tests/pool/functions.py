"""What the workers of the tested pools are asked to do; found by its name in each of them."""

import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy
import torch

kept = []
state = "as imported"


def same(value):
    return value


def square(value):
    return value**2


def sum_of_same(one, other):
    return float(one.sum()) if one is other else None


def add(left, right=0):
    return left + right


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


def fail_at_length(count):
    raise LookupError("x" * count)


def die(number=signal.SIGKILL):
    os.kill(os.getpid(), number)
    time.sleep(20)


def die_once(folder, value):
    mark = Path(folder) / "died"
    if not mark.exists():
        mark.touch()
        die()
    return value


def set_state(value):
    global state
    state = value


def get_state():
    return state


def fail_to_begin(path):
    logging.getLogger("concurrent.futures").addHandler(logging.FileHandler(path))
    raise ValueError("no such model")


def draws():
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def keep(array):
    kept.append(array)
    return int(array[0])


def kept_values():
    return [int(array[0]) for array in kept]


def change(array):
    array += 1
    return int(array.sum())


def halves(array):
    return {"first": array[: len(array) // 2], "made": array[len(array) // 2 :] * 2}


def sparse_ones(count):
    return torch.ones(count).to_sparse()


def ones(count):
    return numpy.ones(count, numpy.uint8)


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.005)
    return True


def lock(count):
    return count * [threading.Lock()]


def use_a_process():
    queue = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=queue.put, args=(9,))
    process.start()
    process.join()
    return queue.get()


def use_a_loader(kind):
    return 9 if [[0], [1]] == [batch.tolist() for batch in kind(range(2), num_workers=1)] else None


def use_a_pool(kind):
    with kind(1) as pool:
        return pool.submit(square, 3).result()


def touch_late(path):
    time.sleep(1.5)
    Path(path).touch()


def leave_a_process(path):
    multiprocessing.Process(target=touch_late, args=(path,)).start()


class Counting:
    """Counts the calls of itself."""

    def __init__(self):
        self.calls = 0

    def __call__(self, _):
        self.calls += 1
        return self.calls
