"""Accelerators whose runtime registers no memory of others: copies go through pinned memory."""

from shmloader.trainer.device.streams import Streams


class Pinning(Streams):
    """Any accelerator of torch that has streams and pinned memory."""

    registers = False

    def register(self, address: int, length: int) -> None:
        """Refuse: torch has no call for it."""
        raise RuntimeError(f"{self.device.type} registers no memory")

    def unregister(self, address: int) -> None:
        """Refuse: nothing can have been registered."""
        raise RuntimeError(f"{self.device.type} registers no memory")
