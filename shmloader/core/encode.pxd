# A batch into a slot.

cdef int encode(SlotMemory memory, batch, Pickler) except -1
