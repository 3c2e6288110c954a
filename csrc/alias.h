/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_ALIAS_H
#define SHMLOADER_ALIAS_H

#include "dlpack.h"
#include "lease.h"

/*
 * Describe memory behind a lease as a tensor that a framework can own: its deleter drops the alias
 * that this call takes. shape and strides hold ndim numbers each and are copied; strides count
 * elements. Any thread. NULL: no memory; then no alias is taken.
 */
DLManagedTensorVersioned *alias_new(struct lease *lease, void *data, DLDataType dtype, int32_t ndim,
                                    const int64_t *shape, const int64_t *strides);

/*
 * Have *deleted set to true when the alias's deleter is called; NULL: no longer. Only while no
 * other thread can drop it, as in the call that hands it to a framework and may fail halfway.
 */
void alias_watch(DLManagedTensorVersioned *managed, bool *deleted);

#endif
