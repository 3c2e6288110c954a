"""What the workers of the tested pools are asked to do; found by its name in each of them."""

import logging
import os
import random
import signal
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


def add(left, right=0):
    return left + right


def pid():
    return os.getpid()


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


def fail(value):
    raise LookupError(value)  # said here


class Unpicklable(Exception):
    """An error that no pickle can hold."""

    def __reduce__(self):
        raise TypeError("not this one")


class Unreadable(Exception):
    """An error that can be pickled, and not be made again."""

    def __init__(self, one, two):
        super().__init__(one)


def raise_unpicklable():
    raise Unpicklable("what happened")


def raise_unreadable():
    raise Unreadable("what happened", 2)


def exit_with(code):
    raise SystemExit(code)


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


def ones(count):
    return numpy.ones(count, numpy.uint8)


def rise(count):
    return torch.arange(count)


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.005)
    return True


def make(path):
    Path(path).touch()


def threads():
    return torch.get_num_threads()


def lock():
    import threading

    return threading.Lock()


def nested():
    from shmloader import Pool

    with Pool(1, "fork") as pool:
        return pool.submit(square, 3).result()
