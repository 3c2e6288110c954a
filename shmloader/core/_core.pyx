# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# SPDX-License-Identifier: BSD-3-Clause
"""
The only door to csrc/: rings and doorbell, ledger and desk, leases, and batches to bytes and back.

Python never sees a pointer. The parts, in the order in which they build on each other:

    tensors.pxi   memory behind a lease as torch tensors and ndarrays, and their description
    gather.pxi    samples side by side into one piece of memory: what collating is
    encode.pxi    a batch into a slot: payload and layout
    decode.pxi    a slot, or a block that it was spilled to, into a batch
    ledger.pxi    the trainer's end: place, receive, deliver
    desk.pxi      the worker's end: take, allocate, commit
"""

import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from multiprocessing.reduction import ForkingPickler
from threading import get_ident
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    NoneType,
)

import copyreg
import numpy
import torch

from shmloader.errors import BatchTooLarge, OutOfSharedMemory, WorkerBroken
from shmloader.core.progress import Progress

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.object cimport PyObject
from cpython.long cimport PyLong_FromLongLong
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport UINT32_MAX
from libc.errno cimport EAGAIN, EINTR, EPROTO, errno
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcpy, memset
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap
from posix.unistd cimport close

cnp.import_array()

cdef extern from "Python.h":
    # Not -1 but anything else than 0 is its error, and Python 3.11 returns 1.
    int Py_EnterRecursiveCall(const char *where) except *
    void Py_LeaveRecursiveCall()
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef extern from "sys/mman.h":
    enum:
        MAP_NORESERVE

cdef class Desk

include "tensors.pxi"
include "notes.pxi"
include "gather.pxi"
include "encode.pxi"
include "decode.pxi"
include "ledger.pxi"
include "desk.pxi"
