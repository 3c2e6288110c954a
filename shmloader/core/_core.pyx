# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# SPDX-License-Identifier: BSD-3-Clause
"""
The only door to csrc/: rings and doorbell, ledger and desk, leases, and batches to bytes and back.

Python never sees a pointer. Each part is a .pyx that is included here, in the order in which they
build on each other: a part uses nothing of a later one. They are one module, because csrc/ has
state of the process that must exist once, and because an allocation per leaf must be a call within
one C file. What C declares, the parts have from here.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear, PyErr_SetFromErrno
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_FromLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.number cimport PyIndex_Check, PyNumber_AsSsize_t
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF, Py_REFCNT
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.errno cimport E2BIG, EAGAIN, EBADMSG, EINTR, EINVAL, EIO, EPERM, EPROTO, errno
from libc.stdint cimport *
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport F_DUPFD_CLOEXEC, fcntl
from posix.mman cimport (
    MAP_FAILED, MAP_NORESERVE, MAP_SHARED, PROT_READ, PROT_WRITE, madvise, mmap, munmap,
)
from posix.unistd cimport close, getpid, pwrite

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
include "stream.pyx"
include "leaf_writer.pyx"
include "encode.pyx"
include "decode.pyx"
include "records.pyx"
include "record_lists.pyx"
include "sample_cache.pyx"
include "arrow.pyx"
include "lent.pyx"
include "progress.pyx"
include "table.pyx"
include "answers.pyx"
include "figures.pyx"
include "locked_slots.pyx"
include "ledger.pyx"
include "driver.pyx"
include "batch_log.pyx"
include "delivered.pyx"
include "desk.pyx"
include "feed.pyx"
