# The faces of the parts: what each offers to those that are included after it in _core.pyx.

include "torch_fields.pxd"
include "tensors.pxd"
include "mapping.pxd"
include "requests.pxd"
include "slot_memory.pxd"
include "gather.pxd"
include "layout.pxd"
include "encode.pxd"
include "decode.pxd"
include "ledger.pxd"
include "desk.pxd"
