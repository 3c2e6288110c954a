# A batch into a slot, or a record into a buffer.

cdef enum:
    NO_NAME = 0xFFFF   # instead of a key's number: the key itself follows


cdef int encode(SlotMemory memory, batch) except -1
