/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The gathers of the limit: samples side by side into memory that exists.
 *
 * They find samples as the product does, by DLPack's table of C functions, and copy them with the
 * product's copies, so that the limit copies no slower than shmloader. They ask less of a sample:
 * the bench's tensors are plain, and every batch is compared whole.
 *
 * Called with the GIL, which is kept: each of the limit's workers has one thread.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "copy.h"
#include "dlpack.h"

/* Returns NULL with an exception set if torch lacks a table of dlpack.h's major version. */
static const DLPackExchangeAPI *exchange_api(PyObject *tensor_type) {
  PyObject *capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
  if (capsule == NULL) return NULL;
  const DLPackExchangeAPIHeader *header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);
  while (header != NULL && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  if (header == NULL && !PyErr_Occurred())
    PyErr_SetString(PyExc_ImportError, "torch speaks another major version of DLPack");
  return (const DLPackExchangeAPI *)header;
}

/* Returns the bytes of a contiguous CPU tensor, or -1 for any other. */
static int64_t contiguous_bytes(const DLTensor *tensor) {
  int64_t elements = 1;
  if (tensor->device.device_type != kDLCPU || tensor->dtype.lanes != 1) return -1;
  for (int axis = tensor->ndim - 1; axis >= 0; axis--) {
    if (tensor->shape[axis] != 1 && tensor->strides[axis] != elements) return -1;
    elements *= tensor->shape[axis];
  }
  return elements * (tensor->dtype.bits / 8);
}

static bool alike(const DLTensor *one, const DLTensor *other) {
  return one->ndim == other->ndim && one->dtype.code == other->dtype.code &&
         one->dtype.bits == other->dtype.bits &&
         memcmp(one->shape, other->shape, (size_t)one->ndim * sizeof *one->shape) == 0;
}

/* Describe a sample. Returns false without an exception if it is unlike first or not contiguous. */
static bool find(const DLPackExchangeAPI *api, PyObject *type, PyObject *sample,
                 const DLTensor *first, DLTensor *found) {
  if ((PyObject *)Py_TYPE(sample) != type) return false;
  if (api->dltensor_from_py_object_no_sync(sample, found) != 0) {
    PyErr_Clear();
    return false;
  }
  return contiguous_bytes(found) >= 0 && (first == NULL || alike(first, found));
}

static int gather(const DLPackExchangeAPI *api, PyObject *type, PyObject *row, uint8_t *to,
                  size_t to_bytes, const void **starts) {
  size_t count = (size_t)PySequence_Fast_GET_SIZE(row);
  PyObject **samples = PySequence_Fast_ITEMS(row);
  DLTensor first, other;
  if (!find(api, type, samples[0], NULL, &first)) return 0;
  size_t piece_bytes = (size_t)contiguous_bytes(&first);
  if (count * piece_bytes != to_bytes) return 0;
  for (size_t i = 0; i < count; i++) {
    if (!find(api, type, samples[i], &first, &other)) return 0;
    starts[i] = (const uint8_t *)other.data + other.byte_offset;
  }
  copy_gather(to, starts, count, piece_bytes);
  return 1;
}

/*
 * Copy the tensors of a list or tuple side by side. Returns 1, or 0 if they are not contiguous
 * tensors of one dtype and shape that fill to_bytes, or -1 with an exception set.
 */
int gather_tensors(PyObject *tensor_type, PyObject *samples, void *to, size_t to_bytes);
int gather_tensors(PyObject *tensor_type, PyObject *samples, void *to, size_t to_bytes) {
  const DLPackExchangeAPI *api = exchange_api(tensor_type);
  PyObject *row = api ? PySequence_Fast(samples, "samples are a list or tuple") : NULL;
  if (row == NULL) return -1;
  size_t count = (size_t)PySequence_Fast_GET_SIZE(row);
  const void **starts = PyMem_Malloc((count + 1) * sizeof *starts);
  int done = count == 0 ? 0 : -1;
  if (starts == NULL)
    PyErr_NoMemory();
  else if (count > 0)
    done = gather(api, tensor_type, row, to, to_bytes, starts);
  PyMem_Free(starts);
  Py_DECREF(row);
  return done;
}

/*
 * Copy the tensors of a list, of any shapes, one after the other. Returns 1, or 0 if one is not
 * contiguous or they do not fit, or -1 with an exception set.
 */
int gather_unlike(PyObject *tensor_type, PyObject *samples, void *to, size_t to_bytes);
int gather_unlike(PyObject *tensor_type, PyObject *samples, void *to, size_t to_bytes) {
  const DLPackExchangeAPI *api = exchange_api(tensor_type);
  if (api == NULL) return -1;
  size_t end = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(samples); i++) {
    DLTensor found;
    if (!find(api, tensor_type, PyList_GET_ITEM(samples, i), NULL, &found)) return 0;
    size_t bytes = (size_t)contiguous_bytes(&found);
    if (bytes > to_bytes - end) return 0;
    copy_bytes((uint8_t *)to + end, (const uint8_t *)found.data + found.byte_offset, bytes,
               (uint64_t)bytes);
    end += bytes;
  }
  return 1;
}

static int copy_buffer(PyObject *to, PyObject *from) {
  Py_buffer target, source;
  if (PyObject_GetBuffer(to, &target, PyBUF_WRITABLE) != 0) return -1;
  if (PyObject_GetBuffer(from, &source, PyBUF_SIMPLE) != 0) {
    PyBuffer_Release(&target);
    return -1;
  }
  bool fits = target.len == source.len;
  if (fits) copy_bytes(target.buf, source.buf, (size_t)source.len, (uint64_t)source.len);
  PyBuffer_Release(&source);
  PyBuffer_Release(&target);
  return fits;
}

/*
 * Copy each contiguous buffer of a list into the one at the same index of another list. Returns 1,
 * or 0 if lengths differ, or -1 with an exception set.
 */
int copy_buffers(PyObject *to, PyObject *from);
int copy_buffers(PyObject *to, PyObject *from) {
  if (PyList_GET_SIZE(to) != PyList_GET_SIZE(from)) return 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(to); i++) {
    int done = copy_buffer(PyList_GET_ITEM(to, i), PyList_GET_ITEM(from, i));
    if (done != 1) return done;
  }
  return 1;
}
