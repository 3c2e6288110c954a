# A batch into a slot.

cdef int encode(SlotMemory memory, batch, dumps) except -1
