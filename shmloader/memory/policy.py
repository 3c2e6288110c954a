"""
Every number that decides which pages and slots stay, grow, spill or go back, with its reason.

csrc/policy.h repeats those that C and Cython use, and a test compares both. What only says how
things lie (sizes of structs, the bounds of the format, a huge page's length) stands in csrc/.

The end of a name is its unit: `_BYTES`, `_SLOTS`, `_S`, `_NS`; `_PART` is the n of "an n-th of";
others count what they name. "Measured" says what was, and by what; all others are chosen.
"""

MIB = 1 << 20

# How many slots

# A loop holds two batches in turns: its variable keeps one until the next is there. So many are
# left if anything is short.
IN_TURNS_SLOTS = 2
# Slots beyond what torch has in flight: two in turns, and four for the last batches of an epoch,
# which wait for the next epoch's workers because those are forked meanwhile.
HELD_SLOTS = 6
# Of batches that may be read by a device after they were dropped: four more than others, for the
# copies of a step, and for those of the step behind it.
FENCED_AHEAD_SLOTS = HELD_SLOTS - IN_TURNS_SLOTS + 4
# Ranges that replace retired slots, or slots that a child reads, for each slot in use, up to a
# most. They are addresses, not memory.
SPARES_EACH = 2
SPARES_MAX = 128
# The spares if a limit keeps the segment short, as a part of the slots, but at least so many. When
# half of them are used, workers collate in private memory; the others are for those on their way.
FEW_SPARES_PART = 8
FEW_SPARES_MIN = 2
RETIRED_PART = 2
COMEBACKS_TO_GROW = 2  # leases that end late before a slot is added: one may be chance
# A lease is late if as many batches came meanwhile as there are slots. At so many times as many it
# is no loop's habit, but something kept: slots for it would be in vain.
LATE_ROUNDS = 4

# How many bytes

# `ring_bytes` by default, as a part of the memory that this process's rank has: the other half is
# for the program and its samples.
RING_PART = 2
LEAST_RING_PART = 8  # of the memory, a loader's even if data is kept that takes nearly all
UNKNOWN_MEMORY_BYTES = 8 << 30  # to reckon with if the system does not say
# The least that `ring_bytes` may be, so that tests can have it short: some pages for each of a few
# slots. (tuning.py advises no less than 64 MiB, because less saves nothing.)
RING_BYTES_MIN = 1 << 16
ADDRESSES_MAX_BYTES = 16 << 40  # of all ranges together: a process has 128 TiB
RANGE_MIN_BYTES = MIB
# If `ulimit -f` or `-v` keeps ranges shorter than this, fewer slots are the default: batches of
# pictures have up to 38.5 MB.
RANGE_AIM_BYTES = 40 * MIB
# The part of the addresses left under `ulimit -v` that a segment takes: a forked worker inherits
# the trainer's mapping and makes one of its own, and the last third is for all else.
ADDRESSES_PART = 3

# Which pages wait for later batches

FEW_PAGES_BYTES = 32 * MIB  # are not given back while an epoch runs: not worth a system call
WAITING_PART = 4  # of what was needed at once lately, may wait beside them and what is needed
# When pages are given back, so much more goes, as a part of what may stay: the next ones find it
# done.
GIVEN_AHEAD_PART = 8
# "Lately": the last one to two windows of so many batches. A loop whose habits repeat within a
# window keeps its pages: new ones take 3 us for each 4 KiB, as much as to copy into them.
WINDOW_BATCHES = 32
# Sizes are steady if, of so many last batches, all but a part are at least a part of the largest.
# Not all: the last batch of an epoch is often small.
JUDGED_BATCHES = 16
SMALLER_PART = 4
STEADY_PART = 2
MEAN_PART = 8  # of the mean size, is the latest batch's, by which those on their way are counted
SLACK_PART = 4  # of the memory that is still available, may be pages that no batch needs
# Pages that wait for an epoch go to another loader if they are more than this part of what could be
# had, which is what is available and they themselves.
IDLE_PART = 4
# Of a worker's heap, the block whose double may be kept free: the largest that glibc heeds, without
# its header. Measured: 1,500 to 9,000 page faults fewer a batch.
HEAP_BLOCK_MAX_BYTES = 32 * MIB - (64 << 10)
HEAP_BLOCK_MIN_BYTES = MIB  # below it there is nothing to gain
# A worker's block, as a part of its share of the available memory: all of them, doubled, take a
# 32nd. Where memory is that short, page faults are the lesser evil.
HEAP_PART = 64

# What else stays: caches, and slots that a device reads

# The part of what is left that a cache leaves when it is made, to the loader's slots and workers.
CACHE_LEAVES_PART = 4
# What it leaves later: this part of all memory, up to so many bytes, beyond what a batch keeps for
# other workers. If it left less, batches would be refused.
CACHE_SPARES_PART = 8
CACHE_SPARES_MAX_BYTES = 4 << 30
# What a process takes of a cache at once: at most so much, and at most a part of what is left, so
# that the last pieces go to many processes.
CACHE_PIECE_MAX_BYTES = 32 * MIB
CACHE_PIECES_PART = 64
CACHE_LOOK_AGAIN_S = 1.0  # between two tries of a cache after memory was short
# The least batch for which a slot is page-locked: the copy through pinned memory of a smaller one
# takes less than 0.1 ms.
LOCKED_MIN_BYTES = MIB
# What is locked beyond a batch that was larger than its slot's lock, as a part of it: to lock a
# slot again costs as much as the first time.
LOCKED_AHEAD_PART = 4
# The part of the memory that is available without them which locks may take: the kernel can neither
# swap nor move them.
LOCKED_MOST_PART = 2
LOCKED_AGAIN_S = 1.0  # how long after memory was too short for a lock it is looked at again
FENCE_LOOK_S = 0.001  # how long the trainer parks while such copies may free a slot it needs
# Before a batch is copied for want of a slot, a fence is waited for as long as that copy takes, at
# this rate, but no longer than that: the device may wait for what the trainer does next.
COPY_BYTES_PER_S = 5_000_000_000
FENCE_WAIT_MAX_S = 0.05

