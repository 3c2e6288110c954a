"""
An HTTP/1.1 server on loopback that waits before each answer, in a process of its own.

GET /MS/N answers with picture N after MS milliseconds. One thread and timers: the wait of one
request costs no processor time and delays no other, so the cores are left to the loaders.
"""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

_HEAD_END = b"\r\n\r\n"


class _Line(asyncio.Protocol):
    """One connection, which stays open for the next request."""

    def __init__(self, pictures: list[bytes]):
        self._pictures = pictures
        self._loop = asyncio.get_running_loop()
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while _HEAD_END in self._unread:
            head, _, self._unread = self._unread.partition(_HEAD_END)
            _, latency_ms, number = head.split(b" ", 2)[1].split(b"/")
            picture = self._pictures[int(number) % len(self._pictures)]
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(picture), picture)
            self._loop.call_later(float(latency_ms) / 1e3, self._transport.write, answer)


@contextmanager
def serving(pictures: list[bytes]) -> Iterator[int]:
    """Serve until the block ends; gives the port."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(pictures, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(pictures: list[bytes], told: Connection) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(partial(_Line, pictures), "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
