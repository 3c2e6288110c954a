# A batch into a slot.

from shmloader.core.csrc cimport slot_answer

cdef int encode(SlotMemory memory, slot_answer *answer, batch, dumps) except -1
