# What describes the type of an array.

cimport numpy as cnp
from libc.stdint cimport int64_t

cdef bint is_number_type(int64_t number) noexcept
cdef bint is_described(cnp.dtype dtype)
cdef bytes pickle_of_type(cnp.dtype dtype)
cdef object type_of_pickle(bytes text)
