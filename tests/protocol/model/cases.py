"""What is checked: the runs of each model that must hold, and the mutations that must be found."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKED = "invalid end state"
WRONG = "assertion violated"
ENDLESS = "non-progress cycle"

MODELS = ("parking", "ring", "leases", "copies", "slots")


@dataclass(frozen=True)
class Run:
    """
    One exhaustive search of a model, which must find no fault.

    Args:
        model: The name of its file, without `.pml`.
        name: What happens in this run, for the table.
        defines: Bounds that differ from those in the file.
        ends: Look for a run without end; otherwise for one that blocks or fails an assertion.
        is_long: It takes several seconds; others show nearly as much.
    """

    model: str
    name: str
    defines: tuple[str, ...] = ()
    ends: bool = False
    is_long: bool = False


@dataclass(frozen=True)
class Mutation:
    """
    A mistake, which must be found within bounds at which the model without it holds.

    Args:
        flag: The name that switches it on.
        fault: How it shows.
        says: The mistake in words.
        defines: The bounds of the search that finds it.
    """

    model: str
    flag: str
    fault: str
    says: str
    defines: tuple[str, ...] = ()

    @property
    def run(self) -> Run:
        """The search that finds it."""
        return Run(self.model, self.flag, (self.flag, *self.defines), ends=self.fault == ENDLESS)


ALONE = ("SPURIOUS=0",)  # no park ends by chance, so the way to the fault is shorter
DYING = ("DEATHS=1",)
WANTING = ("WANTS=1",)
KEEPING = ("KEEPS=1",)
RETIRING = ("TICKETS=4", "KEEPS=3")
FORGED = ("FORGERIES=1",)
ABANDONED = ("WANTS=2", "ABANDON=1")

RUNS = (
    Run("parking", "nobody dies"),
    Run("parking", "both ringers may die", ("DEATHS=2", "SPURIOUS=1")),
    Run("parking", "every run ends", ("DEATHS=1", "SPURIOUS=1"), ends=True),
    Run("ring", "one cell", ("CELLS=1", "DEATHS=2")),
    Run("ring", "two cells", ("CELLS=2", "DEATHS=2")),
    Run("ring", "every run ends", ("CELLS=2", "DEATHS=2"), ends=True),
    Run("leases", "three leases, a child"),
    Run("leases", "every run ends", ("LEASES=2",), ends=True),
    Run("copies", "three tickets, a child at any time"),
    Run("copies", "every run ends", ("TICKETS=2",), ends=True),
    Run("slots", "two deaths", ("DEATHS=2",)),
    Run("slots", "a death, a want, a kept batch", DYING + WANTING + KEEPING, is_long=True),
    Run("slots", "a death, two wants", ("DEATHS=1", "WANTS=2"), is_long=True),
    Run("slots", "a death, a want, abandoned", ("DEATHS=1", "WANTS=1", "ABANDON=1"), is_long=True),
    Run("slots", "two wants, abandoned", ABANDONED),
    Run("slots", "nonsense in a ring", FORGED + WANTING + KEEPING),
    Run("slots", "all batches kept", RETIRING),
    Run("slots", "every run ends", DYING + WANTING, ends=True),
)

MUTATIONS = (
    Mutation("parking", "NO_FENCE", BLOCKED, "arming loads rings too early", ALONE),
    Mutation("parking", "PARKED_READ_FIRST", BLOCKED, "a ringer loads parked, then adds", ALONE),
    Mutation("parking", "RING_FIRST", BLOCKED, "a ringer rings, then publishes", ALONE),
    Mutation("parking", "NO_WAKE", BLOCKED, "a ringer wakes no process", ALONE),
    Mutation("parking", "NO_LOOK", BLOCKED, "the owner arms and parks at once", ALONE),
    Mutation("parking", "ARM_LATE", BLOCKED, "the owner looks, then arms, then parks", ALONE),
    Mutation("parking", "LOOK_AT_ONE", BLOCKED, "the last look leaves out a word", ALONE),
    Mutation("parking", "NO_COMPARE", BLOCKED, "parking does not compare rings", ALONE),
    Mutation("parking", "NO_SLICE", BLOCKED, "a park has no end in time", ALONE + DYING),
    Mutation("parking", "ARM_ONCE", ENDLESS, "rings is loaded once and for all", ALONE),
    Mutation("ring", "RELAXED_WRITE_POS", WRONG, "write_pos is stored without release"),
    Mutation("ring", "CELL_READ_EARLY", WRONG, "write_pos is loaded without acquire"),
    Mutation("ring", "READ_POS_FIRST", WRONG, "read_pos is stored without release"),
    Mutation("ring", "OFF_BY_ONE", WRONG, "a full ring takes one value more"),
    Mutation("ring", "COMPARE_POSITIONS", WRONG, "positions are compared, not their difference"),
    Mutation("ring", "NO_LOOK_WHEN_FULL", BLOCKED, "the writer never looks at read_pos again"),
    Mutation("ring", "NO_LOOK_WHEN_EMPTY", BLOCKED, "the reader never looks at write_pos again"),
    Mutation("ring", "READER_KEEPS_END", WRONG, "the reader's end is not reopened", DYING),
    Mutation("ring", "REOPEN_UNDRAINED", WRONG, "reopened with values in it", DYING),
    Mutation("leases", "FREE_ON_FIRST_ALIAS", WRONG, "the first alias that dies ends the lease"),
    Mutation("leases", "COUNT_IN_TWO_STEPS", BLOCKED, "the subtraction is a load and a store"),
    Mutation("leases", "NEXT_AFTER_PUSH", WRONG, "next_released is stored after the exchange"),
    Mutation("leases", "PUSH_WITHOUT_COMPARE", WRONG, "the head is stored without comparing"),
    Mutation("leases", "COLLECT_IN_TWO_STEPS", WRONG, "the stack is read, then emptied"),
    Mutation("leases", "UNREF_BEFORE_PUSH", WRONG, "the reference goes, then the slot is pushed"),
    Mutation("leases", "LEASE_WITHOUT_REFERENCE", WRONG, "a lease keeps nothing mapped"),
    Mutation("leases", "FREE_UNDER_FORKS", WRONG, "a slot is FREE while a child may read it"),
    Mutation("leases", "UNFORK_EARLY", WRONG, "the note of a child goes before the child"),
    Mutation("copies", "FORK_UNMARKED", WRONG, "the hook of a fork marks nothing"),
    Mutation("copies", "FREE_UNDER_CHILDREN", WRONG, "a marked slot is FREE at once"),
    Mutation("copies", "PIPE_CLOSED", WRONG, "a child that closes descriptors counts as gone"),
    Mutation("copies", "CHILD_PLACES", WRONG, "a child places by its copy of the ledger"),
    Mutation("copies", "CHILD_RECEIVES", BLOCKED, "a child takes a cell of the ready ring"),
    Mutation("copies", "CHILD_PUNCHES", WRONG, "a child punches what is FREE in its copy"),
    Mutation("copies", "CHILD_EMPTIES", BLOCKED, "a child restarts the segment"),
    Mutation("slots", "RECLAIM_BEFORE_REAP", WRONG, "a killed worker is not waited for", DYING),
    Mutation("slots", "START_BEFORE_RECLAIM", WRONG, "the next one starts too early", DYING),
    Mutation("slots", "NO_DRAIN", WRONG, "what the dead had answered is lost", DYING),
    Mutation("slots", "KEEP_READY", WRONG, "the ready ring of the dead stays as it was", DYING),
    Mutation("slots", "KEEP_TASKS", WRONG, "the task ring of the dead stays as it was", DYING),
    Mutation("slots", "PLACE_AGAIN_LAST", BLOCKED, "placed again after all others", DYING),
    Mutation("slots", "PLACE_AGAIN_ANYWHERE", BLOCKED, "at another seat", DYING + WANTING),
    Mutation("slots", "RESTART_EARLY", WRONG, "restarted before all have left", ABANDONED),
    Mutation("slots", "READY_BY_CELL_ALONE", WRONG, "the ledger is not asked", FORGED),
    Mutation("slots", "NO_TICKET_CHECK", WRONG, "any ticket's answer will do", FORGED),
    Mutation("slots", "WANT_SURVIVES", WRONG, "a freed slot still wants", DYING + WANTING),
    Mutation("slots", "NO_OLDEST", BLOCKED, "the oldest want waits for room, too", WANTING),
    Mutation("slots", "GRANT_KEEPS_WANT", ENDLESS, "a want that was settled stays", WANTING),
    Mutation("slots", "LOSE_WHEN_FULL", BLOCKED, "a cell for a full ring is lost", WANTING),
    Mutation("slots", "STUCK_WHEN_FULL", BLOCKED, "no worker leaves a full ring", ABANDONED),
    Mutation("slots", "NO_SPILL", BLOCKED, "every batch is leased, whatever is left"),
    Mutation("slots", "LEASE_KEPT", WRONG, "leased while its worker keeps it", KEEPING),
    Mutation("slots", "REUSE_KEPT", WRONG, "reused while its worker keeps it", KEEPING),
    Mutation("slots", "NO_COPY_IN", WRONG, "slots retire without end", RETIRING),
)
