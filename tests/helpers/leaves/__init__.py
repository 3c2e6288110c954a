"""
The table of leaves: every kind of leaf that users ask for, how it is made, and what is promised.

    for leaf in LEAVES: leaf.make()

`python -m bench leaves` times the rows, `tests/torch/test_leaf_table.py` holds them to `in_slot`.
A leaf's pointers, and if two are equal, are asked of `places`.
"""

from tests.helpers.leaves import arrays, containers, frames, tensors
from tests.helpers.leaves.leaf import Leaf as Leaf

LEAVES = {
    leaf.name: leaf for module in (tensors, arrays, frames, containers) for leaf in module.LEAVES
}
