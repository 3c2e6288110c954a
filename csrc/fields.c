/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * The layout of what viewers may read, as a table: a viewer gets bytes and this, and so the structs
 * in view.h, times.h and clock.h stand once. `control` and `worker` say where these lie in theirs.
 */

#include "fields.h"

#include <string.h>

#include "segment.h"

#define FIELD(PART, NAME, FORMAT) \
  {#PART, sizeof(struct PART), #NAME, FORMAT, offsetof(struct PART, NAME)}
#define PLACE(PART, STRUCT, NAME) \
  {PART, sizeof(struct STRUCT), #NAME, "", offsetof(struct STRUCT, NAME)}

_Static_assert(VIEW_LABEL_BYTES == 48, "a label is as long as its format below says");
_Static_assert(VIEW_ABOUT_BYTES == 512, "what is said about a loader is as long as its format");

const struct view_field view_fields[] = {
    PLACE("control", control_block, nameplate),
    PLACE("control", control_block, trainer),
    PLACE("worker", worker_block, clock),
    PLACE("worker", worker_block, view),
    FIELD(nameplate, sequence, "u8"),
    FIELD(nameplate, magic, "u8"),
    FIELD(nameplate, layout, "u4"),
    FIELD(nameplate, state, "u4"),
    FIELD(nameplate, owner_pid, "u8"),
    FIELD(nameplate, owner_start, "u8"),
    FIELD(nameplate, loader, "u8"),
    FIELD(nameplate, workers, "u4"),
    FIELD(nameplate, log_records, "u4"),
    FIELD(nameplate, worker_offset, "u8"),
    FIELD(nameplate, worker_stride, "u8"),
    FIELD(nameplate, answers_offset, "u8"),
    FIELD(nameplate, log_offset, "u8"),
    FIELD(nameplate, total_bytes, "u8"),
    FIELD(nameplate, label, "S48"),
    FIELD(nameplate, about, "S512"),
    FIELD(trainer_view, sequence, "u8"),
    FIELD(trainer_view, state, "u4"),
    FIELD(trainer_view, epoch, "u8"),
    FIELD(trainer_view, since_ns, "u8"),
    FIELD(trainer_view, begun_ns, "u8"),
    FIELD(trainer_view, first_ns, "u8"),
    FIELD(trainer_view, length, "u8"),
    FIELD(trainer_view, batches, "u8"),
    FIELD(trainer_view, bytes, "u8"),
    FIELD(trainer_view, parked_ns, "u8"),
    FIELD(trainer_view, spilled, "u8"),
    FIELD(trainer_view, resident_bytes, "u8"),
    FIELD(trainer_view, logged, "u8"),
    FIELD(trainer_view, counts, "(8,)u4"),
    FIELD(trainer_view, resumed_at, "u8"),
    FIELD(ring, write_pos, "u4"),
    FIELD(ring, read_pos, "u4"),
    FIELD(worker_view, sequence, "u8"),
    FIELD(worker_view, state, "u4"),
    FIELD(worker_view, since_ns, "u8"),
    FIELD(worker_view, ticket, "u8"),
    FIELD(worker_view, index, "i8"),
    FIELD(worker_view, position, "u4"),
    FIELD(worker_view, samples, "u4"),
    FIELD(worker_view, sample_since_ns, "u8"),
    FIELD(worker_view, pid, "u8"),
    FIELD(worker_clock, fetching_ns, "u8"),
    FIELD(worker_clock, collating_ns, "u8"),
    FIELD(worker_clock, starved_ns, "u8"),
    FIELD(worker_clock, blocked_ns, "u8"),
    FIELD(worker_clock, batches, "u8"),
    FIELD(worker_clock, bytes, "u8"),
    FIELD(worker_clock, left_out, "u8"),
    FIELD(worker_clock, looks_found, "u8"),
    FIELD(worker_clock, looks_vain, "u8"),
    FIELD(log_record, sequence, "u8"),
    FIELD(log_record, ticket, "u8"),
    FIELD(log_record, epoch, "u8"),
    FIELD(log_record, worker, "u4"),
    FIELD(log_record, slot, "u4"),
    FIELD(log_record, taken_ns, "u8"),
    FIELD(log_record, fetched_ns, "u8"),
    FIELD(log_record, written_ns, "u8"),
    FIELD(log_record, asked_ns, "u8"),
    FIELD(log_record, returned_ns, "u8"),
    FIELD(log_record, released_ns, "u8"),
    FIELD(log_record, blocked_ns, "u8"),
    FIELD(log_record, blocked_fetching_ns, "u8"),
    FIELD(log_record, parked_ns, "u8"),
    FIELD(log_record, bytes, "u8"),
    FIELD(log_record, longest_ns, "u8"),
    FIELD(log_record, longest_index, "i8"),
    FIELD(log_record, longest_position, "u4"),
    FIELD(log_record, samples, "u4"),
    FIELD(log_record, spill, "u8"),
};

const size_t view_fields_count = sizeof view_fields / sizeof view_fields[0];

/* FNV-1a, of 32 bits. */
static uint32_t add_to_sum(uint32_t sum, const void *bytes, size_t count) {
  for (size_t at = 0; at < count; at++) sum = (sum ^ ((const uint8_t *)bytes)[at]) * 16777619u;
  return sum;
}

uint32_t view_layout_sum(void) {
  uint32_t sum = 2166136261u;
  const struct view_field *end = view_fields + view_fields_count;
  for (const struct view_field *each = view_fields; each < end; each++) {
    sum = add_to_sum(sum, each->part, strlen(each->part) + 1);
    sum = add_to_sum(sum, each->name, strlen(each->name) + 1);
    sum = add_to_sum(sum, each->format, strlen(each->format) + 1);
    sum = add_to_sum(sum, &each->part_bytes, sizeof each->part_bytes);
    sum = add_to_sum(sum, &each->offset, sizeof each->offset);
  }
  return sum;
}
