/* SPDX-License-Identifier: BSD-3-Clause */

/*
 * A ring (csrc/ring.h) of CELLS cells between one writer and one reader: VALUES values go through,
 * in order, each once. Positions wrap at POSITIONS instead of 2^32 and start just below that.
 *
 * Memory. Each stored word has a queue of its own, so that stores to different words reach memory
 * in any order, which is weaker than x86. A release store enters its queue only when all stores
 * before it have reached memory. Each process knows its own position from private memory, as
 * ring_writer and ring_reader do. Loads happen in program order; for what a weaker order of loads
 * may do there are the mutations READ_POS_FIRST and CELL_READ_EARLY.
 *
 * Death. The writer may die DEATHS times, between any two steps. The reader is then the trainer: it
 * drains the ring, empties it (open_rings in ledger.c), and another writer sits down, which goes on
 * behind what was published. Nothing is lost and nothing comes twice.
 */

#ifndef CELLS
#define CELLS 2 /* 1 or 2 */
#endif
#ifndef VALUES
#define VALUES 12
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define POSITIONS 8 /* a power of two above 2 * CELLS, so that a difference tells full from empty */
#define START 6
#define DIFFERENCE(a, b) (((a) + POSITIONS - (b)) % POSITIONS)

/* What stands in memory. */
byte write_pos = START;
byte read_pos = START;
byte cells[2];

/* Stores on their way there. */
chan write_pos_stores = [CELLS] of { byte };
chan read_pos_stores = [CELLS] of { byte };
chan cell_stores[2] = [1] of { byte };

#define CELLS_STORED (len(cell_stores[0]) == 0 && len(cell_stores[1]) == 0)
#define ALL_STORED (CELLS_STORED && len(write_pos_stores) == 0 && len(read_pos_stores) == 0)

/* Values are 1, 2, 3 and so on: which were published by a store to write_pos, which were popped. */
byte published;
byte received;

bool killed; /* the next thing that the writer does is to be gone */
bool gone;   /* reaped: its stores reach memory, and there are no more of them */
byte deaths;

#ifdef REOPEN_UNDRAINED
#define MAY_REOPEN (gone && ALL_STORED)
#else
#define MAY_REOPEN (gone && ALL_STORED && write_pos == seen)
#endif

/* Memory takes stores one by one, each word's in their order. */
active proctype memory() {
  byte stored;
end:
  do
  :: atomic {
       write_pos_stores?stored -> write_pos = stored;
       assert(DIFFERENCE(write_pos, read_pos) <= CELLS); /* the key invariant */
       stored = 0
     }
  :: atomic { read_pos_stores?stored -> read_pos = stored; stored = 0 }
  :: atomic { cell_stores[0]?stored -> cells[0] = stored; stored = 0 }
  :: atomic { cell_stores[1]?stored -> cells[1] = stored; stored = 0 }
  od
}

active proctype killer() {
end:
  do
  :: atomic { deaths < DEATHS && published < VALUES && !killed && !gone -> deaths++; killed = true }
  od
}

active proctype writer() {
  byte mine; /* ring_writer.write_pos */
  byte seen; /* ring_writer.read_pos_seen */
sit_down:
  atomic { !gone -> mine = write_pos; seen = read_pos } /* ring_open_writer */
  do
  :: published < VALUES ->
     /* ring_push: full by what was seen, so look; while it stays full the caller tries again. */
     if
#ifdef COMPARE_POSITIONS
     :: mine > seen + CELLS - 1 -> seen != read_pos -> seen = read_pos
     :: mine <= seen + CELLS - 1 -> skip
#else
#ifdef OFF_BY_ONE
     :: DIFFERENCE(mine, seen) > CELLS -> seen != read_pos -> seen = read_pos
     :: DIFFERENCE(mine, seen) <= CELLS -> skip
#else
     :: DIFFERENCE(mine, seen) > CELLS - 1 ->
#ifdef NO_LOOK_WHEN_FULL
        false
#endif
        atomic { seen != read_pos -> seen = read_pos } /* emptied-A */
     :: DIFFERENCE(mine, seen) <= CELLS - 1 -> skip
#endif
#endif
     fi;
     cell_stores[mine % CELLS]!published + 1;
     mine = (mine + 1) % POSITIONS;
     atomic { /* filled-R */
#ifndef RELAXED_WRITE_POS
       CELLS_STORED ->
#endif
       write_pos_stores!mine;
       published++
     }
  :: published == VALUES -> goto done
  od unless { atomic { killed -> killed = false; gone = true; goto sit_down } };
done:
  skip
}

/* The trainer: pops until all values came. */
active proctype reader() {
  byte mine = START; /* ring_reader.read_pos */
  byte seen = START; /* ring_reader.write_pos_seen */
  byte value;
pop:
  do
  :: received == VALUES -> goto done
  :: received < VALUES && mine != seen -> break
  :: received < VALUES && mine == seen -> /* ring_has_value: empty by what was seen, so look */
#ifdef CELL_READ_EARLY
     value = cells[mine % CELLS];
#endif
     if
#ifndef NO_LOOK_WHEN_EMPTY
     :: atomic { write_pos != seen -> seen = write_pos } /* filled-A */
#endif
     :: atomic { MAY_REOPEN -> goto reopen }
     fi
  od;
#ifdef READ_POS_FIRST
  read_pos_stores!(mine + 1) % POSITIONS;
#endif
#ifndef CELL_READ_EARLY
  value = cells[mine % CELLS]; /* ring_pop */
#endif
  atomic { assert(value == received + 1); received++; value = 0 }
  mine = (mine + 1) % POSITIONS;
#ifndef READ_POS_FIRST
  read_pos_stores!mine; /* emptied-R: only now, after the cell was read */
#endif
  goto pop;

reopen: /* ledger_reclaim, open_rings */
  atomic {
    write_pos = 0; /* ring_init */
    read_pos = 0;
#ifndef READER_KEEPS_END
    mine = 0; /* ring_open_reader */
    seen = 0;
#endif
    gone = false /* another writer is started */
  }
  goto pop;

done:
  skip
}
