"""TensorSocket as a contender: a producer in a process of its own, and consumers by its ports."""

import importlib
import os
import socket
import sys
import threading
import time
from typing import Any

from bench.driver import missing

label = "TensorSocket"


def here() -> list[str]:
    """List it if it is installed; otherwise say why not."""
    reason = missing("tensorsocket")
    if reason:
        print(f"skipped {label}: {reason}", file=sys.stderr)
    return [] if reason else [label]


def free_ports() -> list[int]:
    """Find ports for one producer."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(4)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def produce(loader: Any, ports: list[int], consumers: int, told: Any) -> None:
    """Hand a loader's batches on at the defaults, epoch after epoch, until something is told."""
    producer = importlib.import_module("tensorsocket").TensorProducer(loader, **_at(ports))
    threading.Thread(target=_run, args=(producer, consumers), daemon=True).start()
    told.poll(None)
    producer.data_loader_iter._shutdown_workers()  # so that their CPU time is counted
    os._exit(0)


def _run(producer: Any, consumers: int) -> None:
    # It begins with the first one; as many as `publish()` waits for are what a user would want.
    while len(producer.hb.consumers) < consumers:
        time.sleep(0.05)
    while True:
        for _ in producer:
            pass


def consume(ports: list[int], rows: int) -> Any:
    """Return batches of so many rows; each iter() is an epoch."""
    return importlib.import_module("tensorsocket").TensorConsumer(batch_size=rows, **_at(ports))


def _at(ports: list[int]) -> dict[str, Any]:
    return {"port": ports[0], "ack_port": ports[1], "heart_ports": tuple(ports[2:])}
