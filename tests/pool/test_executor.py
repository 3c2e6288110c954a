"""A pool is what `ProcessPoolExecutor` is: calls, arguments, workers, errors and its end."""

import asyncio
import concurrent.futures
import copy
import functools
import gc
import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
import warnings
import weakref
from concurrent.futures.process import BrokenProcessPool

import numpy
import pytest
import torch

import shmloader
from shmloader import Pool
from shmloader.cli import main
from shmloader.pool import crew, engine
from tests.conformance import made, objects
from tests.helpers.copies import Child
from tests.helpers.interrupts import Interrupt, interrupted_once
from tests.helpers.programs import wait_until
from tests.helpers.warned import recorded
from tests.pool import functions


@pytest.fixture(autouse=True)
def unhandled(monkeypatch):
    """Let the main thread lead: the handler that ends tests which take too long asks no pool."""
    monkeypatch.setattr(engine, "may_be_handled", bool)


@pytest.fixture
def pool():
    """Give a pool of two forked workers, and shut it down."""
    with Pool(2, "fork") as pool:
        yield pool


def own_threads():
    return [each for each in threading.enumerate() if each.name == "shmloader-pool"]


# Calls


def test_a_call_is_made_in_a_worker(pool):
    """Positional and named arguments arrive, and the result comes back."""
    assert 5 == pool.submit(functions.add, 2, right=3).result()
    assert os.getpid() != pool.submit(os.getpid).result()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["forkserver", "spawn", None, torch.multiprocessing])
def test_every_start_method_works(method):
    """By a preloaded server, which is the default, or by an interpreter of each worker's own."""
    with Pool(numpy.int64(2), method) as pool:
        assert [0, 1, 4, 9] == list(pool.map(functions.square, range(4)))
        assert 9 == pool.submit(functions.square, 3).result()


def test_a_map_keeps_the_order(pool):
    """Whatever the chunks are; and calls by `submit` may come in between."""
    for chunksize in (1, 3, 100):
        results = pool.map(functions.add, range(50), range(50), chunksize=chunksize)
        assert 4 == pool.submit(functions.square, 2).result()
        assert [2 * number for number in range(50)] == list(results)


def test_a_map_needs_no_thread(pool):
    """The thread that asks for the results drives the workers; `submit` begins one."""
    assert [0, 1, 4] == list(pool.map(functions.square, range(3)))
    assert [] == own_threads()
    assert 1 == pool.submit(functions.square, 1).result()
    assert 1 == len(own_threads())
    assert [0, 1, 4] == list(pool.map(functions.square, range(3)))


def test_a_map_without_buffersize_takes_all_at_once(pool):
    """What nobody asks for is called at the end, as `ProcessPoolExecutor` does by then."""
    asked = []
    pool.map(functions.square, (asked.append(number) or number for number in range(30)))
    assert 30 == len(asked)
    pool.shutdown()
    assert 30 == pool.stats().batches


def test_a_map_with_buffersize_is_lazy(pool):
    """No more items are taken than chunks under way."""
    asked = []
    items = (asked.append(number) or number for number in range(100))
    results = pool.map(functions.square, items, buffersize=3)
    assert 3 == len(asked)
    assert 0 == next(results)
    assert 4 == len(asked)
    assert [number**2 for number in range(1, 100)] == list(results)


@pytest.mark.thorough
def test_a_broken_off_map_cancels_its_calls(pool):
    """What was not sent is not called, and the pool goes on."""
    results = pool.map(functions.pid_after, [0.01] * 200)
    next(results)
    results.close()
    assert 9 == pool.submit(functions.square, 3).result()
    pool.shutdown()
    assert pool.stats().batches < 100


@pytest.mark.thorough
def test_calls_that_wait_for_each_other_do_not_hang(pool, tmp_path):
    """No call of `submit` stands behind another one while a worker is free."""
    for number in range(20):
        path = tmp_path / str(number)
        waits = pool.submit(functions.wait_for, path)
        for _ in range(3):
            pool.submit(functions.square, 2)
        pool.submit(path.touch)
        assert waits.result(timeout=20)


@pytest.mark.thorough
def test_two_maps_in_two_threads_without_submit():
    """The second one has a thread lead, and neither waits for the other."""
    with Pool(2, "fork") as pool, concurrent.futures.ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(lambda: list(pool.map(functions.square, range(200)))) for _ in range(2)
        ]
        for each in asked:
            assert [number**2 for number in range(200)] == each.result(timeout=60)


