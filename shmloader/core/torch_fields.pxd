# Whether autograd knows a tensor, and whether its values are to be negated.

cdef bint needs_grad(object tensor) except -1
cdef bint is_negated(object tensor) except -1
