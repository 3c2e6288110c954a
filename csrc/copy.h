/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef SHMLOADER_COPY_H
#define SHMLOADER_COPY_H

#include "platform.h"

/*
 * The copies of a batch of at least so many bytes go past the caches. Below this the reader may
 * find the bytes in cache; above it they would only evict what is there, and be read for ownership
 * first. The choice is made here and nowhere else; bench/micro shows where it comes from.
 */
#define COPY_STREAM_FROM_BYTES (UINT64_C(1) << 20)

/* A piece below this is copied plainly even in a large batch: its edges would cost more. */
#define COPY_STREAM_PIECE_BYTES 2048

/*
 * Copy bytes from one place to another that does not overlap it; large copies go past the caches.
 * batch_bytes is how much the whole batch moves, of which this is a part. Any thread; wait-free.
 * When it returns, the bytes are ordered before every later release store of this thread.
 */
void copy_bytes(void *to, const void *from, size_t bytes, uint64_t batch_bytes);

/* The two ways, for the bench that sets the threshold. Same contract as copy_bytes. */
void copy_plain(void *to, const void *from, size_t bytes);
void copy_stream(void *to, const void *from, size_t bytes);

/*
 * Copy count pieces of piece_bytes each to consecutive places at to. The sources are read a little
 * ahead, because samples lie anywhere. Any thread; wait-free; ordered as copy_bytes.
 */
void copy_gather(void *to, const void *const *from, size_t count, size_t piece_bytes);

#endif
