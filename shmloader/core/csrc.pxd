# Declarations of csrc/, as far as the parts of _core.pyx use them.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "<stdbool.h>":
    ctypedef bint c_bool "bool"


cdef extern from "platform.h" nogil:
    int64_t platform_now_ns()
    c_bool platform_has_futex()
    struct platform_file:
        pass

    platform_file platform_file_of(int fd)
    c_bool platform_is_file(int fd, platform_file file)
    void platform_close(int fd, platform_file file)
    int64_t platform_reserve(int fd, uint64_t offset, uint64_t bytes, uint64_t page_bytes)
    void platform_leave_undumped(void *start, size_t bytes)
    void platform_populate(void *start, size_t bytes, c_bool is_written)
    void *platform_map_shared(void *wish, size_t bytes, int protection, int fd)
    void STEP(const char *name)
    void STEP_COPY(const char *name, void *to, const void *source, size_t bytes)


cdef extern from "policy.h" nogil:
    uint64_t POLICY_FEW_SPARES_PART
    uint64_t POLICY_FEW_SPARES_MIN
    uint64_t POLICY_GROWN_PART
    uint64_t POLICY_PIECE_MAX_BYTES
    uint64_t POLICY_RESERVE_BYTES
    uint64_t POLICY_PRIVATE_BYTES
    uint64_t POLICY_SHARES_EACH
    uint64_t POLICY_MOVED_PART
    uint64_t POLICY_MOVED_OF_LAST_PART
    uint64_t POLICY_SHARED_BYTES
    uint64_t POLICY_LOOK_FROM_BYTES
    uint64_t POLICY_LOOK_NS
    uint64_t POLICY_CHILDREN_SELDOM_NS
    uint64_t POLICY_CHILDREN_OFTEN_NS
    uint64_t POLICY_LOOK_AGAIN_NS
    uint64_t POLICY_HINT_NS


cdef extern from "pages.h" nogil:
    struct huge_supply:
        c_bool paused

    int64_t pages_add(int fd, uint8_t *base, uint64_t offset, uint64_t bytes, uint64_t page_bytes,
                      huge_supply *supply)


cdef extern from "words.h" nogil:
    uint64_t words_load(const void *start)
    void words_read(void *to, const void *start, size_t bytes)
    void STEP_WORDS(const char *name, void *to, const void *source, size_t bytes)


cdef extern from "copy.h" nogil:
    void copy_bytes(void *to, const void *source, size_t bytes, uint64_t batch_bytes)
    void copy_plain(void *to, const void *source, size_t bytes)
    void copy_gather(void *to, const void *const *sources, size_t count, size_t piece_bytes)


cdef extern from "doorbell.h" nogil:
    struct doorbell:
        pass

    void doorbell_ring(doorbell *bell)
    uint32_t doorbell_count(const doorbell *bell)
    uint32_t doorbell_arm(doorbell *bell)
    int doorbell_park(doorbell *bell, uint32_t armed, int64_t timeout_ns)
    void doorbell_disarm(doorbell *bell)


cdef extern from "looks.h" nogil:
    struct looks:
        uint64_t found_count
        uint64_t vain_count
        uint64_t ns

    void looks_allow(uint32_t *may_look, c_bool may)
    c_bool looks_try(looks *self, const uint32_t *may_look, doorbell *bell, uint32_t seen)


cdef extern from "extent.h" nogil:
    struct extent:
        pass

    extent *extent_enter(const void *start, uint64_t bytes)
    c_bool extent_holds(const void *address)


cdef extern from "lease.h" nogil:
    struct lease:
        pass

    void lease_take(lease *self)
    void lease_drop(lease *self)
    uint32_t lease_aliases(lease *self)
    lease *lease_block_new(uint64_t bytes)
    void *lease_block_start(lease *self)

    struct mapped:
        lease lease
        uint8_t *base
        uint64_t bytes
        c_bool is_writable

    int lease_map_file(int fd, uint64_t bytes, mapped **made)


