"""
The only door to csrc/: the trainer's ledger, the worker's desk, and batches to bytes and back.

Python never sees a pointer. Slots and workers are named by their numbers, counted from 0.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, final

from torch import Tensor, dtype

from shmloader.core.progress import Progress

# By another name, because Ledger has an attribute that is called bytes.
_Bytes: TypeAlias = bytes
_Kind: TypeAlias = Literal["", "batch", "error", "end", "nothing"]
_News: TypeAlias = tuple[int, Literal["ready", "want", "resumed"], int, int, _Kind]
_Order: TypeAlias = (
    tuple[Literal["place"], Any]
    | tuple[Literal["resume"], int | None]
    | tuple[Literal["quit"], None]
)
_Dumps: TypeAlias = Callable[[Any], tuple[bytes, list[Any]]]
_Loads: TypeAlias = Callable[[bytes, list[Any]], Any]

def segment_bytes(workers: int, ranges: int, range_bytes: int) -> int:
    """
    Compute the length of a segment; nearly all of it is never touched.

    Args:
        ranges: Entries of the slot table: slots in use and spare ranges.
        range_bytes: Length of each slot's range.

    Returns:
        The length in bytes of the file that a `Ledger` of these numbers maps.

    Raises:
        ValueError: A number is zero, or their product is no length.
    """

def lies_in_segment(address: int) -> bool:
    """
    Whether an address lies in a segment that this process has mapped as a trainer.
    """

def parking() -> str:
    """
    Name the way in which processes park here.

    Returns:
        "futex", or "sleep" where there is none and with SHMLOADER_PORTABLE=1 at build time.
    """

def watch_process(pid: int) -> None:
    """
    End this process as soon as another one is gone, even in the middle of user code.

    Raises:
        OSError: No thread can be started for it. A process that is gone already is no error.
    """

def find_fields() -> None:
    """
    Find where torch notes in its own object what is asked of every sample.
    """

def forget_fields() -> None:
    """
    Ask torch about each tensor from here on, as where its notes were not found.
    """

def field_places() -> tuple[int, int]:
    """
    Where the dispatch keys and autograd's notes were found, in bytes; 0: not.
    """

class Stopping(BaseException):
    """
    The trainer wants this worker to leave while user code waits for pages.
    """

@final
class Ledger:
    """
    The trainer's private truth about a segment, and its end of all rings.

    Only the thread that iterates may call it. What it hands out may be dropped on any thread.

    Attributes:
        waited_ns: Nanoseconds parked in `wait`.
        batches: Batches delivered.
        bytes: Bytes of their payload.
        spilled: Batches that were copied to private memory when they were delivered.
        restarts: Workers that were replaced.
        pickled_bytes: Bytes of the pickles in them.
        pickled_batches: Batches that had one.
        heals: Whether workers publish snapshots with their answers, so that they can be replaced.
        progress: For each worker, from where its replacement would go on.
        recalled: Ticket -> worker, of what a dead worker had not answered, until it is placed
            again.
    """

    waited_ns: int
    batches: int
    bytes: int
    spilled: int
    restarts: int
    heals: bool
    progress: list[Progress]
    recalled: dict[int, int]
    pickled_bytes: int
    pickled_batches: int

    def __init__(
        self,
        fd: int,
        workers: int,
        slots: int,
        spares: int,
        range_bytes: int,
        ring_bytes: int,
        guarded: bool = False,
    ) -> None:
        """
        Map a segment and take it over.

        Args:
            fd: A file of zeros, `segment_bytes(workers, slots + spares, range_bytes)` long; a
                duplicate is kept.
            slots: Ranges in use.
            spares: Ranges that replace retired ones.
            range_bytes: Length of each range.
            ring_bytes: Ceiling for what the slots keep.
            guarded: Watch for late uses of slots: what `SHMLOADER_DEBUG=1` asks for.

        Raises:
            OSError: The file cannot be mapped.
            ValueError: No segment has such numbers.
            MemoryError: There is no private memory for the ledger, or for its guard.
        """

    def place(self, worker: int, ticket: int, index: Any, copy_in: bool = False) -> bool:
        """
        Write a request into a free slot and send it to a worker, once for each ticket.

        Args:
            ticket: The batch's turn number; tickets are placed in rising order.
            index: What the worker's fetcher takes: a list of ints, an int, a list of None, or any
                object that can be pickled.
            copy_in: Have the worker collate in private memory and copy the batch in once.

        Returns:
            Whether it was sent, now or before; False where no slot is free, and nothing happened.

        Raises:
            OutOfSharedMemory: There is no room for the request's pages.
            Exception: Whatever pickling the index raises.
        """

    def tell_resume(self, worker: int, seed: int | None) -> None:
        """
        Tell a worker to begin the next epoch.

        Args:
            seed: What its data pipe shares with the others'; None without a data pipe.
        """

    def share_seed(self, seed: int | None) -> None:
        """
        Note the seed that all data pipes share in the first epoch; None without a data pipe.
        """

    def tell_resumes_again(self) -> None:
        """
        Tell the replacements of dead workers the resumes that those had not answered.
        """

    def tell_quit(self, worker: int) -> None:
        """
        Tell a worker to leave once it has done what was sent before.
        """

    def stop(self) -> None:
        """
        Tell all workers to leave as soon as they look, without doing what was sent.
        """

    def restart(self) -> None:
        """
        Make the segment ready for new workers; all old ones have been reaped.
        """

    def trim(self) -> None:
        """
        Give back the pages of all free slots.
        """

    def receive(self) -> _News | None:
        """
        Take the next news of any worker; never waits.

        Returns:
            (worker, verb, slot, ticket, kind), or None where there is none. The kind is "" unless
            the verb is "ready"; slot and ticket mean nothing where it is "resumed".

        Raises:
            WorkerBroken: A worker sent what the protocol does not allow.
        """

    def wait(self, timeout_s: float) -> None:
        """
        Park until some worker may have news; the interpreter's lock is free meanwhile.

        Args:
            timeout_s: Longest wait, in seconds.

        Raises:
            BaseException: Whatever the handler of a signal that arrives raises.
        """

    def deliver(self, slot: int, spill: bool, loads: _Loads) -> Any:
        """
        Turn a ready slot into its batch.

        Args:
            spill: Copy the batch to private memory and free the slot now.
            loads: Turns a pickle and its buffers into an object.

        Returns:
            The collate function's own structure. Unless spilled its tensors and arrays are views of
            the slot, which is released when the last alias of them is gone.

        Raises:
            WorkerBroken: The layout contradicts itself; the slot is free then.
            MemoryError: No private memory for a spilled batch; the slot stays ready.
        """

    def discard(self, slot: int) -> None:
        """
        Free a ready slot whose batch nobody wants.
        """

    def reclaim(self, worker: int) -> None:
        """
        Free what a worker held that has been reaped, and forget what it was to be sent.
        """

    def recall(self, worker: int) -> None:
        """
        Free what a worker held that has been reaped, and note what its replacement is to be sent.

        The tickets stand in `recalled` until they are placed again; `tell_resumes_again` tells a
        resume that was not answered behind them.
        """

    def unanswered(self, worker: int) -> list[int]:
        """
        List the tickets that a worker was sent and has not answered, in their order.
        """

    def is_resuming(self, worker: int) -> bool:
        """
        Whether a worker has not answered a resume that it was told, or is to be told again.
        """

    def wants(self) -> list[tuple[int, int, int]]:
        """
        List the slots whose workers wait for a larger grant.

        Returns:
            (slot, ticket, bytes wanted) for each.
        """

    def ready_slots(self) -> list[tuple[int, int, int, _Kind]]:
        """
        List the answers that were received and are still in their slots.

        Returns:
            (worker, slot, ticket, kind) for each.
        """

    def untaken(self, worker: int) -> int:
        """
        Count the orders that a worker has not taken yet.
        """

    def is_kept(self, slot: int) -> bool:
        """
        Tell whether the worker that wrote a ready slot still has an alias of it.
        """

    def leasable(self, slot: int, reserve: int) -> bool:
        """
        Tell whether the bytes of a ready slot can be kept from the workers.

        Args:
            reserve: How many more batches of this size the budget should have room for; where it
                cannot hold so many, all but two that it can hold, at least one.
        """

    def room(self, slot: int, want_bytes: int) -> int:
        """
        Find the largest grant within the budget for a placed slot, trimming free slots for it.

        Returns:
            Bytes; less than `want_bytes` where the budget has no more.
        """

    def grant(self, slot: int, grant_bytes: int) -> None:
        """
        Let a worker fill a placed slot up to `grant_bytes`.
        """

    def refuse(self, slot: int) -> None:
        """
        Tell a worker that its batch can never fit.
        """

    def oldest(self) -> int | None:
        """
        Find the lowest ticket that was placed, or is to be again, and is not delivered.
        """

    def expect(self, batch_bytes: int) -> None:
        """
        Set how many bytes of each slot are touched ahead.
        """

    def mark_fork(self) -> _Bytes | None:
        """
        Note the leased slots, which a child that is forked now may read.

        Returns:
            The note for `unmark_fork`; None where nothing is leased.
        """

    def unmark_fork(self, marks: _Bytes) -> None:
        """
        Take the note back: that child is gone.
        """

    def held(self) -> list[tuple[int, float, int]]:
        """
        List the slots that are leased.

        Returns:
            (ticket, seconds since delivery, aliases) for each.
        """

    def counts(self) -> dict[str, int]:
        """
        Count the slots in each state.

        Returns:
            By name: free, placed, ready, leased, retired, spare, forked.
        """

    def idle_slots(self) -> int:
        """
        Count the slots that keep the workers busy: free, placed or ready.
        """

    def clocks(self) -> list[tuple[float, float, float]]:
        """
        Read the workers' clocks.

        Returns:
            (busy, starved, blocked) in seconds for each worker.
        """

    @property
    def wanting(self) -> int:
        """
        How many workers wait for a larger grant.
        """

    @property
    def ready(self) -> int:
        """
        How many answers were received and are still in their slots.
        """

    @property
    def unread(self) -> int:
        """
        How many answers wait in the rings.
        """

    @property
    def copies_in(self) -> bool:
        """
        Whether so many slots were retired that workers should no longer hand out their memory.
        """

    @property
    def ring_bytes(self) -> int:
        """
        Ceiling in bytes for what the slots keep.
        """

    @property
    def range_bytes(self) -> int:
        """
        Length in bytes of each slot's range.
        """

    @property
    def resident_bytes(self) -> int:
        """
        Bytes of pages that the slots are known to have.
        """

@final
class Desk:
    """
    A worker's end of a segment.

    Memory of the slot is handed out on the worker's main thread between take and commit only. The
    segment stays mapped until the process ends: an alias may outlive the desk.
    """

    def __init__(
        self,
        fd: int,
        workers: int,
        ranges: int,
        range_bytes: int,
        ring_bytes: int,
        worker: int,
        check_available: Callable[[int], None],
    ) -> None:
        """
        Map a segment and sit down at a worker's rings.

        Args:
            fd: The segment; a duplicate is kept.
            ring_bytes: The ceiling that the trainer keeps, for messages.
            worker: Which worker this is.
            check_available: Called with a number of bytes before pages are added; raises where the
                machine has no room for them.

        Raises:
            OSError: The file cannot be mapped.
            ValueError: There is no such worker.
        """

    def take(self, timeout_s: float) -> _Order | None:
        """
        Wait for the next order and take it in hand; the interpreter's lock is free meanwhile.

        Args:
            timeout_s: Longest wait, in seconds; 0 looks once.

        Returns:
            ("place", index), ("resume", seed or None), ("quit", None), or None after the timeout
            and as soon as `stopping`.
        """

    def leave_slot(self) -> None:
        """
        Forget the order in hand: this is a forked child, the slot is its parent's.
        """

    def keep_slot(self) -> None:
        """
        Do not let the slot in hand be used again: a child just forked may read what it holds.
        """

    def resumed(self) -> None:
        """
        Tell the trainer that the next epoch has begun here.
        """

    def write(self, batch: Any, is_error: bool, dumps: _Dumps) -> None:
        """
        Write a batch, or an exception of user code, into the slot in hand.

        The caller drops its references to the batch before it commits.

        Args:
            dumps: Turns an object that no layout can say into a pickle and its buffers.

        Raises:
            BatchTooLarge: It needs more bytes than the budget or the range allow.
            OutOfSharedMemory: There is no room for its pages.
            Stopping: The trainer wants this worker to leave and will grant nothing more.
            Exception: Whatever pickling a leaf raises.
        """

    def write_snapshot(self, snapshot: bytes) -> None:
        """
        Write behind the answer in hand what a replacement of this worker would start from.

        Raises:
            BatchTooLarge, OutOfSharedMemory, Stopping: As `write`; the answer has to be written
                again then.
            OverflowError: The snapshot is longer than 4 GiB.
        """

    def write_end(self) -> None:
        """
        Answer that this worker's iterable dataset is exhausted.
        """

    def write_nothing(self) -> None:
        """
        Answer a request that is skipped.
        """

    def commit(self) -> None:
        """
        Publish the answer in hand.

        A slot of which an alias is still alive in this process is published as kept: the trainer
        delivers it and never lets it be written again.
        """

    def empty(self, shape: Sequence[int], dtype: dtype) -> Tensor | None:
        """
        Make an uninitialised tensor (*shape) of the slot in hand.

        Returns:
            A contiguous tensor, aligned to 64 bytes; None for a dtype that DLPack lacks.

        Raises:
            BatchTooLarge, OutOfSharedMemory, Stopping: As for `write`.
        """

    def gather(
        self, what: Literal["tensors", "arrays", "ints", "floats"], samples: Sequence[Any]
    ) -> Tensor | None:
        """
        Collate samples into the slot in hand.

        Args:
            samples: B objects of one kind: plain contiguous tensors, C-contiguous ndarrays, ints or
                floats; tensors and arrays all of one shape and dtype.

        Returns:
            A tensor (B, *sample shape); None where torch's own collate has to see to it.

        Raises:
            BatchTooLarge, OutOfSharedMemory, Stopping: As for `write`.
        """

    def collate(
        self, samples: Any, functions: dict[Any, Callable[..., Any]], original: Callable[..., Any]
    ) -> Any:
        """
        Collate samples into the slot in hand as torch's collate() would with its stock functions.

        Args:
            functions: torch's map of collate functions, handed on to `original`.
            original: torch's collate(), for what is not covered and for every error.

        Returns:
            What `original` would return; tensors (B, *sample shape) lie in the slot where they can.

        Raises:
            BatchTooLarge, OutOfSharedMemory, Stopping: As for `write`.
        """

    @property
    def stopping(self) -> bool:
        """
        Whether the trainer wants all workers to leave.
        """

    @property
    def hands_out(self) -> bool:
        """
        Whether slot memory may be handed out here and now.
        """
