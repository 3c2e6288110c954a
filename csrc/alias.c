/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * An alias is one storage's hold on a lease, in the form that DLPack wants. The framework calls the
 * deleter when the storage dies, on any thread, with or without Python's lock: it touches the lease
 * and the heap and nothing else.
 */

#include "alias.h"

#include <stdlib.h>

struct alias {
  DLManagedTensorVersioned managed;
  bool *deleted; /* NULL, or whom to tell */
  int64_t dims[]; /* shape, then strides */
};

static void alias_delete(DLManagedTensorVersioned *managed) {
  struct lease *lease = managed->manager_ctx;
  bool *deleted = ((struct alias *)managed)->deleted;
  if (deleted != NULL) *deleted = true;
  free(managed);
  lease_drop(lease);
}

DLManagedTensorVersioned *alias_new(struct lease *lease, void *data, DLDataType dtype, int32_t ndim,
                                    const int64_t *shape, const int64_t *strides) {
  size_t dims_bytes = (size_t)ndim * sizeof(int64_t);
  struct alias *alias = malloc(sizeof *alias + 2 * dims_bytes);
  if (alias == NULL) return NULL;
  int64_t *dims = alias->dims;
  memcpy(dims, shape, dims_bytes);
  memcpy(dims + ndim, strides, dims_bytes);
  alias->managed = (DLManagedTensorVersioned){
      .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
      .manager_ctx = lease,
      .deleter = alias_delete,
      .dl_tensor = {.data = data,
                    .device = {kDLCPU, 0},
                    .ndim = ndim,
                    .dtype = dtype,
                    .shape = dims,
                    .strides = dims + ndim},
  };
  alias->deleted = NULL;
  lease_take(lease);
  return &alias->managed;
}

void alias_watch(DLManagedTensorVersioned *managed, bool *deleted) {
  ((struct alias *)managed)->deleted = deleted;
}
