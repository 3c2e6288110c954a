"""
An HTTP/1.1 server on loopback that waits before each answer, in a process of its own.

GET /MS/N answers with picture N after MS milliseconds. One thread and timers: the wait of one
request costs no processor time and delays no other, so the cores are left to the loaders.
"""

import asyncio
import contextlib
import multiprocessing
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection


async def _answer(
    pictures: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            _, latency_ms, number = head.split(b" ", 2)[1].split(b"/")
            picture = pictures[int(number) % len(pictures)]
            await asyncio.sleep(float(latency_ms) / 1e3)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(picture) + picture)
            await writer.drain()


@contextlib.contextmanager
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
        server = await asyncio.start_server(partial(_answer, pictures), "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