# How pages come

# A worker that adds pages adds this part of those that it has, too: the next leaf probably needs
# them. A slot has an eighth more than its first batch needed, at most.
GROWN_PART = 8
PIECE_MAX_BYTES = 32 * MIB  # the most that is added between two looks at what is left
RESERVE_BYTES = 32 * MIB  # what a batch leaves to all other workers, for the smallest pieces
# What another worker may take besides: a forked one copies pages as it starts. Measured: runs in
# the least control group that holds them (`python -m bench memory`).
PRIVATE_BYTES = 8 * MIB
SHARES_EACH = 2  # parts of what is left, for each worker: one is not filled yet at the next look
LIST_RESERVE_BYTES = 32 * MIB  # what a list that is written leaves to the program, which makes it
HUGE_AT_ONCE = 4  # huge pages that are made by one call
# What one may take of the worker's own time before it makes no more. Measured: 2 MiB of small pages
# take 1.3 to 1.7 ms, huge ones a tenth of that where memory is whole.
HUGE_DEAR_NS = 1_000_000

# Which leaves leave a slot that stays leased

# Up to this part of a batch is moved out of its slot at delivery, so that small leaves can be kept
# without large ones: a 64th takes next to nothing of the time of a copy.
MOVED_PART = 64
MOVED_OF_LAST_PART = 2  # if no more than two slots can be leased: less than spilling the rest
SHARED_BYTES = 8 << 10  # that small neighbours share; a kept leaf takes so much beside its own

# When there is a look, and for how long there is patience

# Pages above which there is a look at the machine's memory while an epoch runs.
LOOK_FROM_BYTES = 2 * FEW_PAGES_BYTES
# Between two of them. Measured: reading the figures takes 0.2 ms of a core that a worker may want.
LOOK_NS = 250_000_000
# What this process may add, and its user may keep, between two looks, as a part of what was left
# at the first: looks are rare while there is much, and frequent when there is not.
UNSEEN_PART = 8
UNSEEN_S = 1.0  # for which such a look is good: other processes take memory too
# Between two looks for children that are gone, while slots are free and while none is. Measured: a
# look takes 1.5 us for each child.
CHILDREN_SELDOM_NS = 50_000_000
CHILDREN_OFTEN_NS = 1_000_000
# How long the oldest batch waits for memory before it is refused: memory also comes back by itself,
# as when files are written.
SHORTAGE_S = 1.0
# Between two looks at a shortage beyond which it begins anew: user code ran, and nothing made room
# meanwhile.
AWAY_S = 0.5
LOOK_AGAIN_NS = 20_000_000  # between two looks of a worker that found no room
HINT_NS = 20_000_000  # how long a worker's hint that memory is tight waits for the trainer
WARN_AFTER_SPILLS = 16  # of a loader's life, are worth a warning, once: fewer may be chance


# The rules that are formulas


def default_slots(workers: int, prefetch_factor: int, copied_ahead: int = 0) -> int:
    """Count the slots if the user sets no number; batches copied ahead hold theirs meanwhile."""
    return prefetch_factor * workers + max(HELD_SLOTS, copied_ahead + IN_TURNS_SLOTS)


def reserved_slots(in_flight: int, workers: int, slots: int) -> int:
    """Count the slots that must not be leased: all that torch has in flight, if there are more."""
    return min(in_flight, max(slots - IN_TURNS_SLOTS, min(workers, slots)))


def scarce_slots(slots: int, reserved: int) -> int:
    """
    Count the idle slots up to which half of a batch is moved out of its slot.

    These are the last two that can be spared, because a loop takes two in turns and they must come
    back; with fewer than four, none are scarce.
    """
    return reserved + IN_TURNS_SLOTS if slots - reserved >= 2 * IN_TURNS_SLOTS else 0


def most_retired(slots: int, spares: int) -> int:
    """Count the slots that may be retired before workers collate in private memory."""
    return min(slots, spares) // RETIRED_PART


def reserve_bytes(workers: int) -> int:
    """Count the most that a batch leaves to the other workers of a loader, in bytes."""
    return RESERVE_BYTES + (workers - 1) * PRIVATE_BYTES


def spares_of(slots: int) -> int:
    """Count the ranges that replace slots, if no limit keeps the segment short."""
    return min(SPARES_EACH * slots, SPARES_MAX)


def fewest_spares(slots: int) -> int:
    """
    Count the spares of a segment that a limit keeps short.

    When half of them are used, workers are told to collate in private memory. Every slot that is on
    its way by then may still be retired, so at least one of the other half is left in the end.
    """
    return max(FEW_SPARES_MIN, slots // FEW_SPARES_PART)
