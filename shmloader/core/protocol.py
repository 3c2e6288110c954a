"""The words that trainer and worker say to each other, as Python sees them."""

from enum import Enum, IntEnum


class Order(Enum):
    """What the trainer tells a worker to do."""

    PLACE = "place"  # answer a request
    RESUME = "resume"  # begin the next epoch
    QUIT = "quit"


class Verb(Enum):
    """What a worker tells the trainer."""

    WANT = "want"  # its batch needs a larger grant
    RESUMED = "resumed"  # the next epoch has begun there
    STALE = "stale"  # as RESUMED, but it was told to resume again since


class Kind(Enum):
    """What an answer holds."""

    BATCH = "batch"
    ERROR = "error"
    END = "end"  # the worker's iterable dataset is exhausted
    NOTHING = "nothing"  # the request was skipped


class Word(IntEnum):
    """What a publisher tells a subscriber; the numbers are those of csrc/feed.h."""

    BATCH = 1
    BEGIN = 2  # an epoch begins
    END = 3  # it is over: said after its last batch alone
    CLOSED = 4  # nothing more comes
    FAILED = 5  # nothing more comes, because of an error
    LEFT = 6  # an epoch is told no further, though it has more batches


class Reply(IntEnum):
    """What a subscriber answers; the numbers are those of csrc/feed.h."""

    RETURN = 1  # a place is read
    SKIP = 2  # nothing of an epoch is read any more