cdef extern from "times.h" nogil:
    enum:
        VIEW_MAGIC
        VIEW_LABEL_BYTES
        VIEW_ABOUT_BYTES
        VIEW_STARTING
        VIEW_UNKNOWN
        VIEW_UNKNOWN_INDEX
        VIEW_WHOLE_BATCH
        LOG_RECORDS
        SEGMENT_LIVE
        SEGMENT_IDLE
        SEGMENT_CLOSED
        WORKER_ABSENT
        WORKER_IDLE
        WORKER_FETCHING
        WORKER_COLLATING
        WORKER_BLOCKED

    struct nameplate:
        uint64_t owner_pid
        uint64_t owner_start
        uint64_t loader
        char *label
        char *about

    struct trainer_view:
        pass

    struct worker_view:
        uint64_t sequence
        uint32_t state
        uint32_t position
        uint32_t samples
        uint64_t pid

    struct slot_times:
        uint64_t fetched_ns

    struct log_record:
        pass

    c_bool view_read(void *words, uint64_t *sequence, size_t bytes)


cdef extern from "fields.h" nogil:
    struct view_field:
        const char *part
        size_t part_bytes
        const char *name
        const char *format
        size_t offset

    const view_field *view_fields
    size_t view_fields_count
    uint32_t view_layout_sum()


cdef extern from "log.h" nogil:
    struct histogram:
        uint64_t sum_ns
        uint64_t longest_ns
        uint64_t *buckets

    struct log:
        trainer_view view
        log_record draft
        uint32_t draft_slot
        c_bool has_draft
        histogram nexts
        histogram steps

    uint32_t HISTOGRAM_BUCKETS
    uint64_t histogram_middle(uint32_t bucket)
    void log_name(ledger *self, const nameplate *known)
    void log_segment(ledger *self, int state)
    void log_begin(ledger *self, uint64_t epoch, uint64_t length, uint64_t resumed_at,
                   uint64_t begun_ns)
    void log_end(ledger *self)
    void log_ask(ledger *self)
    void log_take(ledger *self, uint32_t slot, uint64_t spill)
    void log_return(ledger *self)
    void log_parked(ledger *self, uint64_t ns)


cdef extern from "segment.h" nogil:
    enum:
        VERB_PLACE
        VERB_RESUME
        VERB_QUIT
        VERB_READY
        VERB_WANT
        VERB_RESUMED
        REQUEST_INDICES
        REQUEST_INDEX
        REQUEST_NONES
        REQUEST_PICKLED
        REQUEST_RECORD
        ANSWER_BATCH
        ANSWER_ERROR
        ANSWER_END
        ANSWER_NOTHING
        ANSWER_KEPT
        ORDER_COPY_IN
        ORDER_GUARDED
        ORDER_NUMBERED
        ORDER_NUMBERS_BYTES
        CACHE_LINE
        SEGMENT_WORKERS_MAX
        SLOTS_MAX
        HUGE_BYTES

    struct slot_order:
        uint64_t ticket
        uint64_t request_bytes
        uint64_t pages_bytes
        uint64_t expect_bytes
        uint32_t request_kind
        uint32_t mode
        uint64_t grant_bytes

    struct slot_answer:
        uint64_t ticket
        uint16_t kind
        uint16_t flags
        uint32_t snapshot_bytes
        uint64_t payload_bytes
        uint64_t layout_offset
        uint64_t layout_bytes
        uint64_t pages_bytes
        uint64_t want_bytes
        uint64_t pickled_bytes

    struct slot_header:
        slot_order order
        slot_answer answer

    struct worker_resume:
        uint64_t seed
        uint64_t has_seed

    struct worker_clock:
        pass

    struct worker_block:
        doorbell doorbell
        worker_resume resume
        worker_clock clock
        worker_view view

    struct control_block:
        doorbell doorbell
        uint32_t may_look

    struct geometry:
        uint32_t workers
        uint32_t ranges
        uint32_t page_bytes
        uint64_t range_bytes
        uint64_t table_end
        uint64_t slots_offset
        uint64_t total_bytes

    uint64_t order_grant(slot_order *order)
    uint64_t order_refused(slot_order *order)
    uint64_t answer_end(const slot_answer *answer)
    int geometry_init(geometry *self, uint32_t workers, uint32_t ranges, uint64_t range_bytes)
    uint64_t round_up(uint64_t bytes, uint64_t unit)
    control_block *segment_control(uint8_t *base)
    uint32_t segment_sharers(uint8_t *base, const geometry *geometry)
    worker_block *segment_worker(uint8_t *base, const geometry *geometry, uint32_t worker)
    slot_header *segment_header(uint8_t *base, const geometry *geometry, uint32_t slot)
    uint64_t segment_slot_offset(const geometry *geometry, uint32_t slot)
    uint32_t cell_make(uint32_t verb, uint32_t slot)
    uint32_t cell_verb(uint32_t cell)
    uint32_t cell_slot(uint32_t cell)
    log_record *segment_record(uint8_t *base, const geometry *geometry, uint32_t place)
    void clock_add_starved(worker_clock *clock, uint64_t ns, uint64_t found, uint64_t vain)