def test_a_cancelled_call_is_not_made(pool, tmp_path):
    """One that runs cannot be cancelled; callbacks are called."""
    running = [pool.submit(functions.wait_for, tmp_path / "go") for _ in range(2)]
    waiting = pool.submit((tmp_path / "made").touch)
    called = []
    waiting.add_done_callback(called.append)
    assert wait_until(lambda: all(each.running() for each in running))
    assert not running[0].cancel() and waiting.cancel()
    (tmp_path / "go").touch()
    assert [True, True] == [each.result(timeout=20) for each in running]
    assert [waiting] == called and not (tmp_path / "made").exists()


def test_futures_are_those_of_the_standard_library(pool):
    """`wait`, `as_completed` and asyncio's `run_in_executor` take them."""
    futures = [pool.submit(functions.square, number) for number in range(10)]
    done = {each.result() for each in concurrent.futures.as_completed(futures, timeout=20)}
    assert {number**2 for number in range(10)} == done

    async def ask():
        loop = asyncio.get_running_loop()
        calls = (loop.run_in_executor(pool, functions.square, number) for number in range(10))
        return await asyncio.gather(*calls)

    assert [number**2 for number in range(10)] == asyncio.run(ask())


@pytest.mark.thorough
def test_a_map_may_time_out(pool):
    """The time counts from the call on."""
    results = pool.map(functions.pid_after, [0, 30], timeout=1)
    next(results)
    with pytest.raises(TimeoutError):
        next(results)
    for process in pool._engine.crew.processes.by_id:
        process.kill()


# Arguments and results


@pytest.mark.thorough
def test_every_pair_of_leaves_arrives_in_a_worker(pool):
    """As arguments; those of results are in conformance/."""
    pairs = [objects.pair(*names) for names in objects.PAIRS]
    assert all(pool.map(objects.is_whole, objects.PAIRS, pairs, timeout=60))


def test_arrays_are_not_pickled(pool):
    """Neither in a result nor in an argument: the pickles are as short as without them."""
    for value in (numpy.zeros(1_000_000), torch.zeros(1_000_000)):
        assert 0 == pool.submit(functions.same, (value, value)).result()[0].sum()
    assert 0 == pool.stats().pickled_bytes


@pytest.mark.parametrize(("count", "most"), [(3, 3), (60, 10)])
def test_arguments_may_be_kept_for_ever(count, most):
    """The slots of the first are never written again, later ones come in the worker's memory."""
    with Pool(1, "fork", slots=4) as pool:
        for number in range(count):
            asked = pool.submit(functions.keep, numpy.full(5000, number))
            assert number == asked.result(timeout=20)
        for number in range(30):
            pool.submit(functions.same, numpy.full(5000, 77 + number)).result(timeout=20)
        assert [*range(count)] == pool.submit(functions.kept_values).result(timeout=20)
        assert 3 <= pool.stats().retired <= most


def test_an_argument_that_is_changed_is_the_workers(pool):
    """The caller's array stays as it is."""
    mine = numpy.zeros(5000, numpy.int64)
    assert 5000 == pool.submit(functions.change, mine).result()
    assert 0 == mine.sum()


def test_a_result_may_be_made_of_its_argument(pool):
    """Views of it, beside what is new."""
    found = pool.submit(functions.halves, numpy.arange(10_000)).result()
    assert (numpy.arange(5000) == found["first"]).all()
    assert (2 * numpy.arange(5000, 10_000) == found["made"]).all()


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta")])
def test_a_result_is_of_no_mode_of_its_caller(pool, mode):
    """It is what the function returned, whatever torch would make in the thread that asks."""
    assert [1] == list(pool.map(functions.square, [1]))  # a worker forked in it would be in it
    with mode():
        (found,) = pool.map(functions.sparse_ones, [3])
    assert ("cpu", False) == (found.device.type, found.is_inference())


