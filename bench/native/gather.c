/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The gather of the limit: a batch's leaves side by side in memory that exists.
 *
 * It finds tensors as the product does, by DLPack's table of C functions, and copies them with the
 * product's copies, so that the limit copies no slower than shmloader. It asks less of them: the
 * bench's tensors are plain and contiguous, and every batch is compared whole.
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

static size_t bytes_of(const DLTensor *tensor) {
  size_t bytes = tensor->dtype.bits / 8;
  for (int axis = 0; axis < tensor->ndim; axis++) bytes *= (size_t)tensor->shape[axis];
  return bytes;
}

/*
 * Copy the tensors and ndarrays of a list or tuple one behind the other, and leave out all else.
 * Returns the bytes that they have, or -1 with an exception set, also if these do not fit.
 */
int64_t gather(PyObject *tensor_type, PyObject *leaves, void *to, size_t to_bytes);
int64_t gather(PyObject *tensor_type, PyObject *leaves, void *to, size_t to_bytes) {
  const DLPackExchangeAPI *api = exchange_api(tensor_type);
  size_t end = 0;
  for (Py_ssize_t i = 0; api != NULL && i < PySequence_Fast_GET_SIZE(leaves); i++) {
    PyObject *leaf = PySequence_Fast_GET_ITEM(leaves, i);
    Py_buffer buffer = {0};
    DLTensor tensor;
    const void *start = NULL;
    size_t bytes = 0;
    if ((PyObject *)Py_TYPE(leaf) == tensor_type) {
      if (api->dltensor_from_py_object_no_sync(leaf, &tensor) != 0) return -1;
      start = (const uint8_t *)tensor.data + tensor.byte_offset;
      bytes = bytes_of(&tensor);
    } else if (PyObject_CheckBuffer(leaf)) {
      if (PyObject_GetBuffer(leaf, &buffer, PyBUF_SIMPLE) != 0) return -1;
      start = buffer.buf;
      bytes = (size_t)buffer.len;
    }
    bool fits = bytes <= to_bytes - end;
    if (fits) copy_bytes((uint8_t *)to + end, start, bytes, to_bytes);
    end += bytes;
    PyBuffer_Release(&buffer);
    if (!fits) {
      PyErr_SetString(PyExc_ValueError, "these leaves do not fit");
      return -1;
    }
  }
  return api == NULL ? -1 : (int64_t)end;
}
