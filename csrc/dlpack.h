/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_DLPACK_H
#define SHMLOADER_DLPACK_H

/*
 * The part of the DLPack 1.x ABI that is used here, under its standard names: how a framework
 * describes a tensor to C, and the table of functions that torch.Tensor publishes as
 * __dlpack_c_exchange_api__. Declared here so that the build needs neither torch nor a header of
 * some version of it; the loader checks the major version of the table at run time.
 */

#include <stdint.h>

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3

enum { kDLCPU = 1 };

enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
};

typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

typedef struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  struct DLPackExchangeAPIHeader *prev_api;
} DLPackExchangeAPIHeader;

typedef struct DLPackExchangeAPI {
  DLPackExchangeAPIHeader header;
  void *managed_tensor_allocator;
  void *managed_tensor_from_py_object_no_sync;
  /* Steals the managed tensor; 0, or -1 with a Python exception set. */
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *tensor, void **out);
  /* Describes a tensor that outlives the description; 0, or -1 with a Python exception set. */
  int (*dltensor_from_py_object_no_sync)(void *py_object, DLTensor *out);
  void *current_work_stream;
} DLPackExchangeAPI;

#endif
