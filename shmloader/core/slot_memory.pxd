# The memory of the slot that a worker has in hand.

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shmloader.core.csrc cimport (
    DLDataType, desk, geometry, huge_supply, lease, mapped_pages, policy, slot_answer,
    slot_order,
)

cdef enum:
    SLICE_NS = 1000000000   # longest park of a worker before it looks again


@cython.final
@cython.internal
cdef class SlotMemory:
    cdef desk seat
    cdef policy policy         # the numbers by which pages come
    cdef Room room             # says how many pages may be added now, or why none
    cdef mapped_pages *mapped  # per range: what of it is in this process's page tables
    cdef huge_supply supply    # how well huge pages come by
    cdef uint64_t usual        # the length of the last batch here
    # The slot in hand.
    cdef uint64_t hinted       # length for which the trainer was told that memory is tight
    cdef uint64_t told         # length for which it was told that the file system is full
    cdef int64_t slot          # -1: none
    cdef char *start
    cdef uint64_t ticket
    cdef uint64_t grant
    cdef uint64_t pages
    cdef uint64_t expected
    cdef uint64_t cursor       # after what was handed out
    cdef bint copy_in
    cdef bint guarded          # a canary stands after what was handed out so far
    cdef uint64_t canary       # how long it is; 0: none
    cdef slot_answer draft     # what will be answered, until it is published
    cdef bint forked           # user code forked while memory of the slot was handed out
    cdef lease *count          # counts the aliases of this slot; NULL until memory is handed out
    cdef lease *source         # the lease of the last allocation
    cdef uint64_t blocked_ns   # waiting for pages
    cdef bint watches          # its samples are fetched one by one, through Samples

    cdef int sit(self, uint8_t *base, int fd, const geometry *shape, const policy *numbers,
                 uint32_t worker) except -1
    cdef slot_order *order(self) noexcept
    cdef slot_answer *answer(self) noexcept
    cdef int accept(self, uint32_t slot, slot_order *order) except -1
    cdef void hold(self, uint32_t slot, const slot_order *order) noexcept
    cdef uint64_t read_grant(self) except? 0
    cdef void leave(self) noexcept
    cdef void rewind(self) noexcept
    cdef bint close(self) noexcept

    cdef char *allocate(self, uint64_t length) except NULL
    cdef int count_aliases(self) except -1
    cdef object empty(self, shape, dtype)
    cdef object tensor_at(self, char *start, DLDataType dtype, int ndim, const int64_t *shape)
    cdef int64_t offset_of(self, const char *start, uint64_t length) noexcept
    cdef int need(self, uint64_t end) except -1

    cdef void put_canary(self, uint64_t end) noexcept
    cdef int check_canary(self) except -1

    cdef int add_pages(self, uint64_t end) except -1
    cdef int add_pieces(self, uint64_t wanted, uint64_t target) except -1
    cdef int hint(self, uint64_t wanted) except -1
    cdef uint64_t find_room(self, uint64_t wanted, uint64_t target) except? 0
    cdef uint64_t look_again(self, uint64_t wanted, uint64_t target) except 0
    cdef int reserve(self, uint64_t piece, uint64_t wanted) except -1
    cdef int wait_for_space(self, uint64_t wanted, int64_t error) except -1
    cdef int64_t begin_wait(self) noexcept
    cdef void end_wait(self, int64_t started) noexcept
    cdef int map_pages(self) except -1
    cdef void drop_pages(self, uint32_t slot) noexcept

    cdef int ask(self, uint64_t wanted) except -1
    cdef int tell_want(self, uint64_t wanted) except -1
    cdef int park(self, int64_t timeout_ns, uint64_t wanted=*) except -1
    cdef int tell(self, int verb, uint32_t slot) except -1
