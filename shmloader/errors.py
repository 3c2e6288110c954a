"""What can go wrong here and not in torch; each error is also the builtin one would catch."""


class ShmloaderError(Exception):
    """The base of all errors of shmloader's own."""


class BatchTooLarge(ShmloaderError, ValueError):
    """A batch needs more bytes than `ring_bytes` or a slot's range can ever hold."""


class OutOfSharedMemory(ShmloaderError, MemoryError):
    """The machine, the container or a limit has no room for the pages that a batch needs."""


class UnsendableBatch(ShmloaderError, TypeError):
    """A leaf of a batch cannot be pickled, so it cannot leave its worker."""


class WorkerBroken(ShmloaderError, RuntimeError):
    """A worker wrote something into the segment that its protocol does not allow."""


class RestartWarning(UserWarning):
    """A worker died and another took its place, because `restarts` is set."""


class RetentionWarning(UserWarning):
    """Batches are copied out of their slots because too many slots are held."""