cdef extern from "ring.h" nogil:
    struct ring:
        pass

    struct ring_writer:
        pass

    struct ring_reader:
        pass

    void ring_init(ring *self, uint32_t start_pos)
    ring_writer ring_open_writer(ring *self, uint32_t capacity)
    ring_reader ring_open_reader(ring *self, uint32_t capacity)
    c_bool ring_push(ring_writer *self, uint32_t value)
    c_bool ring_pop(ring_reader *self, uint32_t *value)
    c_bool ring_has_value(ring_reader *self)
    c_bool ring_is_overrun(const ring_reader *self)
    uint32_t ring_length(ring_reader *self)
    uint32_t ring_backlog(ring_writer *self)


cdef extern from "feed.h" nogil:
    enum:
        FEED_PLACES
        FEED_CAPACITY
        FEED_BATCH
        FEED_BEGIN
        FEED_FAILED
        FEED_RETURN
        FEED_SKIP
        SLOT_MASK

    struct feed_entry:
        uint64_t segment
        uint64_t offset
        slot_answer answer

    struct feed_block:
        doorbell doorbell
        uint32_t may_look

    ring *feed_news_ring(feed_block *block)
    ring *feed_reply_ring(feed_block *block)
    feed_entry *feed_entry_at(feed_block *block, uint32_t place)
    uint64_t feed_bytes()
    int64_t feed_epoch(uint64_t newest, uint32_t low)
    void feed_give_up(feed_block *block)
    c_bool feed_is_given_up(feed_block *block)


cdef extern from "demand.h" nogil:
    struct demand:
        pass

    uint64_t demand_peak(const demand *self)


cdef extern from "ledger.h" nogil:
    enum:
        SLOT_PLACED
        SLOT_READY
        SLOT_LEASED
        SLOT_RETIRED
        SLOT_FORKED

    struct ledger_entry:
        uint32_t state
        uint32_t worker
        uint64_t ticket
        uint64_t grant_bytes
        uint64_t pages_bytes
        uint64_t record_bytes
        uint64_t want_bytes
        uint64_t short_bytes
        slot_answer answer
        uint64_t leased_ns
        c_bool is_for_devices
        lease lease

    struct fences:
        uint32_t locked_slots

    struct ledger:
        int fd
        uint8_t *base
        geometry geometry
        ledger_entry *entries
        ring_writer *task_rings
        ring_reader *ready_rings
        uint32_t *free_slots
        uint32_t free_count
        uint32_t counts[8]
        uint32_t wanting
        uint32_t shorts
        uint64_t ring_bytes
        uint64_t expect_bytes
        uint64_t existing_bytes
        uint64_t slack_bytes
        demand demand
        log log
        fences fences
        looks looks

    struct news:
        uint32_t worker
        uint32_t verb
        uint32_t slot
        const char *broken

    ledger *ledger_new(uint8_t *base, int fd, const geometry *geometry, uint32_t slots,
                       uint64_t ring_bytes)
    void ledger_unref(ledger *self)
    struct record_writer:
        void (*write)(const void *record, uint8_t *to, uint64_t bytes) noexcept
        const void *record
    int64_t ledger_fill(ledger *self, uint64_t ticket, const slot_answer *answer,
                        const uint8_t *source, int fd, uint64_t offset)
    int64_t ledger_place(ledger *self, uint32_t worker, uint64_t ticket, int kind,
                         const void *request, uint64_t bytes, uint32_t mode)
    c_bool ledger_tell(ledger *self, uint32_t worker, int verb)
    c_bool ledger_receive(ledger *self, news *heard)
    uint8_t *ledger_open(ledger *self, uint32_t slot)
    lease *ledger_lease(ledger *self, uint32_t slot, uint32_t aliases)
    c_bool ledger_free(ledger *self, uint32_t slot)
    void ledger_reclaim(ledger *self, uint32_t worker)
    void ledger_restart(ledger *self)
    void ledger_rest(ledger *self, c_bool is_final)
    void ledger_rest_leased(ledger *self, c_bool is_final)
    c_bool ledger_grow(ledger *self)
    void ledger_close(ledger *self)
    void ledger_stop(ledger *self, c_bool stopping)
    void ledger_collect(ledger *self)
    c_bool ledger_grant(ledger *self, uint32_t slot, uint64_t grant_bytes)
    c_bool ledger_refuse(ledger *self, uint32_t slot)
    c_bool ledger_has_news(ledger *self)
    uint64_t ledger_oldest(const ledger *self)
    c_bool ledger_is_copy(const ledger *self)


