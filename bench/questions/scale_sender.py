"""
What `python -m bench scale` receives from by raw TCP: `scale_sender PORT STREAMS SIDE SIZE COUNT`.

Makes the same batches as the actors, and sends them; batch n goes on stream n modulo STREAMS.
"""

import socket
import sys
import threading

from bench.questions.scale import Maker


def main(port: int, streams: int, side: int, size: int, count: int) -> None:
    maker = Maker(side)
    shares = [range(count // size)[stream::streams] for stream in range(streams)]
    threads = [
        threading.Thread(target=_send, args=(port, stream, maker, size, numbers))
        for stream, numbers in enumerate(shares)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send(port: int, stream: int, maker: Maker, size: int, numbers: range) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(bytes([stream]))
        for number in numbers:
            for array in maker.make(range(number * size, (number + 1) * size)):
                connection.sendall(memoryview(array).cast("B"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
