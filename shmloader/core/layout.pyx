# The nodes of a layout: encode.pyx writes them, decode.pyx reads them.
#
# A node is a tag, what follows from the tag, and then the nodes inside it. So a flat loop can go
# from tag to tag without building anything. A number counts the objects that can be met twice, in
# the order of their tags; both walks count, and the decoder refuses a number that is not its own.
#
# A record is written more tightly than a batch, because it stays: an object's own number is not
# written, and a count, a length or an int takes as few bytes as it needs (numerals.pyx). What is
# patched in later, and the shapes of tensors and arrays, take 8 bytes in both.

# All walks, that of the collating too, go down a level with each container, on the stack of C and
# not of Python: a batch that could be written can be read however deep in Python the trainer is.

cdef enum:
    # As deep as Python's own C code goes by default (its recursion limit); at most 0.5 MB of stack.
    DEPTH = 1000

cdef enum Tag:
    TAG_NONE
    TAG_TRUE
    TAG_FALSE
    TAG_INT          # i64
    TAG_BIG_INT      # bytes, little-endian, signed
    TAG_FLOAT        # f64
    TAG_COMPLEX      # two f64
    TAG_STR          # bytes, UTF-8 with surrogates passed
    TAG_BYTES        # bytes
    TAG_LIST         # number, count | nodes
    TAG_TUPLE        # number, count | nodes
    TAG_DICT         # number, count | keys and values
    TAG_TENSOR       # number, code, bits, dims, offset, shape, strides
    TAG_ARRAY        # number, order, dims, offset, shape | type
    TAG_SCALAR       # number | type, bytes
    TAG_AGAIN        # number of the object
    TAG_NAMED        # number, bytes: module and qualified name of a class or function, checksum
    TAG_REDUCED      # number | callable or none for cls.__new__, args, state, items, pairs
    TAG_PICKLED      # number, count of leaves | those, the pickle
    TAG_PICKLE       # count of buffers, checksum, length and offset of the pickle and of each
    TAG_STORAGE      # number, length, offset
    TAG_DTYPE        # number, bytes: the pickle of an array's type, checksum
    TAG_STRETCHES    # count, start and end of each; at most once, before all nodes
    TAG_NUMBERED_STR     # number, bytes, as those of TAG_STR
    TAG_NUMBERED_BYTES   # number, bytes
    TAG_INNER_TENSOR     # as a tensor, of a pickle, in none of the batch's own containers
    # In records alone:
    TAG_KEYED        # number, count | of each pair the key's u16, or 0xFFFF and its node; the value
    TAG_FLOAT_LIST   # number, count, f64 each
    TAG_FLOAT_TUPLE
    TAG_INT_LIST     # number, count, each as an int's
    TAG_INT_TUPLE
    TAG_LARGE_BYTES  # number, length, offset