cdef extern from "seats.h" nogil:
    uint32_t seats_load(ledger *self, uint32_t worker)
    c_bool seats_is_taken(ledger *self, uint32_t worker)
    void seats_open(ledger *self, uint32_t worker, c_bool is_open)
    int64_t seats_freest(ledger *self, uint32_t most)
    void seats_share(ledger *self, uint32_t workers)


cdef extern from "cache.h" nogil:
    enum:
        CACHE_COUNTS

    enum cache_found:
        CACHE_MISS
        CACHE_BROKEN

    struct cache_shape:
        uint64_t indices
        uint64_t max_bytes
        uint64_t page_bytes
        uint64_t total_bytes

    struct cache:
        int fd
        uint8_t *base
        cache_shape shape
        uint64_t cursor
        uint64_t end

    struct cache_head:
        uint64_t index
        uint64_t payload_bytes
        uint32_t layout_bytes
        uint32_t checksum

    struct cache_record:
        cache_head head
        const uint8_t *layout
        const uint8_t *payload

    c_bool cache_measure(cache_shape *shape)
    void cache_open(cache *self, uint8_t *base, int fd, const cache_shape *shape)
    int cache_make(cache *self)
    cache_found cache_look(const cache *self, uint64_t index, cache_record *found)
    c_bool cache_is_absent(const cache *self, uint64_t index)
    uint64_t cache_record_bytes(const cache_head *head)
    uint64_t cache_place(cache *self, uint64_t bytes)
    uint64_t cache_wanted(const cache *self, uint64_t bytes)
    uint64_t cache_take(const cache *self, uint64_t bytes, uint64_t *at)
    int cache_add_pages(const cache *self, uint64_t at, uint64_t length)
    uint64_t cache_hold(cache *self, uint64_t at, uint64_t length, uint64_t bytes)
    void cache_give_up(cache *self, uint64_t at, uint64_t bytes)
    c_bool cache_publish(const cache *self, uint64_t index, uint64_t at)
    void cache_refuse(const cache *self, uint64_t index)
    void cache_count(const cache *self, uint64_t hits, uint64_t misses, uint64_t entries,
                     uint64_t bytes, uint64_t refused)
    void cache_total(const cache *self, uint64_t *total)
    uint64_t cache_taken(const cache *self)
    c_bool cache_is_closed(const cache *self)
    void cache_close(cache *self)
    void cache_unmap(cache *self)


cdef extern from "generation.h" nogil:
    uint64_t generation_now()


cdef extern from "children.h" nogil:
    void children_watch(ledger *self)
    void children_forget(ledger *self)
    void children_before_fork()
    void children_after_fork()
    void children_in_child()
    void children_look()
    void children_look_now()


