# Samples side by side into a slot; None: torch has to collate them.

cdef bint is_row(samples)
cdef object gather_tensors(SlotMemory memory, samples)
cdef object gather_arrays(SlotMemory memory, samples)
cdef object gather_ints(SlotMemory memory, samples)
cdef object gather_floats(SlotMemory memory, samples)
cdef object collate_samples(SlotMemory memory, samples, dict functions, original)
