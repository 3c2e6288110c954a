/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * Children that are forked while batches are held.
 *
 * A child has the same views of the slots that are LEASED at the fork, and the trainer cannot see
 * when it drops them. So these slots are not used again before the child is gone, no matter what
 * it was forked for: a worker's dataset may hold a batch too.
 *
 * A child is known by a mapping. A witness is a page of a file of its own that is mapped, shared,
 * while the fork happens. The child has that mapping for as long as it lives, also when it closes
 * all descriptors, and hands it on to every process that it forks in turn; it ends with the last of
 * them, or when they execute another program. While any process maps the page, the kernel refuses
 * to seal the file against writing (EBUSY). So one call tells if they are gone.
 *
 * Key invariant: a slot that some child may read is LEASED, or counts its witnesses in
 * entry.children, or will be RETIRED. Slots are marked before the fork, and a lease that begins
 * before the fork is over marks its ledger once more; until then no witness is unmapped.
 *
 * Forks share a witness as long as none of its slots is waited for: the start of many workers is
 * one page. The first look that has a reason unmaps it here, and the next fork opens another one.
 *
 * Failure. If there is no descriptor or memory left, or no such file on this system, then nothing
 * would tell of the child's end: what is leased is retired when it is released.
 *
 * Nothing here runs Python, so no interrupt can separate a fork from its marks.
 */

#include "children.h"

#include <stdlib.h>

#include "generation.h"
#include "pinned.h"

/* The slots of one ledger that a witness stands for. */
struct mark {
  struct mark *next;
  struct ledger *ledger;
  uint8_t slots[]; /* one for each range */
};

struct witness {
  struct witness *next;
  int fd;
  struct platform_file file; /* that fd meant when it was opened */
  void *page; /* NULL: unmapped here, so no other fork shares it */
  struct mark *marks;
};

static struct ledger *watched; /* by next_watched */
static struct witness *witnesses; /* the newest first; only that one may be mapped here */
static uint64_t owner; /* the process to which all of these belong */

uint32_t children_forking;

static void unmap(struct witness *witness) {
  if (witness->page != NULL) platform_witness_unmap(witness->page);
  witness->page = NULL;
}

static void free_witness(struct witness *witness) {
  for (struct mark *mark = witness->marks; mark != NULL;) {
    struct mark *next = mark->next;
    free(mark);
    mark = next;
  }
  free(witness);
}

/* In a child nothing of this is left. Its parent's witnesses stay mapped: they are its own sign. */
static void start_anew(bool closes) {
  while (witnesses != NULL) {
    struct witness *next = witnesses->next;
    if (closes) platform_close(witnesses->fd, witnesses->file);
    free_witness(witnesses);
    witnesses = next;
  }
  for (; watched != NULL; watched = watched->next_watched) pinned_forget(watched);
  children_forking = 0;
  owner = generation_now();
}

/* After a fork without our hook the descriptors may be closed already, and mean other files. */
static void check_owner(void) {
  if (owner != generation_now()) start_anew(false);
}

void children_watch(struct ledger *ledger) {
  check_owner();
  ledger->next_watched = watched;
  watched = ledger;
}

static void unlink_marks(struct witness *witness, const struct ledger *ledger) {
  for (struct mark **link = &witness->marks; *link != NULL;) {
    struct mark *mark = *link;
    if (mark->ledger != ledger) {
      link = &mark->next;
      continue;
    }
    *link = mark->next;
    free(mark);
  }
}

static void end_witness(struct witness **link) {
  struct witness *witness = *link;
  *link = witness->next;
  unmap(witness);
  platform_close(witness->fd, witness->file);
  free_witness(witness);
}

void children_forget(struct ledger *ledger) {
  check_owner();
  for (struct ledger **link = &watched; *link != NULL; link = &(*link)->next_watched) {
    if (*link != ledger) continue;
    *link = ledger->next_watched;
    break;
  }
  for (struct witness **link = &witnesses; *link != NULL;) {
    unlink_marks(*link, ledger);
    if ((*link)->marks == NULL) end_witness(link);
    else link = &(*link)->next;
  }
}

/* The witness that is mapped here; a new one if there is none. NULL: none can be had. */
static struct witness *open_witness(void) {
  if (witnesses != NULL && witnesses->page != NULL) return witnesses;
  struct witness *witness = calloc(1, sizeof *witness);
  if (witness == NULL) return NULL;
  witness->fd = platform_witness_map(&witness->page);
  if (witness->fd < 0) {
    free(witness);
    return NULL;
  }
  witness->file = platform_file_of(witness->fd);
  witness->next = witnesses;
  witnesses = witness;
  return witness;
}

static struct mark *mark_in(struct witness *witness, struct ledger *ledger) {
  for (struct mark *mark = witness->marks; mark != NULL; mark = mark->next) {
    if (mark->ledger == ledger) return mark;
  }
  struct mark *mark = calloc(1, sizeof *mark + ledger->geometry.ranges);
  if (mark == NULL) return NULL;
  mark->ledger = ledger;
  mark->next = witness->marks;
  witness->marks = mark;
  return mark;
}

static void mark_leased(struct ledger *ledger) {
  if (ledger->counts[SLOT_LEASED] == 0) return;
  struct witness *witness = open_witness();
  struct mark *mark = witness == NULL ? NULL : mark_in(witness, ledger);
  if (mark == NULL) ledger_retire_leased(ledger);
  else ledger_mark_child(ledger, mark->slots);
}

void children_mark(void) {
  check_owner();
  for (struct ledger *ledger = watched; ledger != NULL; ledger = ledger->next_watched) {
    mark_leased(ledger);
  }
}

void children_before_fork(void) {
  check_owner();
  for (struct ledger *ledger = watched; ledger != NULL; ledger = ledger->next_watched) {
    ledger_collect(ledger);
  }
  children_look();
  ledger_note_fork();
  children_forking++;
  children_mark();
}

void children_after_fork(void) {
  check_owner();
  if (children_forking > 0) children_forking--;
}

void children_in_child(void) { start_anew(true); }

static bool any_waits(void) {
  for (const struct ledger *ledger = watched; ledger != NULL; ledger = ledger->next_watched) {
    if (ledger->counts[SLOT_FORKED] > 0) return true;
  }
  return false;
}

void children_look(void) {
  check_owner();
  if (any_waits()) children_look_now();
}

void children_look_now(void) {
  check_owner();
  if (children_forking > 0) return;
  for (struct witness **link = &witnesses; *link != NULL;) {
    struct witness *witness = *link;
    unmap(witness);
    if (!platform_witness_is_alone(witness->fd)) {
      link = &witness->next;
      continue;
    }
    for (struct mark *mark = witness->marks; mark != NULL; mark = mark->next) {
      ledger_unmark_child(mark->ledger, mark->slots);
    }
    end_witness(link);
  }
}