def test_nothing_is_referred_to_any_more(pool):
    """Neither the arguments nor the results of calls that are done, nor by a cycle the failed."""

    given = numpy.zeros(5000)
    kept = weakref.ref(given)
    pool.submit(functions.same, given).result()
    gc.disable()
    with pytest.raises(TypeError):
        pool.submit(len, 3, given).result()
    with pytest.raises(TypeError):
        list(pool.map(len, [3], [given]))
    assert pool.submit(lambda: 0, given).exception()
    del given
    assert wait_until(lambda: kept() is None)
    gc.enable()
    assert wait_until(lambda: 0 == pool.stats().slots["leased"])


# Workers


@pytest.mark.thorough
def test_workers_draw_differently():
    """Each is seeded for itself, also where all are forked from one process."""
    for method in ("fork", "forkserver"):
        with Pool(2, method) as pool:
            found = [*pool.map(functions.pid_after, [0.2, 0.2])]
            assert 2 == len(set(found))
            draws = [pool.submit(functions.draws) for _ in range(6)]
            for kind in zip(*(each.result() for each in draws), strict=True):
                assert 6 == len(set(kind))


def test_workers_compute_with_one_thread(pool):
    """As a loader's do."""
    assert 1 == pool.submit(torch.get_num_threads).result()


def test_an_initializer_runs_first():
    """In every worker, before any call."""
    with Pool(2, "fork", functions.set_state, ("set",)) as pool:
        assert ["set"] * 8 == [pool.submit(functions.get_state).result() for _ in range(8)]


def test_a_failing_initializer_breaks_the_pool(tmp_path):
    """The log has the error, and the exception says so."""
    log = tmp_path / "log"
    with Pool(2, "fork", functions.fail_to_begin, (log,)) as pool:
        with pytest.raises(BrokenProcessPool, match="initializer failed in pool worker"):
            pool.submit(functions.square, 2).result(timeout=20)
        with pytest.raises(BrokenProcessPool):
            pool.submit(functions.square, 2)
    assert "ValueError: no such model" in log.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_leaves_after_its_calls(method):
    """Another one takes its place, and no call is lost."""
    with Pool(1, method, max_tasks_per_child=3) as pool:
        pids = [pool.submit(os.getpid).result() for _ in range(9)]
    assert 3 == len(set(pids)) and pids == sorted(pids, key=pids.index)
    assert 0 == pool.stats().restarts


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (functions.use_a_loader, (torch.utils.data.DataLoader,)),
        (functions.use_a_loader, (shmloader.DataLoader,)),
        (functions.use_a_pool, (concurrent.futures.ProcessPoolExecutor,)),
        (functions.use_a_pool, (Pool,)),
    ],
)
def test_a_call_may_use_processes(pool, function, arguments):
    """As of `ProcessPoolExecutor`."""
    assert 9 == pool.submit(function, *arguments).result(timeout=60)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_calls_of_any_worker_may_use_processes(method):
    """However it was started, and if it replaces another one."""
    with warnings.catch_warnings(action="ignore"), Pool(1, method, restarts=1) as pool:
        assert 9 == pool.submit(functions.use_a_process).result(timeout=60)
        os.kill(pool.submit(os.getpid).result(timeout=60), signal.SIGKILL)
        assert 9 == pool.submit(functions.use_a_process).result(timeout=60)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Pool, concurrent.futures.ProcessPoolExecutor])
