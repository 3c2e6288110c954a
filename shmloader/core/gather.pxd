# Samples side by side into a slot; None: torch has to collate them.

cdef bint is_row(samples)
cdef object gather_kind(SlotMemory memory, kind, samples)
cdef object collate_samples(SlotMemory memory, samples, dict functions, original)
