# The nodes of a layout: encode.pyx writes them, decode.pyx reads them.

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
    TAG_LIST         # count, nodes; memo before
    TAG_TUPLE        # count, nodes
    TAG_DICT         # count, keys and values; memo before
    TAG_TENSOR       # code, bits, dims, offset, shape, strides; memo
    TAG_ARRAY        # type, order, dims, offset, shape; memo
    TAG_SCALAR       # type, bytes
    TAG_AGAIN        # number: the object with that number
    TAG_NAMED        # bytes: the pickle of a class, function or dtype by its name
    TAG_REDUCED      # callable, args; memo; parts of its state as in __reduce_ex__
    TAG_PICKLED      # count of buffers, checksum, then offset and length of each part; memo
