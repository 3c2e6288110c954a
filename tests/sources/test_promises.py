"""
Every row of docs/what_happens_when.md has a test behind it.

They are listed in PROMISES. A new or reworded row fails here until it is listed, and so does a test
that is gone; the tests themselves run from their own files.
"""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "what_happens_when.md"
HEADING = "# What happens when"

# What a row's first column says: the tests that would fail if its second did not hold.
PROMISES = {
    "the whole run is killed, and another loads its checkpoint": [
        "test_resumed_deaths.py::test_trainings_that_are_killed_go_on",
        "test_exact.py::test_a_run_that_is_interrupted_again_and_again",
    ],
    "a checkpoint of another loader is loaded": [
        "test_state.py::test_another_loader_refuses_it",
    ],
    "a resumed sampler draws other indices": [
        "test_state.py::test_another_order_is_refused_at_iter",
    ],
    "exception in dataset or `collate_fn`": [
        "test_errors_like_torch.py::test_exception_in_dataset",
        "test_errors_like_torch.py::test_exception_in_collate_fn",
        "test_errors_like_torch.py::test_exception_in_iterable_dataset",
    ],
    "[`tolerant()`](healing.md#samples-that-raise): a sample raises": [
        "test_tolerant.py::test_samples_that_raise_are_left_out",
        "test_tolerant.py::test_order_and_draws_of_the_others_are_exact",
        "test_tolerant.py::test_a_worker_warns",
    ],
    "`tolerant()`: more samples than `most_in_a_row` raise": [
        "test_tolerant.py::test_too_many_in_a_row_are_an_error",
    ],
    "the system is not Linux, or the compiled module is missing": [
        "test_without_core.py::test_batches_are_torchs",
        "test_without_core.py::test_one_warning_says_so",
        "test_without_core.py::test_a_wheel_without_the_core",
    ],
    "a value cannot be pickled": [
        "test_errors_like_torch.py::test_unpicklable_leaf_is_named",
    ],
    "a worker is killed, or calls `sys.exit`": [
        "test_errors_like_torch.py::test_death_of_a_worker",
        "test_errors_like_torch.py::test_death_without_a_trace",
        "test_deaths_of_servers.py::test_an_error_says_how_a_worker_ended",
    ],
    "the same, or a hang beyond `timeout`, with `restarts=n`": [
        "test_healing.py::test_no_batch_changes",
        "test_healing_iterable.py::test_no_batch_changes",
        "test_kill_points.py::test_death_of_a_worker_is_healed",
        "test_soak.py::test_batches_are_right_and_nothing_grows_while_workers_die",
        "test_healing_limits.py::test_hung_worker_is_replaced",
    ],
    "native code overwrites a worker's requests": [
        "test_layout.py::test_broken_task_is_refused",
        "test_c.py::test_program",
        "test_layout.py::test_worker_that_was_sent_a_forged_task_ends",
    ],
    "a process dumps core": [
        "test_pages.py::test_only_the_table_is_dumped",
    ],
    "no memory for a `SharedList`": [
        "test_shared_list.py::test_too_little_memory_is_an_error_with_numbers",
        "test_shared_list.py::test_a_limit_of_file_sizes_is_an_error",
    ],
    "a `SharedList` in memory goes into a queue or a pool's task": [
        "test_shared_list.py::test_other_ways_to_pickle_it_are_refused",
        "test_shared_list.py::test_a_queue_gets_the_error",
    ],
    "a file of records is truncated, damaged or another one": [
        "test_record_files.py::test_another_file_is_refused",
        "test_record_files.py::test_a_file_that_was_cut_off_is_refused",
        "test_record_files.py::test_a_damaged_header_is_refused",
        "test_record_files.py::test_damaged_names_table_and_index_are_refused",
    ],
    "a signal handler raises while a worker waits for pages": [
        "test_pages.py::test_pages_are_counted_before_a_handler_raises",
    ],
    "slots cannot be page-locked for a device": [
        "test_arrival.py::test_locks_that_are_refused_are_said_once",
    ],
    "`device=`: starting a copy, or a `transform`, fails": [
        "test_arrival.py::test_an_error_of_a_copy_is_raised_at_its_turn",
        "test_arrival.py::test_an_error_of_the_transform_is_raised_at_its_turn",
    ],
    "a copy to a device fails": [
        "test_arrival.py::test_a_copy_that_failed_keeps_its_slot",
    ],
    "iteration ends, or the loader is closed, during copies": [
        "test_arrival.py::test_a_close_leaves_copies_under_way",
        "test_device_lives.py::test_whichever_way_an_iterator_ends",
        "test_device_options.py::test_an_epoch_that_is_left_with_copies_under_way",
        "test_flights.py::test_an_interrupt_at_any_line_of_a_start",
        "test_flights.py::test_interrupted_copies_lose_at_most_the_batch_in_hand",
    ],
    "`loader.close()` while you hold batches": [
        "test_pages.py::test_dropped_batches_give_their_pages_back_after_close",
        "test_pages.py::test_child_reads_what_the_trainer_drops_after_close",
        "test_pages.py::test_child_that_drops_gives_nothing_back",
    ],
    "`SHMLOADER_BACKING=posix` with `huge=always` on /dev/shm": [
        "test_pages.py::test_huge_pages_are_counted_as_they_exist",
    ],
    "a batch kills every worker": [
        "test_healing_limits.py::test_batch_that_kills_everybody",
    ],
    "a process is killed while it writes to a `cached()` dataset": [
        "test_c.py::test_program",
        "test_cache.py::test_replacements_share_it_too",
        "test_kill_points.py::test_death_of_a_worker_is_healed",
    ],
    "no memory for more samples of `cached()`": [
        "test_cache.py::test_it_does_not_grow_while_memory_is_short",
    ],
    "the template process of `restarts` is killed": [
        "test_nursery.py::test_death_of_the_nursery",
        "test_nursery.py::test_dataset_of_a_replacement",
        "test_nursery.py::test_death_with_an_order_in_hand",
        "test_deaths_of_servers.py::test_its_workers_outlive_it",
        "test_nursery.py::test_restarts_are_spent_on_workers_alone",
        "test_soak.py::test_batches_are_right_and_nothing_grows_while_workers_die",
        "test_simulation.py::test_any_order_of_events",
        "test_nursery.py::test_two_newborns_for_one_desk",
        "test_healing_programs.py::test_replacement_that_nobody_reaps",
    ],
    "the server of `forkserver` is killed": [
        "test_deaths_of_servers.py::test_death_between_epochs",
        "test_deaths_of_servers.py::test_its_workers_outlive_it",
        "test_deaths_of_servers.py::test_death_while_workers_start",
    ],
    "a module of `preload` cannot be imported": [
        "test_preload.py::test_module_that_is_missing",
    ],
    "a replacement cannot be started": [
        "test_nursery.py::test_nursery_that_cannot_fork",
        "test_nursery.py::test_nursery_that_can_never_fork",
        "test_nursery.py::test_trainer_without_something_for_a_moment",
        "test_nursery.py::test_trainer_without_something_for_ever",
        "test_watching.py::test_out_of_descriptors_no_process_looks_dead",
    ],
    "too few descriptors when an iterator starts": ["test_few_descriptors.py::test_few_are_left"],
    "SIGCHLD is ignored, or something else waits for any child": [
        "test_reaped_by_others.py::test_a_killed_worker_is_replaced",
        "test_reaped_by_others.py::test_deaths_beyond_the_restarts_are_one_error",
        "test_reaped_by_others.py::test_a_worker_that_grew_is_replaced",
        "test_reaped_by_others.py::test_without_restarts_it_is_torchs_error",
    ],
    "a container's first process reaps nothing": [
        "test_healing_programs.py::test_nothing_is_left_to_a_first_process_that_reaps_nothing",
    ],
    "SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 to all processes, which the training process handles or "
    "ignores": [
        "test_signals.py::test_a_job_that_is_told_to_end_loses_nothing",
        "test_signals_of_jobs.py::test_a_signal_that_the_trainer_sees_to_is_left_to_it",
        "test_signals.py::test_a_handler_that_is_set_later_counts_from_iter_on",
        "test_preempted.py::test_a_training_that_is_stopped_twenty_times",
    ],
    "the training process is killed with -9": [
        "test_deaths.py::test_trainers_death_ends_blocked_workers",
        "test_deaths.py::test_death_of_all_leaves_nothing",
        "test_endings.py::test_blocked_workers_end_with_the_trainer",
        "test_endings.py::test_end_at_a_moment",
        "test_endings.py::test_end_while_a_dataset_is_sent",
    ],
    "it ends normally, or by an exception, `sys.exit` or a signal": [
        "test_endings.py::test_blocked_workers_end_with_the_trainer",
        "test_endings.py::test_end_at_a_moment",
        "test_endings.py::test_all_workers_are_waited_for_together",
        "test_exits.py::test_exit_is_silent",
        "test_interpreter_end.py::test_a_loader_ends_as_torchs",
    ],
    "a process with [native threads](starting.md#which-one) forks workers": [
        "test_forewarning.py::test_threads_that_a_forked_worker_lacks_are_named",
        "test_forewarning.py::test_openmp_of_another_library_is_named",
        "test_forewarning.py::test_a_hang_names_them_again",
    ],
    "OpenMP binds the training process to few cores": [
        "test_forewarning.py::test_few_cores_have_a_reason",
        "test_forewarning.py::test_what_is_said_of_openmp_is_true",
    ],
    "a worker ends after its epoch": [
        "test_exit_functions.py::test_a_worker_runs_its_own_exit_functions",
        "test_exit_functions.py::test_exit_functions_that_hang_are_ended",
    ],
    "you retain every batch": [
        "test_retention.py::test_every_number_of_slots_gives_the_whole_epoch",
        "test_retention.py::test_spills_are_counted",
        "test_retention.py::test_one_warning_advises",
        "test_retention.py::test_a_warning_that_is_an_error_loses_no_batch",
    ],
    "you retain a small part of every batch": [
        "test_stretches.py::test_an_epoch_of_kept_leaves",
        "test_stretches.py::test_kept_leaves_are_torchs",
    ],
    "a batch is larger than `ring_bytes` or what `ulimit -v` or `-f` leaves": [
        "test_sizes.py::test_a_batch_beyond_the_budget_says_so",
        "test_small_machine.py::test_a_batch_too_large_for_a_limit",
    ],
    "no memory for a batch's pages": [
        "test_room.py::test_free_slots_give_way_in_a_shortage",
        "test_small_machine.py::test_a_full_dev_shm_is_an_error",
        "test_small_machine.py::test_a_control_group_is_an_error_not_a_kill",
    ],
    "a sandbox refuses a system call": [
        "test_refused_calls.py::test_optional_calls_are_not_missed",
        "test_refused_calls.py::test_needed_calls_end_in_one_error",
        "test_refused_calls.py::test_worker_that_gets_no_thread",
    ],
    "Ctrl-C": [
        "test_simulation.py::test_any_order_of_events",
        "test_interrupts.py::test_a_batch_counts_if_and_only_if_it_was_returned",
        "test_interrupts.py::test_an_interrupted_iter_has_drawn_nothing",
        "test_lives_of_values.py::test_a_handler_that_raises_loses_no_source",
        "test_endings.py::test_interrupt_of_a_wait_for_blocked_workers",
        "test_endings.py::test_end_at_a_moment",
        "test_endings.py::test_end_while_a_dataset_is_sent",
        "test_endings.py::test_interrupts_are_quiet_and_not_lost",
    ],
    "native code uses a released batch": [
        "test_debug.py::test_late_use_faults_and_is_named",
    ],
    "a forked child iterates, closes or drops an inherited loader": [
        "test_inherited.py::test_children_iterate_an_inherited_loader",
        "test_inherited.py::test_a_child_forked_in_mid_epoch_takes_nothing",
        "test_inherited.py::test_an_inherited_live_iterator_is_refused",
    ],
    "`close()` on another thread while `next()` waits or copies": [
        "test_threads.py::test_close_while_another_thread_spills",
        "test_threads.py::test_close_ends_a_next_that_waits",
    ],
    "your code forks while it holds batches": [
        "test_lives_of_values.py::test_a_forked_child_reads_what_it_inherited",
        "test_children.py::test_a_daemon_reads_held_batches_as_long_as_it_lives",
        "test_inherited.py::test_a_child_forked_in_mid_epoch_takes_nothing",
    ],
}


def rows_of(text):
    """List what the first column of the table under the heading says."""
    section = text.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return [cell for cell in cells[1:] if set(cell) != {"-"}]


@functools.cache
def functions_of(name):
    """List the test functions of a file in any folder; none if there is no such file."""
    nodes = [node for path in TESTS.rglob(name) for node in ast.parse(path.read_text()).body]
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}


def test_rows_have_tests():
    """A row of the page, and no other, names its tests in PROMISES."""
    on_page = {*rows_of(PAGE.read_text())}
    assert set() == on_page - PROMISES.keys(), "PROMISES names no tests for these rows"
    assert set() == PROMISES.keys() - on_page, "docs/what_happens_when.md has no such rows"
    assert all(PROMISES.values())


def test_named_tests_exist():
    """No test that is named was renamed or removed."""
    named = [test.split("::") for tests in PROMISES.values() for test in tests]

    assert [] == [each for each in named if each[1] not in functions_of(each[0])]
