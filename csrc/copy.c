/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Copies into a slot.
 *
 * A batch is written once by a worker and read once by the trainer, on another core, some time
 * later. A plain store first reads the line it writes (read for ownership) and then keeps it in
 * this core's cache, where it is of no use: two of the three memory transfers of a large copy are
 * wasted. Streaming stores write whole lines past the caches. For small batches the reader gains
 * more from finding the bytes in a shared cache, so they keep plain stores.
 *
 * The head of a streamed range is copied plainly up to a line boundary, so that every streaming
 * store fills its write-combining line completely; a half-filled line costs a read again.
 *
 * Streaming stores are weakly ordered, and a release store does not wait for them: a fence ends
 * each copy. It pairs with nothing by itself; it makes the release of the ring mean what it says.
 */

#include "copy.h"

void copy_plain(void *to, const void *from, size_t bytes) {
  STEP_COPY("copy: half", to, from, bytes);
  STEP("copy: whole");
}

static void stream_without_fence(uint8_t *to, const uint8_t *from, size_t bytes) {
  size_t head = (size_t)(-(uintptr_t)to & (PLATFORM_STREAM_BLOCK - 1));
  if (head > bytes) head = bytes;
  memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= PLATFORM_STREAM_BLOCK; bytes -= PLATFORM_STREAM_BLOCK) {
    platform_prefetch(from + 512);
    platform_stream_block(to, from);
    STEP("stream: block");
    to += PLATFORM_STREAM_BLOCK, from += PLATFORM_STREAM_BLOCK;
  }
  memcpy(to, from, bytes);
}

void copy_stream(void *to, const void *from, size_t bytes) {
  stream_without_fence(to, from, bytes);
  STEP("stream: no fence yet");
  platform_stream_end();
}

static bool streams(size_t piece_bytes, uint64_t batch_bytes) {
  return PLATFORM_HAS_STREAM && batch_bytes >= COPY_STREAM_FROM_BYTES &&
         piece_bytes >= COPY_STREAM_PIECE_BYTES;
}

void copy_bytes(void *to, const void *from, size_t bytes, uint64_t batch_bytes) {
  if (bytes == 0) return;
  if (streams(bytes, batch_bytes)) {
    copy_stream(to, from, bytes);
  } else {
    copy_plain(to, from, bytes);
  }
}

static void gather_stream(uint8_t *to, const void *const *from, size_t count, size_t piece_bytes) {
  for (size_t i = 0; i < count; i++) {
    stream_without_fence(to + i * piece_bytes, from[i], piece_bytes);
    STEP("gather: streamed piece");
  }
  platform_stream_end();
}

/* The fixed sizes let the compiler turn each copy into two or three moves. */
#define GATHER_FIXED(BYTES)                       \
  case BYTES:                                     \
    for (size_t i = 0; i < count; i++) {          \
      memcpy(to + i * (BYTES), from[i], (BYTES)); \
      STEP("gather: fixed piece");                \
    }                                             \
    return;

static void gather_plain(uint8_t *to, const void *const *from, size_t count, size_t piece_bytes) {
  switch (piece_bytes) {
    GATHER_FIXED(1)
    GATHER_FIXED(2)
    GATHER_FIXED(4)
    GATHER_FIXED(8)
    GATHER_FIXED(16)
    GATHER_FIXED(32)
    default:
      break;
  }
  const size_t ahead = 4;
  for (size_t i = 0; i < count; i++) {
    if (i + ahead < count) platform_prefetch(from[i + ahead]);
    memcpy(to + i * piece_bytes, from[i], piece_bytes);
    STEP("gather: piece");
  }
}

void copy_gather(void *to, const void *const *from, size_t count, size_t piece_bytes) {
  if (piece_bytes == 0) return;
  if (streams(piece_bytes, (uint64_t)count * piece_bytes)) {
    gather_stream(to, from, count, piece_bytes);
  } else {
    gather_plain(to, from, count, piece_bytes);
  }
}
