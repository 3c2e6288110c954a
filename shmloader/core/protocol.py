"""The words that trainer and worker say to each other, as Python sees them."""

from enum import Enum


class Order(Enum):
    """What the trainer tells a worker to do."""

    PLACE = "place"  # answer a request
    RESUME = "resume"  # begin the next epoch
    QUIT = "quit"


class Verb(Enum):
    """What a worker tells the trainer."""

    READY = "ready"  # an answer is in its slot
    WANT = "want"  # its batch needs a larger grant
    RESUMED = "resumed"  # the next epoch has begun there
    STALE = "stale"  # as RESUMED, but it was told to resume again since


class Kind(Enum):
    """What an answer holds."""

    BATCH = "batch"
    ERROR = "error"
    END = "end"  # the worker's iterable dataset is exhausted
    NOTHING = "nothing"  # the request was skipped
