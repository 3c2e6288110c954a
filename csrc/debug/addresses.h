/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_ADDRESSES_H
#define SHMLOADER_ADDRESSES_H

#include "guard.h"

/* Instead of unmapping the segment: give up its memory, not its addresses. Any thread. */
PLATFORM_COLD void addresses_keep(struct guard *guard);

#endif