cdef extern from "budget.h" nogil:
    uint32_t budget_idle(const ledger *self)
    int budget_lack(const ledger *self, uint32_t slot, uint32_t reserve, c_bool has_grown)
    uint64_t budget_room(ledger *self, uint32_t slot, uint64_t want_bytes)


cdef extern from "driver.h" nogil:
    int driver_open(const char *library)
    c_bool driver_is_usable()
    c_bool driver_met_capture()
    void driver_capture_begins()
    void driver_capture_ends()
    c_bool driver_is_capturing()
    enum:
        DRIVER_RELAXED
    int driver_exchange_mode(int mode)


cdef extern from "pinned.h" nogil:
    struct pinned_range:
        uint64_t bytes

    uint64_t pinned_total_bytes()
    int pinned_begin(ledger *self, uint32_t slot, uint64_t bytes, pinned_range *range)
    int pinned_lock(pinned_range *range)
    void pinned_end(ledger *self, uint32_t slot, const pinned_range *range, int error)
    uint64_t pinned_bytes(ledger *self, uint32_t slot)
    int pinned_look(ledger *self)
    c_bool pinned_waits(const ledger *self)
    enum pinned_unlocked:
        PINNED_UNUSED
        PINNED_FREE
        PINNED_LEFT
    uint32_t pinned_unlock(ledger *self, pinned_unlocked which)


cdef extern from "desk.h" nogil:
    struct desk:
        uint8_t *base
        int fd
        geometry geometry
        uint32_t worker
        worker_block *block
        worker_view view
        slot_times times
        ring_reader task_ring
        ring_writer ready_ring
        uint64_t left_out
        looks looks

    void desk_init(desk *self, uint8_t *base, int fd, const geometry *geometry, uint32_t worker)
    c_bool desk_take(desk *self, uint32_t *cell)
    const char *desk_accept(desk *self, uint32_t slot, slot_order *order)
    c_bool desk_stopping(desk *self)
    void desk_show(desk *self, int state, uint64_t now)
    void desk_begin_batch(desk *self, uint64_t ticket, uint64_t taken_ns)
    void desk_begin_sample(desk *self, uint32_t position, uint32_t samples, int64_t index)
    void desk_begin_collating(desk *self, uint64_t blocked_ns)
    void desk_end_batch(desk *self, uint32_t slot, uint64_t blocked_ns, uint64_t bytes)
    c_bool desk_tell(desk *self, int verb, uint32_t slot)


cdef extern from "debug/guard.h" nogil:
    int guard_start(ledger *self)


cdef extern from "debug/canary.h" nogil:
    uint64_t canary_bytes(uint64_t end, uint64_t pages_bytes)
    void canary_write(uint8_t *to, uint64_t bytes, uint64_t ticket, uint32_t slot)
    uint64_t canary_damage(const uint8_t *start, uint64_t bytes, uint64_t ticket, uint32_t slot)


cdef extern from "dlpack.h" nogil:
    enum:
        DLPACK_MAJOR_VERSION
        kDLCPU
        kDLInt
        kDLUInt
        kDLFloat
        kDLComplex
        kDLBool

    ctypedef struct DLPackVersion:
        uint32_t major

    ctypedef struct DLDevice:
        int32_t device_type

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct DLTensor:
        void *data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

    ctypedef struct DLManagedTensorVersioned:
        void (*deleter)(DLManagedTensorVersioned *self) noexcept nogil

    ctypedef struct DLPackExchangeAPIHeader:
        DLPackVersion version
        DLPackExchangeAPIHeader *prev_api

    ctypedef struct DLPackExchangeAPI:
        DLPackExchangeAPIHeader header
        int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *, void **) except -1
        int (*dltensor_from_py_object_no_sync)(void *, DLTensor *) noexcept


cdef extern from "watch.h" nogil:
    int watch_start(int pid)
    int watch_limit(int ms)
    void watch_lift_limit()


cdef extern from "alias.h" nogil:
    DLManagedTensorVersioned *alias_new(lease *lease, void *data, DLDataType dtype, int32_t ndim,
                                        const int64_t *shape, const int64_t *strides)
    void alias_watch(DLManagedTensorVersioned *managed, c_bool *deleted)
