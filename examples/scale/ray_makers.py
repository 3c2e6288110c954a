"""
Actors that make samples, on the nodes of a Ray cluster that have the resource "maker".

    python examples/scale/ray_makers.py                       on nodes that it starts here
    python examples/scale/ray_makers.py --address HOST:6379   nodes of `ray start --address=... \\
                                                                  --resources='{"maker": 4}'`

`ray_fetch.py` has the loader whose workers ask them. They are found by their names, `maker-0` and
so on, for as long as this program runs: it ends with its standard input, and takes lines there.
"count" says how many samples each actor has made; "lose maker-0" ends that one for good, "crash
maker-0" kills its process, after which Ray starts it again, and "leave" ends a node that was
started here, with its actors and its object store.
"""

import argparse
import contextlib
import os
import signal
import sys

import numpy

NAMESPACE = "fetch"


class Maker:
    """Makes samples: (n, 3, side, side) uint8, and (n,) int64 labels."""

    def __init__(self, side):
        self.base = numpy.arange(3 * side * side, dtype=numpy.uint8).reshape(1, 3, side, side)
        self.made = 0

    def make(self, indices):
        # In earnest: read and decode. Random augmentation would get its seed from the index.
        labels = numpy.asarray(indices, dtype=numpy.int64)
        self.made += len(labels)
        return self.base + labels.astype(numpy.uint8)[:, None, None, None], labels

    def state(self):
        return os.getpid(), self.made


def names_of(count):
    return [f"maker-{number}" for number in range(count)]


@contextlib.contextmanager
def started(options):
    """Start a node for a trainer, and nodes for the actors; each has an object store of its own."""
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": options.store_mb * 1_000_000}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store}
    )
    try:
        for _ in range(options.nodes):
            share = -(-options.actors // options.nodes)
            cluster.add_node(num_cpus=2, resources={"maker": share}, **store)
        yield cluster
    finally:
        cluster.shutdown()


def main():
    import ray

    options = parsed()
    answers, sys.stdout = sys.stdout, sys.stderr  # so that what Ray prints is no answer
    with contextlib.ExitStack() as exits:
        cluster = None if options.address else exits.enter_context(started(options))
        address = options.address or cluster.address
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="WARNING")
        exits.callback(ray.shutdown)
        kind, placing = ray.remote(Maker), {"num_cpus": 0, "resources": {"maker": 1}}
        actors = {
            name: kind.options(name=name, max_restarts=-1, **placing).remote(options.side)
            for name in names_of(options.actors)
        }
        ray.get([actor.state.remote() for actor in actors.values()])  # they run
        print(address, file=answers, flush=True)
        for line in sys.stdin:
            print(done(ray, actors, cluster, *line.split()), file=answers, flush=True)


def done(ray, actors, cluster, command, name=None):
    """Do what a line says. Returns the line that answers it."""
    if command == "lose":
        ray.kill(actors[name])
        return f"{name} is lost for good"
    if command == "crash":
        os.kill(ray.get(actors[name].state.remote())[0], signal.SIGKILL)
        return f"{name} crashed"
    if command == "leave":
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        return "a node left"
    return "samples made: " + ", ".join(f"{name} {made(ray, actors[name])}" for name in actors)


def made(ray, actor):
    try:
        return ray.get(actor.state.remote())[1]
    except ray.exceptions.RayActorError:
        return "lost"


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", help="of a Ray cluster; without it, one is started here")
    parser.add_argument("--nodes", type=int, default=1, help="that are started for the actors")
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--side", type=int, default=64, help="of a square picture, in pixels")
    parser.add_argument("--store-mb", type=int, default=200, help="object store of a started node")
    return parser.parse_args()


if __name__ == "__main__":
    main()
