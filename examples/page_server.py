"""
An asyncio server that prepares pages for a model, in processes: the event loop never waits.

    python examples/page_server.py
    python examples/page_server.py --processor openai/clip-vit-base-patch32    # needs transformers

Threads that prepare pages share one interpreter's lock with the loop and with each other; six of
them are slower than two. `shmloader.Pool` is an executor, so `run_in_executor` takes it, and the
tensors that come back are not pickled: they lie in shared memory for as long as they are used.

A client sends a page's height and width and its bytes; it gets the shape and the bytes of what the
model would be given. The program asks itself over loopback, and compares every answer.
"""

import argparse
import asyncio
import functools
import struct

import numpy

from shmloader import Pool

HEAD = struct.Struct("<3I")
MOST_BYTES = 64_000_000  # of a page
LONGEST_S = 60


def prepare(page):
    """Halve a page (H, W, 3) of uint8; return (3, H / 2, W / 2) of float32, normalised."""
    height, width = (size // 2 * 2 for size in page.shape[:2])
    cells = page[:height, :width].reshape(height // 2, 2, width // 2, 2, 3)
    means = cells.mean(axis=(1, 3), dtype=numpy.float32)
    return numpy.ascontiguousarray(((means / 255 - 0.45) / 0.22).transpose(2, 0, 1))


@functools.cache  # once in each worker
def processor_of(name):
    """Load an image processor of transformers."""
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(name)


def prepare_by(name, page):
    """Prepare a page by a model's own processor; return (3, H, W) of float32."""
    return processor_of(name)(page, return_tensors="np")["pixel_values"][0]


class Server:
    """Answers clients one request after the other, and all clients at once."""

    def __init__(self, pool, function):
        self._pool, self._function = pool, function

    async def serve(self, reader, writer):
        """Answer one client until it hangs up."""
        try:
            while head := await reader.read(HEAD.size):
                head += await reader.readexactly(HEAD.size - len(head))
                shape = HEAD.unpack(head)
                if numpy.prod(shape, dtype=object) > MOST_BYTES or shape[2] != 3:
                    break
                raw = await reader.readexactly(int(numpy.prod(shape)))
                page = numpy.frombuffer(raw, numpy.uint8).reshape(shape)
                loop = asyncio.get_running_loop()
                made = await loop.run_in_executor(self._pool, self._function, page)
                writer.write(HEAD.pack(*made.shape))
                writer.write(made.tobytes())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it hung up
        finally:
            writer.close()


async def ask(port, page):
    """Have the server prepare a page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD.pack(*page.shape) + page.tobytes())
    shape = HEAD.unpack(await reader.readexactly(HEAD.size))
    raw = await reader.readexactly(4 * int(numpy.prod(shape)))
    writer.close()
    await writer.wait_closed()
    return numpy.frombuffer(raw, numpy.float32).reshape(shape)


async def main(function, pages):
    """Ask for pages of several clients at once, and look at all answers."""
    with Pool(2) as pool:
        server = await asyncio.start_server(Server(pool, function).serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            generator = numpy.random.default_rng(0)
            asked = [
                generator.integers(0, 256, (240 + 2 * number, 320, 3), numpy.uint8)
                for number in range(pages)
            ]
            answers = await asyncio.gather(*(ask(port, page) for page in asked))
        for page, answer in zip(asked, answers, strict=True):
            assert numpy.array_equal(function(page), answer), "a page came back wrong"
        print(f"{pages} pages by {len(pool.stats().workers)} workers, all right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--pages", type=int, default=16)
    parser.add_argument("--processor", help="the name or the folder of a model of transformers")
    options = parser.parse_args()
    chosen = functools.partial(prepare_by, options.processor) if options.processor else prepare
    asyncio.run(asyncio.wait_for(main(chosen, options.pages), LONGEST_S))