def test_processes_that_a_call_leaves_do_not_outlive_the_pool(kind, tmp_path):
    """`shutdown()` waits for them, as `ProcessPoolExecutor` does."""
    with kind(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(functions.leave_a_process, tmp_path / "ended").result()
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("chunksize", [1, 4])
def test_a_map_gives_each_chunk_its_function_anew(pool, chunksize):
    """Its state does not live on in a worker: results depend on no other chunk."""
    function = functions.Counting()
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as other:
        wanted = list(other.map(function, range(8), chunksize=chunksize))
    for _ in range(2):
        assert wanted == list(pool.map(function, range(8), chunksize=chunksize))
    assert 0 == function.calls


def test_a_map_of_nothing_needs_no_function_that_can_be_sent(pool):
    """As of `ProcessPoolExecutor`; any other one does."""
    assert [] == list(pool.map(lambda each: each, []))
    with pytest.raises(Exception, match="local object"):
        list(pool.map(lambda each: each, [1]))


@pytest.mark.parametrize("chunksize", [1, 4])
def test_a_map_sends_its_function_beside_the_arguments(pool, chunksize):
    """As often as there are chunks, tensors too; what it shares with arguments is one object."""
    tensor = torch.ones(5000)
    function = functools.partial(functions.sum_of_same, tensor)
    assert 8 * [5000.0] == list(pool.map(function, 8 * [tensor], chunksize=chunksize))


# Errors and deaths


ROOM = numpy.zeros(1 << 21, numpy.uint8)  # more than a pool of the next tests has


def error_of(call):
    """Return what a call raises, whatever that is."""
    try:
        call()
    except BaseException as error:
        return error
    return None


@pytest.mark.core(first=1)
@pytest.mark.parametrize("way", ["submit", "map"])
@pytest.mark.parametrize("moment", ["pickled", "unpickled"])
@pytest.mark.parametrize("raised", made.ERRORS)
def test_an_argument_that_raises_fails_its_call(pool, raised, moment, way):
    """Whatever it raises, and the pool goes on; results and errors are in conformance/."""
    argument = made.Raises(moment, raised)
    if way == "submit":
        error = error_of(lambda: pool.submit(functions.same, argument).result(timeout=20))
    else:
        error = error_of(lambda: list(pool.map(functions.same, [argument])))
    assert type(error) in {raised, shmloader.errors.UnsendableBatch}
    assert 4 == next(pool.map(functions.square, [2]))


@pytest.mark.parametrize("raised", made.ERRORS)
def test_what_a_callback_raises_ends_nothing(pool, raised, tmp_path, caplog):
    """It is logged, as errors of callbacks are."""
    future = pool.submit(functions.wait_for, tmp_path / "go")
    future.add_done_callback(lambda _: made.fail(raised))
    (tmp_path / "go").touch()
    assert future.result(timeout=20)
    assert 4 == pool.submit(functions.square, 2).result(timeout=20)
    assert "exception calling callback" in caplog.text and "on purpose" in caplog.text
    caplog.clear()  # its tracebacks have the pool


OF_OTHERS = r"batch\b|epoch|samples|dataset|trainer|num_workers|prefetch"


@pytest.mark.parametrize(
    ("said", "function", "argument"),
    [
        (
            r"a call of same takes 2\.1 MB, .* set ring_bytes=2097",
            functions.same,
            ROOM,
        ),
        (
            r"result of 2\.1 MB does not fit .* set ring_bytes=2101",
            functions.ones,
            ROOM.size,
        ),
        (r"LookupError: xxx[^!]*no room for the exception", functions.fail_at_length, ROOM.size),
        (r"result\[0\] \(lock\) cannot be sent to the caller: cannot pickle", functions.lock, 1),
        (r"cannot pickle '_thread.lock'", functions.same, threading.Lock()),
    ],
)
def test_what_cannot_be_sent_fails_its_call_alone(said, function, argument):
    """In the words of a pool: what it was, the numbers, and what to do."""
    with Pool(1, "fork", ring_bytes=1 << 20) as pool:
        error = error_of(lambda: pool.submit(function, argument).result(timeout=20))
        assert re.search(said, str(error))
        assert "Traceback" in str(error) or not re.search(OF_OTHERS, str(error))
        if function is functions.lock:
            assert "TypeError: cannot pickle" in str(error.__cause__)
        assert 4 == pool.submit(functions.square, 2).result()


@pytest.mark.parametrize("function", [pickle.dumps, copy.copy])
def test_a_pool_is_not_copied(pool, function):
    """The error says what to do."""
    with pytest.raises(TypeError, match="make one in the process that uses it"):
        function(pool)


# Deaths


@pytest.mark.parametrize("kind", [LookupError, made.Closed])
def test_an_error_arrives_as_it_was_raised(pool, kind):
    """With the worker's traceback as its cause, as of the standard one, also if it is closed."""
    error = error_of(pool.submit(made.raise_it, kind, "there").result)
    assert (kind, ("there",)) == (type(error), error.args)
    assert "raise kind(*arguments" in str(error.__cause__)


@pytest.mark.thorough
def test_the_end_comes_behind_calls_that_cannot_be_sent():
    """Nothing is waited for that was never sent."""
    for _ in range(20):
        with Pool(2, "fork") as pool:
            futures = [pool.submit(lambda: 3) for _ in range(3)]
        assert all("local object" in str(each.exception(0)) for each in futures)


def test_a_death_breaks_the_pool_and_names_worker_and_signal():
    """All futures fail, and later calls too."""
    with Pool(2, "fork") as pool:
        futures = [pool.submit(functions.wait_for, "/nonexistent"), pool.submit(functions.die)]
        for each in futures:
            with pytest.raises(
                BrokenProcessPool, match=r"pool worker \d \(pid \d+\) was killed by"
            ):
                each.result(timeout=20)
        with pytest.raises(BrokenProcessPool, match="SIGKILL"):
            pool.submit(functions.square, 2)
        with pytest.raises(BrokenProcessPool, match="SIGKILL"):
            pool.map(functions.square, [2])


@pytest.mark.thorough
def test_used_up_restarts_break_the_pool():
    """The messages say which call it was each time."""
    with recorded() as caught, Pool(1, "fork", restarts=2) as pool:
        error = error_of(lambda: pool.submit(functions.die).result(timeout=60))
    for said, pattern in zip(
        (*caught, error),
        (*2 * ["is made again .* in this hour"], "all 2 restarts of this hour"),
        strict=True,
    ):
        text = str(getattr(said, "message", said))
        assert re.search(f"a call of die in hand.*{pattern}", text)
        assert not re.search(OF_OTHERS, text)


@pytest.mark.thorough
def test_restarts_are_for_an_hour(tmp_path, monkeypatch):
    """A pool goes on after any number of deaths, but not after those of one call."""
    monkeypatch.setattr(crew, "RESTARTS_S", 0.0)
    monkeypatch.setattr(crew, "LOOK_S", 0.0)
    with warnings.catch_warnings(action="ignore"), Pool(1, "fork", restarts=1) as pool:
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            once = pool.submit(functions.die_once, tmp_path / str(number), number)
            assert number == once.result(timeout=60)
            assert 4 == pool.submit(functions.square, 2).result(timeout=60)
        with pytest.raises(BrokenProcessPool, match="all 1 restarts"):
            pool.submit(functions.die).result(timeout=60)


@pytest.mark.thorough
def test_a_changed_argument_is_written_anew_for_a_replacement(tmp_path):
    """From the caller's object."""
    with warnings.catch_warnings(action="ignore"), Pool(1, "fork", restarts=1) as pool:
        array = numpy.arange(100_000)
        found = pool.submit(functions.die_once, tmp_path, array).result(timeout=60)
        assert (array == found).all()


@pytest.mark.thorough
def test_ctrl_c_interrupts_the_caller_and_no_idle_worker():
    """The pool goes on; what was interrupted is the caller's map alone."""
    with Pool(2, "fork") as pool:
        pids = set(pool.map(functions.pid_after, [0.2, 0.2]))
        for each in pids:
            os.kill(each, signal.SIGINT)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            list(pool.map(functions.pid_after, [0.05] * 100))
        timer.join()
        assert pids == set(pool.map(functions.pid_after, [0.2, 0.2]))


@pytest.mark.parametrize("name", ["receive", "_accepts"])
def test_an_answer_that_an_interrupt_lost_is_found_again(pool, monkeypatch, name):
    """It may be of another map, which goes on."""
    other = pool.map(functions.square, range(20))
    assert 0 == next(other)
    transport = pool._engine.crew.transport
    function = interrupted_once(getattr(transport, name), name == "receive")
    monkeypatch.setattr(transport, name, function)
    with pytest.raises(Interrupt):
        list(pool.map(functions.square, range(20)))

    assert [number**2 for number in range(1, 20)] == list(other)


# The end


def test_after_the_end_nothing_is_taken(pool):
    """As of `ProcessPoolExecutor`."""
    pool.submit(functions.square, 2)
    pool.shutdown()
    pool.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(functions.square, 2)


def test_cancelled_futures_at_the_end(pool):
    """What runs is done, what waits is not."""
    futures = [pool.submit(functions.pid_after, 0.1) for _ in range(40)]
    pool.shutdown(cancel_futures=True)
    cancelled = sum(each.cancelled() for each in futures)
    assert 30 < cancelled < 40 and all(each.done() for each in futures)


@pytest.mark.thorough
def test_a_dropped_pool_ends_its_workers():
    """When what was asked is done."""
    pool = Pool(2, "fork")
    future = pool.submit(functions.pid_after, 0.2)
    del pool
    gc.collect()
    pid = future.result(timeout=20)
    assert wait_until(lambda: not own_threads())
    assert wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_pool_that_was_never_used_starts_nothing():
    """Neither processes nor a segment."""
    with Pool(2) as pool:
        pass
    assert 0 == len(pool.stats().workers) and [] == own_threads()


def test_a_forked_child_has_to_make_its_own(pool):
    """The error says so, and the parent's goes on."""
    assert 4 == pool.submit(functions.square, 2).result()
    assert (
        "make a Pool in this process"
        in Child(error_of, lambda: pool.submit(functions.square, 2)).end()
    )
    assert 9 == pool.submit(functions.square, 3).result()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_workers": 0}, ValueError, "max_workers must be greater than 0"),
        ({"max_workers": "2"}, TypeError, "max_workers should be an int"),
        ({"initializer": 3}, TypeError, "initializer must be a callable"),
        ({"max_tasks_per_child": 0}, ValueError, "max_tasks_per_child"),
        ({"slots": 1, "max_workers": 2}, ValueError, "slots"),
        ({"ring_bytes": 0}, ValueError, "ring_bytes"),
        ({"restarts": -1}, ValueError, "restarts"),
        ({"preload": "numpy"}, TypeError, "preload"),
        ({"preload": (3,)}, TypeError, "preload"),
        ({"mp_context": "threads"}, ValueError, "threads"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, error, text):
    """With the name of the argument."""
    with pytest.raises(error, match=text):
        Pool(**arguments)


def test_bad_chunks_are_refused(pool):
    """As 3.14 does."""
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        pool.map(functions.square, [1], chunksize=0)
    with pytest.raises(ValueError, match="buffersize must be None or > 0"):
        pool.map(functions.square, [1], buffersize=0)
    with pytest.raises(TypeError, match="buffersize must be an integer or None"):
        pool.map(functions.square, [1], buffersize="1")


@pytest.mark.thorough
def test_a_stopped_worker_holds_nobody_else_up(pool):
    """Its call waits, those of others do not."""
    pids = set(pool.map(functions.pid_after, [0.2, 0.2]))
    stopped = pids.pop()
    os.kill(stopped, signal.SIGSTOP)
    try:
        futures = [pool.submit(functions.pid_after, 0) for _ in range(20)]
        done, late = concurrent.futures.wait(futures, timeout=2)
        assert 19 == len(done) and 1 == len(late)
        assert pids == {each.result() for each in done}
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert stopped == late.pop().result(timeout=20)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (["top", "--once"], r"^  pool \d+ .*5 calls done"),
        (["trace", "-o", "trace.json"], r"the last 5 batches"),
    ],
    ids=["top", "trace"],
)
def test_commands_show_a_pool(pool, command, seen, tmp_path, monkeypatch, capfd):
    """As they show a loader, by the process's id."""
    list(pool.map(functions.square, range(5)))
    monkeypatch.chdir(tmp_path)
    name, *options = command

    def is_shown():
        assert 0 == main([name, str(os.getpid()), *options])
        return re.search(seen, capfd.readouterr().out, re.MULTILINE) is not None

    assert wait_until(is_shown)  # one worker may make all calls before the other is there


@pytest.mark.thorough
def test_a_report_says_what_the_workers_did():
    """They computed, they waited for calls, or for room; and results were copied out, or not."""
    with Pool(1, "fork") as pool:
        assert "nothing to report" in pool.report()
        list(pool.map(functions.pid_after, [0.05] * 6))
        assert "more workers" in pool.report()
        time.sleep(1)
        pool.submit(functions.square, 1).result()
        assert "the caller submits too late" in pool.report()
    with Pool(1, "fork", slots=2) as pool:
        kept = list(pool.map(functions.ones, [100_000] * 8))
        assert re.search(r"[4-8] of 8 results were copied out \(too_few_slots\)", pool.report())
    del kept


@pytest.mark.thorough
def test_the_time_of_waiting_is_not_counted_as_work(pool):
    """`stats()` counts calls, and what workers did."""
    list(pool.map(functions.pid_after, [0.05] * 10))
    time.sleep(0.2)
    stats = pool.stats()
    assert 10 == stats.batches and 2 == len(stats.workers)
    assert 0.5 <= stats.worker_busy_s < 2
