# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# SPDX-License-Identifier: BSD-3-Clause
"""
The only door to csrc/: rings and doorbell, ledger and desk, leases, and batches to bytes and back.

Python never sees a pointer. The parts, in the order in which they build on each other:

    layout         the nodes of a layout, and how deep they may be nested
    torch_fields   what torch's own object of a tensor says of it, read in place
    tensors        memory behind a lease as torch tensors and ndarrays, and their description
    mapping        a segment's file mapped into this process
    children       the hooks of a fork, and which copy of a process this is
    descriptor     a file descriptor that lives as long as something refers to it
    plans          the indices of an epoch as numbers side by side, cut into requests
    requests       what the trainer asks of a worker, as bytes and back
    room           how many pages a worker may add, so that no process is killed
    slot_memory    allocations from the slot in hand: pages, grant, canary
    samples        the indices of the batch in hand, seen one by one by those who look
    gather         samples side by side into one piece of memory: what collating is
    stretches      what of a payload can live apart, and where it lies once delivered
    numbers        the objects of a batch that a walk has met, by their addresses
    numerals       integers in as few bytes as they need
    array_types    what describes the type of an array: a number, a text, or its pickle
    sources        the leaves that are not in the slot yet, and the copy that brings them there
    encode         a batch into a slot: payload and layout; or a record into a buffer
    decode         a slot, or the blocks that it was copied out to, into a batch; or a record
    records        records one after the other into a file, and one by itself
    record_lists   such a file, mapped, as a sequence
    sample_cache   samples that were fetched once, in a file of their own
    arrow          flat arrays borrowed from other libraries
    lent           a batch that is leased and not decoded yet, and where others find it; copies of
                   single tensors
    progress       where each worker is: what came with its answers, what it is told again
    table          what a ledger stands on, and what it refuses
    ledger         the trainer's end: place, receive, deliver
    figures        what the ledger has counted
    pins           slots that are page-locked for devices, and the fences behind them
    batch_log      the trainer's notes of the last batches, and reading the workers' notes
    delivered      which batches of an epoch were delivered, and a checksum of their indices
    desk           the worker's end: take, write, commit
    feed           a publisher's or a subscriber's end of what they share

Each part is a .pyx that is included here; a part uses nothing of a later one. They are one module,
because csrc/ has state of the process that must exist once, and because an allocation per leaf must
be a call within one C file. What C declares, the parts have from here.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport *

from shmloader.core.capi cimport *
from shmloader.core.csrc cimport *

cnp.import_array()

include "layout.pyx"
include "torch_fields.pyx"
include "tensors.pyx"
include "mapping.pyx"
include "children.pyx"
include "descriptor.pyx"
include "plans.pyx"
include "requests.pyx"
include "room.pyx"
include "slot_memory.pyx"
include "samples.pyx"
include "gather.pyx"
include "stretches.pyx"
include "numbers.pyx"
include "numerals.pyx"
include "array_types.pyx"
include "sources.pyx"
include "encode.pyx"
include "decode.pyx"
include "records.pyx"
include "record_lists.pyx"
include "sample_cache.pyx"
include "arrow.pyx"
include "lent.pyx"
include "progress.pyx"
include "table.pyx"
include "ledger.pyx"
include "figures.pyx"
include "pins.pyx"
include "batch_log.pyx"
include "delivered.pyx"
include "desk.pyx"
include "feed.pyx"
