"""Whether the tests notice a mistake of one line: ``python -m tests.mistakes [a word of its name]``.

Each mistake is made in a copy of the package in turn, and the tests that are named with it run until their first
failure: those that `make test` has, then those that only `make test-all` has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from typing import Final

from tests.support.mistakes import Mistake, copied

#: What `make test` leaves to `make test-all`.
LEFT: Final = "extended"

#: By which command a mistake is noticed, with the tests that it has.
COMMANDS: Final = {"make test": f"not {LEFT}", "make test-all": ""}

#: In the output of a test that has met a mistake which is no working code: it shows nothing of the test.
CANNOT_WORK: Final = re.compile(r"^E +(?:NameError|UnboundLocalError):", re.MULTILINE)

#: So many of them `make test` has to notice.
ENOUGH: Final = 0.9

#: Name, file of the package, right code, which is there once, wrong code, and the tests that have to notice it.
ROWS: Final = (
    (
        "a guarded write does not name the lock",
        "_io/protocol.py",
        "FENCE: Final = OWN_ENTRY + Clause(_LATEST) + NO_INTENT",
        "FENCE: Final = NO_INTENT",
        "integration/writes/test_guarded_writes.py",
    ),
    (
        "text for a binary value is sent as it is",
        "_io/client.py",
        "is_binary = '\"B\": ' in text or '\"BS\": ' in text",
        "is_binary = False",
        "unit/io/test_request_bodies.py",
    ),
    (
        "a time that was given as text is sent as text",
        "_io/client.py",
        'if shape is None or "ReturnConsumedCapacity" not in shape.members:',
        "if shape is None:",
        "unit/io/test_request_bodies.py",
    ),
    (
        "a number of a write is used twice",
        "_io/protocol.py",
        '_LATEST: Final = "#l.#q.#me[1].#w < :write"',
        '_LATEST: Final = "#l.#q.#me[1].#w <= :write"',
        "integration/writes/test_lost_responses.py::test_guarded_writes",
    ),
    (
        "a write from outside does not ask for intents",
        "_io/protocol.py",
        "NOT_LOCKED: Final = Clause(_FREE) + NO_INTENT",
        "NOT_LOCKED: Final = Clause(_FREE) + KNOWN_FORMAT",
        "integration/transactions/test_marks.py",
    ),
    (
        "the version is not checked",
        "_items/versions.py",
        "if path is None or not self.is_checked:",
        "if path is None or self.is_checked:",
        "integration/models/test_versions.py",
    ),
    (
        "a lost answer is taken for a refusal",
        "_core/dynamodb.py",
        "answer is not Answer.UNANSWERED and not",
        "not",
        "unit/core/test_dynamodb_retries.py",
    ),
    (
        "an absent entry counts as lost",
        "_core/lock_queue.py",
        "return MissingEntry.UNKNOWN if in_doubt else",
        "return",
        "unit/core/test_lock_queue_ownership.py",
    ),
    (
        "a lease is renewed after its end",
        "_locks/heartbeat.py",
        "return next_renewal(started, lease)",
        "return started + 2 * lease",
        "unit/locks/test_heartbeat.py",
    ),
    (
        "an eviction does not wait for a whole lease",
        "_core/lease.py",
        "now - since >= lease * (1 + RATE_MARGIN)",
        "now - since >= lease * (1 - RATE_MARGIN)",
        "unit/core/test_lease.py",
    ),
    (
        "a waiter waits too long",
        "_locks/acquire.py",
        "monotonic() + options.wait",
        "monotonic() + 2 * options.wait",
        "unit/testing/test_clock.py::test_a_bounded_wait_ends_in_time",
    ),
    (
        "locked ranges include their upper end",
        "_core/lock_modes.py",
        "order(bound) < order(other)",
        "order(bound) <= order(other)",
        "unit/core/test_lock_modes.py",
    ),
    (
        "intervals include their end",
        "_intervals/intervals.py",
        "None or lower < upper",
        "None or lower <= upper",
        "unit/intervals/test_intervals.py",
    ),
    (
        "the intent of an aborted transaction stays",
        "_io/write_intents.py",
        "        drop(row, intent)",
        "        pass",
        "integration/transactions/test_leftovers.py",
    ),
    (
        "a committed result leaves the error of an earlier call",
        "_recipes/idempotency.py",
        "actions: list[Action] = [table.error.remove()]",
        "actions: list[Action] = []",
        "integration/recipes/test_idempotent.py::test_a_committed_result_replaces_an_error_that_is_no_longer_kept",
    ),
    (
        "a write that is sent alone is at rest",
        "_models/batch_writes.py",
        "self._at_rest.difference_update(group)",
        "pass",
        "integration/models/test_batches_by_statements.py::test_a_write_that_was_left_under_way_is_in_doubt",
    ),
    (
        "the row of a unique value keeps its old expiry",
        "_writes/unique_rows.py",
        "row.expires = None if expires is None",
        "row.expires = row.expires if expires is None",
        "integration/unique/test_faults.py::test_what_a_long_transaction_makes_lasting_is_not_free_again",
    ),
    (
        "an earlier doubt is forgotten",
        "_core/dynamodb.py",
        "self.in_doubt = self.in_doubt or was_repeated",
        "self.in_doubt = was_repeated",
        "integration/unique/test_faults.py::test_a_copy_without_an_answer_is_not_forgotten_when_the_next_is_throttled",
    ),
    (
        "a program that was ended counts as a success",
        "cli/run.py",
        "has_succeeded=code == 0 and why_lost is None",
        "has_succeeded=code == 0",
        "integration/cli/test_run_once.py::test_a_program_that_was_ended_does_not_count",
    ),
    (
        "a release without an answer is not noted",
        "_locks/release.py",
        "_unfinished.update(dict.fromkeys(entry_ids, row))",
        "pass",
        "integration/locks/test_interrupts.py::test_a_release_without_an_answer_is_made_up_for_at_the_end_of_the_process",
    ),
    (
        "only the first item of a transaction meets a locked range",
        "_writes/native_transaction.py",
        "setdefault(foreign_check.row.identity, foreign_check).join(foreign_check)",
        "setdefault(foreign_check.row.identity, foreign_check)",
        "integration/intervals/test_enforced_ranges.py::test_each_item_of_a_transaction_meets_a_locked_range",
    ),
    (
        "a record is kept after a later read",
        "_models/isolation.py",
        "self._records.clear()",
        "pass",
        "integration/models/test_reading.py::test_a_header_is_as_new_as_the_item_that_is_judged_by_it",
    ),
    (
        "a get under the lock is eventually consistent",
        "_models/reads.py",
        "range_key, consistent_read or target is not None, names",
        "range_key, consistent_read, names",
        "integration/models/test_reading.py::test_reads_inside_a_lock_are_consistent",
    ),
    (
        "a result of a transaction is kept as long as a row of a lock",
        "_recipes/idempotency.py",
        "self._terms.kept_s + IDLE_TTL_S)))",
        "IDLE_TTL_S)))",
        "integration/recipes/test_idempotent.py::test_effect_and_result_are_committed_together",
    ),
    (
        "a later wish replaces the first",
        "_recipes/leader_election.py",
        "self.wish = self.wish or wish",
        "self.wish = wish",
        "integration/recipes/test_leader_election.py::test_work_that_has_failed_and_is_told_to_resign_has_failed",
    ),
    (
        "a row of a unique value does not expire with its item",
        "_models/unique_audit.py",
        "row.to = Holder(table, key, expiry.time_in(image, self._expires))",
        "row.to = Holder(table, key)",
        "integration/unique/test_repair.py::test_a_row_expires_with_its_item",
    ),
    (
        "a refused row of another item settles a doubt",
        "_writes/send.py",
        "is_open = in_doubt and not is_final",
        "is_open = False",
        "integration/unique/test_faults.py::test_a_refused_row_says_nothing_of_an_earlier_copy",
    ),
    (
        "a token that was used before tells of another call",
        "_writes/send.py",
        "if outcome is Outcome.APPLIED and (in_doubt or not work.is_named):",
        "if outcome is Outcome.APPLIED:",
        "integration/writes/test_rows_together.py::test_a_token_that_the_caller_has_used_before_does_not_tell_of_another_call",
    ),
    (
        "any row that was not refused tells that nothing was written",
        "_writes/send.py",
        "return self.check is not None or (self.is_traced and is_checked)",
        "return True",
        "integration/writes/test_rows_together.py::test_a_check_that_is_met_again_does_not_tell_that_nothing_was_written",
    ),
    (
        "an absent item tells that a transaction was applied",
        "_writes/send.py",
        "if outcome is Outcome.APPLIED and refusal.image is None and row is not work.item:",
        "if outcome is None:",
        "integration/writes/test_rows_together.py::test_the_decision_of_a_long_transaction_is_not_told_by_an_absent_item",
    ),
    (
        "what is locked needs no version",
        "_models/attributes.py",
        "if is_locked and not cls._lock_creates_item and version_name_of(cls) is None:",
        "if False:",
        "unit/models/test_mixins.py::test_what_is_locked_has_a_version",
    ),
    (
        "the look for a lost write is eventually consistent",
        "_writes/send.py",
        '"Key": made["Key"], "ConsistentRead": True}',
        '"Key": made["Key"]}',
        "integration/writes/test_write_ids.py::test_a_lost_request_to_count_is_not_sent_again",
    ),
    (
        "a savepoint keeps a condition",
        "_transactions/item.py",
        "        self.plan = Plan(self.base)\n        self.instances.reset",
        "        self.plan = Plan(self.base, condition=self.plan.condition)\n        self.instances.reset",
        "integration/transactions/test_copies.py::test_a_rollback_to_a_savepoint_forgets_the_condition_of_a_write",
    ),
    (
        "a check after a write does not count",
        "_transactions/plan.py",
        "write = write.but(condition=conditions.both(write.condition, condition))\n        return self",
        "pass\n        return self",
        "integration/transactions/test_operations.py::test_a_check_after_a_write_adds_its_condition",
    ),
    (
        "an expiry is not moved by a second suspension",
        "_transactions/suspension.py",
        ", Place(expires).set(Stored(number(expiry_s)))]",
        "] + ([Place(expires).set(Stored(number(expiry_s)))] if resumed is None else [])",
        "integration/transactions/test_suspension.py::test_a_transaction_that_is_suspended_again_is_kept_for_as_long_again",
    ),
    (
        "a record that is given up keeps its content",
        "_io/protocol.py",
        'set_="#expires = :ends, #f = :format", remove="#content", add=',
        'set_="#expires = :ends, #f = :format", add=',
        "integration/transactions/test_fates.py::test_a_key_that_has_expired_and_is_given_up_is_free",
    ),
    (
        "a watch that has seen broken locks succeeds",
        "cli/locks.py",
        '    return Exit.NO if last["unreadable"] else Exit.OK',
        "    return Exit.OK",
        "integration/cli/test_hostile.py::test_a_watch_that_has_seen_broken_locks_ends_with_1",
    ),
    (
        "a third attempt forgets the first",
        "_transactions/transaction_doors.py",
        "earlier = (*options.earlier, transaction.id)",
        "earlier = (transaction.id,)",
        "integration/transactions/test_fates.py::test_a_repeated_function_is_asked_for_as_a_whole",
    ),
    (
        "a reset keeps the connection to the old place",
        "contrib/_frameworks.py",
        "            set_connection(model, None)\n",
        "            pass\n",
        "unit/contrib/test_frameworks_settings.py::test_a_model_that_was_used_is_moved_after_a_reset",
    ),
    (
        "If-None-Match: * counts for POST only",
        "contrib/_frameworks.py",
        'if environ.get("REQUEST_METHOD") not in ("GET", "HEAD") and',
        'if environ.get("REQUEST_METHOD") == "POST" and',
        "integration/contrib/test_frameworks.py::test_an_account_is_opened_twice",
    ),
    (
        "a database that does not answer is not logged",
        "contrib/_frameworks.py",
        "found.status in (500, 503)",
        "found.status == 500",
        "integration/contrib/test_frameworks.py::test_errors_that_are_no_ordinary_conflict",
    ),
    (
        "a holder whose renewal is late is taken for dead",
        "contrib/_frameworks.py",
        "holder.age < holder.lease / 2",
        "holder.age < holder.lease / 3",
        "unit/contrib/test_frameworks_http.py::test_when_to_try_again",
    ),
    (
        "304 for the answer to a write",
        "contrib/starlette.py",
        'is_read = request.method in ("GET", "HEAD")',
        "is_read = True",
        "integration/contrib/test_frameworks.py::test_an_account_that_is_to_be_created_or_nothing",
    ),
    (
        "only the first line of If-Match is read",
        "contrib/_frameworks.py",
        '", ".join(lines)',
        "lines[0]",
        "integration/contrib/test_fastapi.py::test_a_mounted_application",
    ),
    (
        "every second lock of a rolled back savepoint stays",
        "contrib/django/sql.py",
        "for lock in reversed(tuple(held)):",
        "for lock in held:",
        "integration/contrib/test_django.py::test_several_locks_of_a_savepoint_that_rolls_back",
    ),
    (
        "a lease that is nearly over is not renewed before the commit",
        "contrib/django/sql.py",
        "entry.lease / 2)",
        "entry.lease / 20)",
        "integration/contrib/test_django.py::test_a_lease_that_is_half_over_is_renewed_before_the_commit",
    ),
    (
        "a check of leases forgets the first attempt",
        "contrib/django/apps.py",
        "(meta.max_retry_attempts + 1)",
        "meta.max_retry_attempts",
        "integration/contrib/test_django.py::test_the_checks",
    ),
    (
        "the claim of a retry is not stored",
        "contrib/celery.py",
        "            lock.item.save()\n",
        "            pass\n",
        "unit/contrib/test_celery.py::test_a_message_whose_run_was_cut_off_runs_again",
    ),
    (
        "who waited is said to have held the lock",
        "cli/locks.py",
        'return "held it" if role == "holds" else "waited", entry',
        'return "held it", entry',
        "integration/cli/test_commands.py::test_break_an_item_or_who_waits",
    ),
    (
        "tables are created although one has other keys",
        "cli/tables.py",
        "if any(has_other_keys(model) for model in there):",
        "if any(has_other_keys(model) for model in there[:1]):",
        "integration/cli/test_commands.py::test_a_table_of_other_keys_among_others",
    ),
    (
        "a result that was said counts for a day, whatever was asked for",
        "cli/calls.py",
        "table.settle(key, value, expires_after=expires_after)",
        "table.settle(key, value, expires_after=86_400.0)",
        "integration/cli/test_commands.py::test_for_how_long_a_result_that_was_said_counts",
    ),
    (
        "named models keep the settings of a command",
        "cli/session.py",
        '            ends.callback(setattr, each, "Meta", each.Meta)\n',
        "",
        "integration/cli/test_commands.py::test_the_settings_are_those_of_named_models_as_well",
    ),
    (
        "placeholders leave no room for the check of the record",
        "_core/transactions.py",
        "return _packed(sizes, dynamodb.MOST_BYTES, dynamodb.MOST_ACTIONS - 1)",
        "return _packed(sizes, dynamodb.MOST_BYTES, dynamodb.MOST_ACTIONS)",
        "unit/core/test_transactions_commit_paths.py::test_a_request_for_placeholders_checks_the_record_too",
    ),
    (
        "an idempotency key is kept for as long as a record",
        "_io/transaction_record.py",
        'content, ends = {"id": {"S": transaction_id}}, record_table.ends(record_table.keep.keep_keys_s)',
        'content, ends = {"id": {"S": transaction_id}}, record_table.ends(record_table.keep.keep_finished_s)',
        "integration/transactions/test_fates.py::test_a_key_is_known_for_as_long_as_the_table_says",
    ),
    (
        "a record is believed for as long as a key",
        "_transactions/commit.py",
        "if _may_have_expired(since, table.keep.keep_finished_s):",
        "if _may_have_expired(since, table.keep.keep_keys_s):",
        "integration/transactions/test_fates.py::test_a_record_proves_nothing_once_it_may_have_expired",
    ),
    (
        "a missing record says that nothing was written",
        "_transactions/commit.py",
        'return "not applied" if stored.priority else "unknown"',
        'return "not applied"',
        "integration/transactions/test_fates.py::test_a_header_that_has_expired_proves_nothing",
    ),
    (
        "a record is not counted as an action",
        "_core/transactions.py",
        "if len(items) + extra + record <= dynamodb.MOST_ACTIONS and fits:",
        "if len(items) + extra <= dynamodb.MOST_ACTIONS and fits:",
        "integration/transactions/test_fates.py::test_a_record_is_an_action_too",
    ),
    (
        "a sweep counts from the end of the lease",
        "_transactions/recovery.py",
        'return "" if record.renewed_ms > last_ms else',
        'return "" if record.until_ms > last_ms else',
        "integration/transactions/test_fates.py::test_a_sweep_leaves_the_young_alone",
    ),
    (
        "a transaction hands out an instance of the class that was read first",
        "_transactions/items.py",
        "return shared_as(model, item.instance, ",
        "return (lambda _, found, *__: found)(model, item.instance, ",
        "integration/whole/test_two_classes.py::test_an_item_of_a_transaction_has_one_class",
    ),
    (
        "an inner block gets an instance of the class of the outer one",
        "_locks/held_lock.py",
        "return shared_as(target.model, current, ",
        "return (lambda _, found, *__: found)(target.model, current, ",
        "integration/whole/test_two_classes.py::test_the_blocks_of_a_lock_have_one_class",
    ),
    (
        "a method that wraps one of ours passes for ours",
        "_models/attributes.py",
        "return function not in _our_writes",
        "return not _is_ours(function.__module__)",
        "integration/whole/test_own_saves.py::test_a_method_of_its_own_is_called_or_refused",
    ),
    (
        "an instance of a repeated transaction can be saved",
        "_transactions/transaction.py",
        "item.mark_stale(is_saved=self.is_repeated)",
        "item.mark_stale(is_saved=False)",
        "integration/transactions/test_options.py::test_an_instance_does_not_carry_out_what_was_done_before",
    ),
    (
        "a combined function that rolls back is believed",
        "_transactions/begin.py",
        "if member is not None and is_over(self.begun):",
        "if False:",
        "integration/transactions/test_group_commit.py::test_what_is_returned_after_a_rollback_is_believed_as_an_error_is",
    ),
    (
        "a condition of one of a group is not asked",
        "_transactions/group.py",
        "(plan.write is None or plan.is_checked) and item.holds(item.stored or None)",
        "(plan.write is None or plan.is_checked)",
        "integration/transactions/test_group_commit.py::test_a_false_condition_is_of_its_own_caller",
    ),
    (
        "a group does not wait for the ones it builds on",
        "_transactions/group.py",
        "earlier = next((each for each in self.before if not each.is_over), None)",
        "earlier = None",
        "integration/transactions/test_group_commit.py::test_callers_commit_together_and_each_has_read_what_those_before_it_leave",
    ),
    (
        "one joins a group past a member that was interrupted as it joined",
        "_transactions/group.py",
        "last.item.model is not one.item.model or _is_behind(one.item, self):",
        "last.item.model is not one.item.model:",
        "integration/transactions/test_group_commit.py::test_an_interrupt_at_any_moment",
    ),
    (
        "a child waits for the groups of its parent",
        "_transactions/group.py",
        "_mutex, under_way = runtime.current.mutex(), {}",
        "_mutex = runtime.current.mutex()",
        "integration/transactions/test_group_commit.py::test_a_fork_while_a_group_is_under_way",
    ),
    (
        "a key is known for a second too long",
        "_io/transaction_record.py",
        "return None if ends_s <= runtime.current.time_ms() // 1000 else",
        "return None if ends_s < runtime.current.time_ms() // 1000 else",
        "integration/transactions/test_options.py::test_an_idempotency_key_lives_for_a_day",
    ),
    (
        "the lock of a retry is not for what only the decision refused",
        "_transactions/commit.py",
        "return [*(one.item for one in self._intent_writes if one.is_contended), *decided]",
        "return [one.item for one in self._intent_writes if one.is_contended]",
        "integration/transactions/test_locked_items.py::test_a_lock_that_only_helps_the_retry_may_be_lost",
    ),
    (
        "a refusal after a throttled request forgets that an earlier one had no answer",
        "_io/client.py",
        "in_doubt = in_doubt or responses.is_ambiguous(error.cause)",
        "in_doubt = responses.is_ambiguous(error.cause)",
        "integration/locks/test_detached.py::test_a_release_in_doubt_that_is_throttled_and_then_refused_is_no_loss",
    ),
    (
        "only the last attempt before a refusal counts as one that may have been applied",
        "_io/client.py",
        "for attempt in attempts[:-1])",
        "for attempt in attempts[-2:-1])",
        "integration/locks/test_entering.py::test_a_delete_in_doubt_that_is_throttled_and_then_refused_was_applied",
    ),
    (
        "a throttled request to enter takes back the doubt of an earlier one",
        "_locks/acquire.py",
        "is_ambiguous(error.cause):\n                self._entry = before",
        "is_ambiguous(error.cause):\n                self._entry = before._replace(may_be_stored=False)",
        "integration/locks/test_entering.py::test_an_entry_in_doubt_is_removed_though_the_next_copies_are_throttled",
    ),
    (
        "the lease of a waiter counts from the answer to its renewal",
        "_locks/acquire.py",
        "_replace(started=started)\n        local_queue.note_alive(self._caller, started, h",
        "_replace(started=runtime.current.monotonic())\n        local_queue.note_alive(self._caller, started, h",
        "integration/locks/test_locks.py::test_the_lease_of_a_waiter_counts_from_before_its_renewal",
    ),
    (
        "no thread goes on with a release that had no answer",
        "_locks/release.py",
        'has no answer; a thread goes on with it: %s", row.label, error)\n        remove_entry_later(row, entry_id)',
        'has no answer; a thread goes on with it: %s", row.label, error)',
        "integration/locks/test_leaving.py::test_a_release_without_any_answer_is_gone_on_with",
    ),
    (
        "a holder takes its id under another ticket for its lock",
        "_locks/held_lock.py",
        "if state.find(held.entry.id, held.entry.ticket) is None:",
        "if state.find(held.entry.id) is None:",
        "integration/locks/test_entering.py::test_a_late_copy_of_the_request_to_enter_does_not_bring_a_lost_lock_back",
    ),
    (
        "a hand-over does not prolong the row of a named lock",
        "_io/lock_requests.py",
        "    return _timed(row, clause, given, new.lease)",
        "    return clause, given",
        "integration/locks/test_cohorts.py::test_a_row_outlives_the_lease_of_a_caller_that_was_handed_its_lock",
    ),
    (
        "what was granted to a task belongs to the thread of its last request",
        "_locks/lock.py",
        "        held.thread_or_task = thread_or_task  # not this thread, which has made the last request\n",
        "",
        "integration/locks/test_locks.py::test_the_same_party_enters_again_with_the_same_ticket",
    ),
    (
        "an inner block is given the instance that a lock handed out the last time it was held",
        "_locks/lock.py",
        "        if self.depth == 1:\n            self._given = None\n",
        "",
        "integration/locks/test_nested.py::test_a_lock_that_is_taken_again_reads_again",
    ),
    (
        "max_hold counts from the last renewal before the grant",
        "_locks/acquire.py",
        "held.clock.ends_at = runtime.current.monotonic() +",
        "held.clock.ends_at = self._entry.started +",
        "integration/locks/test_longest_hold.py::test_it_counts_from_the_grant",
    ),
    (
        "a refresh leaves an instance read in part",
        "_items/versions.py",
        "lacking=(), part=None, was_read=True)",
        "lacking=(), was_read=True)",
        "integration/models/test_reading.py::test_what_was_read_in_part_is_saved_after_a_refresh",
    ),
    (
        "batch_get forgets that it read in part",
        "_models/reads.py",
        "            versions.read_in_part(item, part)\n            for item in found",
        "            item\n            for item in found",
        "integration/models/test_reading.py::test_every_read_in_part_is_noted",
    ),
    (
        "items of an index count as whole",
        "_models/reads.py",
        "part = expiry.projected(cls, index_name) if asked is None else _whole_names(asked)",
        "part = None if asked is None else _whole_names(asked)",
        "integration/models/test_reading.py::test_every_read_in_part_is_noted",
    ),
    (
        "a refresh under a lock takes the notes of the other instance",
        "_items/versions.py",
        "vars(target)[_SLOT] = _state_of(source)._replace(notes=_state_of(target).notes)",
        "vars(target)[_SLOT] = _state_of(source)",
        "integration/models/test_reading.py::test_a_refresh_inside_a_lock_leaves_the_item_in_its_transaction",
    ),
    (
        "a refreshed instance still belongs to a lost lock",
        "_models/writes.py",
        "if held is not None and not held.ownership.is_held:",
        "if held is not None and held.ownership.is_held:",
        "integration/models/test_reading.py::test_an_item_of_a_lock_that_was_lost_is_saved_after_a_refresh",
    ),
    (
        "get_or_create reads what another caller created from a replica",
        "_models/writes.py",
        "            with suppress(DoesNotExist):\n                return cls.get(hash_key, range_key, consistent_read=True), False",  # noqa: E501 - the code as it stands
        "            with suppress(DoesNotExist):\n                return cls.get(hash_key, range_key), False",
        "integration/models/test_get_or_create.py::test_what_another_caller_has_created_is_read_consistently",
    ),
    (
        "an unguarded batch keeps the old write id",
        "_models/writes.py",
        "        versions.note_written(put_item, None)  # the stored item will have no write id\n",
        "",
        "integration/models/test_versioned_api.py::test_what_an_unguarded_batch_has_stored_can_be_saved",
    ),
    (
        "an element of a list can be removed twice",
        "_items/conditions.py",
        "not any(isinstance(step, int) for step in path_of(action))\n        and (",
        "True\n        and (",
        "integration/models/test_versioned_api.py::test_an_update_of_an_element_whose_answer_is_lost_is_sent_once",
    ),
    (
        "a transaction checks one copy and writes another",
        "_models/batch_writes.py",
        "            _check_same_copy(written, write)\n            return\n",
        "            return\n",
        "integration/models/test_versioned_api.py::test_two_copies_of_an_item_in_one_transaction",
    ),
    (
        "a repair gives the value of an expired item a row",
        "_models/unique_audit.py",
        "if image is not None and not self._is_over(image) and name in unique_values.held(self._model, image)\n            ]",  # noqa: E501 - the code as it stands
        "if image is not None and name in unique_values.held(self._model, image)\n            ]",
        "integration/unique/test_repair.py::test_a_row_is_not_given_to_an_item_that_has_expired",
    ),
    (
        "whether a table is empty is asked of a replica",
        "_models/tables.py",
        '"Limit": 1, "ConsistentRead": True}',
        '"Limit": 1}',
        "integration/models/test_own_tables.py::test_items_of_others",
    ),
    (
        "a mark names the table without the prefix",
        "_core/row_keys.py",
        'return f"{table}#{self.prefix}" if self.is_shared else table',
        "return table",
        "integration/models/test_shared_tables.py::test_a_mark_of_another_prefix_is_not_judged",
    ),
    (
        "a scan shows the rows of a longer prefix",
        "_models/tables.py",
        'found = [image for image in answer["Items"] if self.own_keys.name_in(image) is not None]',
        'found = answer["Items"]',
        "integration/models/test_shared_tables.py::test_prefixes_of_which_one_begins_the_other",
    ),
    (
        "a write gives up values that its instance does not show",
        "_writes/unique_rows.py",
        "return whole if self._old else versions.shape_of(self._model).or_expired(whole)",
        "return None",
        "integration/unique/test_unique.py::test_a_copy_that_was_read_in_part",
    ),
    (
        "a new item cannot replace an expired one that had a unique value",
        "_writes/unique_rows.py",
        "return whole if self._old else versions.shape_of(self._model).or_expired(whole)",
        "return whole",
        "integration/unique/test_faults.py::test_what_has_expired_holds_nothing",
    ),
    (
        "a write without a check of the version takes a unique value",
        "_writes/unique_rows.py",
        "    if not checks_version:\n",
        "    if False:\n",
        "integration/unique/test_unique.py::test_a_write_that_does_not_check_the_version_is_refused",
    ),
    (
        "the own row of a copy is taken for another item's",
        "_writes/unique_rows.py",
        "        free: Condition = Place(hash_attribute_of(self.table).attr_name).does_not_exist()\n        for holder in [*self.of, *([] if self.to is None else [self.to])]:",  # noqa: E501 - the code as it stands
        "        free: Condition = Place(hash_attribute_of(self.table).attr_name).does_not_exist()\n        for holder in self.of:",  # noqa: E501 - the code as it stands
        "integration/unique/test_faults.py::test_what_has_expired_holds_nothing",
    ),
    (
        "a save after a delete under the lock leaves the item noted as deleted",
        "_writes/writer.py",
        "self._note_deleted(is_deleted=False)",
        "pass",
        "integration/models/test_edit.py::test_an_edit_saves_what_its_block_has_deleted_and_saved_again",
    ),
    (
        "a condition of a new item in a batch is dropped",
        "_writes/writer.py",
        "    if not expiry.holds_without_item(write.condition):\n        return None\n    kwargs",
        "    kwargs",
        "integration/writes/test_guarded_writes.py::test_a_false_condition_refuses_a_new_item_of_a_batch",
    ),
    (
        "an instance that could not be read after its update is not old",
        "_writes/writer.py",
        "            write.note_stored()\n            versions.mark_stale(self.item)\n",
        "            write.note_stored()\n",
        "integration/writes/test_lost_responses.py::test_an_update_beside_that_cannot_be_read_afterwards",
    ),
    (
        "a renumbered action of a transaction has the key of the instance by now",
        "_writes/send.py",
        '            kwargs.update({part: before[part] for part in ("Key", "Item") if part in kwargs})\n',
        "            pass\n",
        "integration/writes/test_copies.py::test_an_item_that_gets_another_key_before_the_commit_is_the_one_that_was_given",
    ),
    (
        "the commit gives back the lock of an outer block",
        "_transactions/items.py",
        "                if held.depth == times:\n",
        "                if held.depth:\n",
        "integration/transactions/test_last_writes.py::test_the_lock_of_an_outer_block_stays",
    ),
    (
        "a task acquires again what the commit of another task gives back",
        "_transactions/items.py",
        "                    held.thread_or_task = runtime.current.thread_or_task()\n",
        "",
        "integration/transactions/test_last_writes.py::test_a_task_does_not_acquire_again_what_may_be_gone",
    ),
    (
        "a thread acquires again what a commit has begun to give back",
        "_locks/lock.py",
        "if not held.depth or held.thread_or_task != here:",
        "if not held.depth:",
        "integration/transactions/test_last_writes.py::test_a_commit_that_begins_while_the_lock_is_acquired_again",
    ),
    (
        "a commit of one item leaves its entry to a release",
        "_transactions/commit.py",
        "if writer.held in self.last_under and sent.kind is EntryEffect.KEEP:",
        "if False:",
        "integration/transactions/test_last_writes.py::test_one_item_is_given_back_by_its_write",
    ),
    (
        "a renewal takes what a commit has removed for lost",
        "_writes/native_transaction.py",
        "                writing.enter_context(held.removing())\n",
        "                pass\n",
        "integration/transactions/test_last_writes.py::test_a_renewal_that_finds_the_entry_gone_has_lost_nothing",
    ),
    (
        "what a commit has removed is released once more",
        "_writes/native_transaction.py",
        "for held in (*self.deleted_locks, *self.removed):",
        "for held in self.deleted_locks:",
        "integration/transactions/test_last_writes.py::test_two_items_are_given_back_by_their_native_transaction",
    ),
    (
        "each lock that a commit gives back tells what the whole commit has consumed",
        "_writes/native_transaction.py",
        "        with event_stream.scope(keeps=False):",
        "        if True:",
        "integration/transactions/test_last_writes.py::test_listeners_hear_of_each_release",
    ),
    (
        "who waits in another process is not called unless it is known",
        "_locks/held_lock.py",
        "            wakeups.call_next(held.row)",
        "            pass",
        "integration/locks/test_local_wakeups.py::test_a_commit_wakes_the_waiter_of_another_process",
    ),
    (
        "a wake-up that names only a lock wakes nobody",
        "_io/wakeups.py",
        "        _wake_first(named, None)\n",
        "",
        "unit/io/test_wakeups.py::test_a_call_wakes_who_may_be_next",
    ),
    (
        "a delete takes the lock in its own row along",
        "_writes/writer.py",
        "        if self.held is not None and not self.is_embedded:\n            write = write.but(kind=EntryEffect.KEEP)\n",  # noqa: E501 - the code as it stands
        "",
        "integration/writes/test_guarded_writes.py::test_a_delete_keeps_the_lock_that_is_in_its_own_row",
    ),
    (
        "the sign of a number has no size",
        "_core/values.py",
        ' + (text[0] == "-")',
        "",
        "unit/testing/test_memory_refusals.py::test_the_sign_of_a_number_takes_a_byte",
    ),
    (
        "another attempt of a write that can be applied twice has the same id",
        "_writes/send.py",
        "if self.once and how is Next.REPEAT:",
        "if self.once and how is Next.AGAIN:",
        "integration/writes/test_write_ids.py::test_what_can_be_applied_twice_has_an_id_for_each_attempt",
    ),
    (
        "a locked item tells that a request without an answer was not applied",
        "_writes/write.py",
        "        except (Conflict, LockLost):",
        "        except LockLost:",
        "integration/writes/test_resolving.py::test_while_the_item_is_locked_it_is_not_to_be_known",
    ),
    (
        "an update that PynamoDB's TransactWrite sends does not make the copy old",
        "_models/writes.py",
        "        versions.note_update(self)  # PynamoDB will give it",
        "        # PynamoDB will give it",
        "integration/models/test_transact_write.py::test_ours_save_after_a_transaction_needs_a_refresh",
    ),
    (
        "levels of a value are not counted below the path that it is put at",
        "_core/values.py",
        "            check_levels(inner, depth + 1)",
        "            check_levels(inner, depth)",
        "unit/testing/test_memory_refusals.py::test_maps_are_counted_through_the_path_that_they_are_put_at",
    ),
    (
        "a long name of wide characters is not measured",
        "_core/values.py",
        "if len(name) > _LONGEST_NAME // 4 and",
        "if len(name) > _LONGEST_NAME // 2 and",
        "unit/core/test_dynamodb_limits.py::test_the_words",
    ),
    (
        "a stored format of 0 is believed",
        "_io/stored_rows.py",
        "FORMATS: Final = whole_within(1)",
        "FORMATS: Final = whole_within(0)",
        "integration/whole/test_broken_rows.py::test_a_format_that_no_release_stores",
    ),
    (
        "a row that ends where a look begins hides those behind it",
        "_intervals/queries.py",
        "path < edge if interval.is_by_begin else path > edge",
        "path < edge if interval.is_by_begin else path >= edge",
        "integration/intervals/test_intervals.py::test_the_end_may_be_the_range_key",
    ),
    (
        "an expired row counts as what an earlier call has stored",
        "_intervals/guards.py",
        "if image is None or versions.shape_of(model).is_expired(image):",
        "if image is None:",
        "integration/intervals/test_doubts.py::test_a_row_in_doubt_that_has_expired_is_stored_anew",
    ),
    (
        "an item that is locked is tried again",
        "_intervals/disjoint_writes.py",
        "error is self._refused or isinstance(error, ItemLocked)",
        "error is self._refused",
        "integration/intervals/test_races.py::test_a_locked_row_is_no_reason_to_try_again",
    ),
    (
        "an expired row that TTL deletes first ends an insert",
        "_intervals/guards.py",
        "            self.has_cleared = True",
        "            self.has_cleared = False",
        "integration/intervals/test_races.py::test_an_expired_row_that_ttl_deletes_first_is_no_reason_to_give_up",
    ),
    (
        "an earlier doubt is forgotten for another one",
        "_intervals/placings.py",
        "UnknownPlacements((*unsure_of(placing.row), unknown))",
        "UnknownPlacements((unknown,))",
        "integration/intervals/test_doubts.py::test_a_doubt_is_not_forgotten_for_another_one",
    ),
    (
        "a settled result is kept a day, whatever is said",
        "_recipes/idempotency.py",
        "call = cls.call(key, payload=payload, expires_after=expires_after, serializer=serializer)",
        "call = cls.call(key, payload=payload, serializer=serializer)",
        "integration/recipes/test_idempotent.py::test_a_settled_result_is_kept_as_long_as_it_counts",
    ),
    (
        "a settled result does not go through the serializer",
        "_recipes/idempotency.py",
        "expires_after=expires_after, serializer=serializer)\n        call._encode",
        "expires_after=expires_after)\n        call._encode",
        "integration/recipes/test_idempotent.py::test_a_settled_result_is_stored_by_the_callers_serializer",
    ),
    (
        "a final exception that cannot be stored frees its key",
        "_recipes/idempotency.py",
        "isinstance(error, Exception) and not isinstance(error, self._terms.store_errors)",
        "isinstance(error, Exception)",
        "integration/recipes/test_idempotent.py::test_work_whose_result_was_not_stored_is_not_repeated",
    ),
    (
        "a run is noted as if it began when it ended",
        "_recipes/once.py",
        "held.entry.owner, self._begin_ms, self._began_ms, now_ms",
        "held.entry.owner, self._begin_ms, now_ms, now_ms",
        "integration/recipes/test_once.py::test_at_least",
    ),
    (
        "a period's begin does not count as done",
        "_recipes/once.py",
        "begin_ms <= last.period_ms",
        "begin_ms < last.period_ms",
        "integration/recipes/test_once.py::test_each_period_has_one",
    ),
    (
        "a leader that is stopped stays in the queue",
        "_recipes/leader_election.py",
        "        handle_of(self._candidate).cut_short()\n        self._tell()",
        "        self._tell()",
        "integration/recipes/test_leader_election.py::test_a_campaign_that_waits_is_stopped_at_once",
    ),
    (
        "a recovery is no warning in the log",
        "telemetry/logs.py",
        "    events.TransactionRecovered,\n",
        "",
        "integration/telemetry/test_outputs.py::test_a_recovery_is_a_warning_and_is_counted",
    ),
    (
        "a write in doubt is counted as a conflict",
        "telemetry/opentelemetry.py",
        "(self._instruments.in_doubt if is_in_doubt else self._instruments.conflicts)",
        "self._instruments.conflicts",
        "integration/telemetry/test_outputs.py::test_a_write_in_doubt_is_a_warning_and_no_conflict",
    ),
    (
        "a late renewal counts as one in time",
        "telemetry/opentelemetry.py",
        '"late" if event.is_late else "renewed"',
        '"renewed"',
        "integration/telemetry/test_outputs.py::test_a_late_renewal_is_counted_as_late",
    ),
    (
        "the loss of another lock is no failure of a leader's work",
        "_recipes/leader_election.py",
        "isinstance(error, LockLost) and error.ticket == term.ticket",
        "isinstance(error, LockLost)",
        "integration/recipes/test_leader_election.py::test_work_that_has_lost_another_lock_has_failed",
    ),
    (
        "a stop waits for work that hangs",
        "_recipes/leader_election.py",
        "(self._is_stopping and not lock.is_held)",
        "False",
        "integration/recipes/test_leader_election.py::test_a_stop_waits_for_work_that_hangs_until_its_lock_is_lost",
    ),
    (
        "renewals that need no line are logged as others",
        "telemetry/logs.py",
        "return min(level, logging.DEBUG)",
        "return level",
        "integration/telemetry/test_outputs.py::test_an_outage_is_not_logged_twice",
    ),
    (
        "a write in doubt is no warning in the log",
        "telemetry/logs.py",
        "    events.WriteInDoubt,\n",
        "",
        "integration/telemetry/test_outputs.py::test_a_write_in_doubt_is_a_warning_and_no_conflict",
    ),
    (
        "an owner is logged as it is",
        "telemetry/logs.py",
        "{_words(field.name)} {brief(value)}",
        "{_words(field.name)} {value}",
        "integration/telemetry/test_outputs.py::test_each_event_is_one_record",
    ),
    (
        "recoveries are not counted",
        "telemetry/opentelemetry.py",
        "            self._instruments.recovered.add(1, {**_place_of(event), **about})\n",
        "",
        "integration/telemetry/test_outputs.py::test_a_recovery_is_a_warning_and_is_counted",
    ),
    (
        "units of releases are not counted",
        "telemetry/opentelemetry.py",
        "        else:\n            self._count_units(event)\n        if hold is None:",
        "        if hold is None:",
        "integration/telemetry/test_outputs.py::test_durations_are_seconds",
    ),
    (
        "a lock is given back without its mutex",
        "_locks/lock.py",
        "            with held.counting:\n                # Together",
        "            if True:\n                # Together",
        "integration/locks/test_threads.py::test_a_thread_acquires_again_what_another_one_releases",
    ),
    (
        "what was given up is released",
        "_locks/lock.py",
        "                if not held.ownership.is_over:\n                    held.release()",
        "                held.release()",
        "integration/recipes/test_idempotent.py::test_a_call_that_outlasts_its_lock_is_not_repeated",
    ),
    (
        "a request that ends leaves the count of a Lock object",
        "_locks/inspection.py",
        "handle.depth = min(depth, outer.by_handle.get(handle, 0))",
        "pass",
        "integration/contrib/test_flask.py::test_a_lock_object_that_requests_leave_locked",
    ),
    (
        "a request that ends takes the acquisitions of outer blocks",
        "_locks/inspection.py",
        "handle.depth = min(depth, outer.by_handle.get(handle, 0))",
        "handle.depth = 0",
        "integration/contrib/test_flask.py::test_a_forgotten_acquisition_beside_others_of_the_test",
    ),
    (
        "held locks are those of all providers",
        "telemetry/opentelemetry.py",
        "telemetry is not None and telemetry.meters is self.meters",
        "telemetry is not None",
        "integration/telemetry/test_outputs.py::test_another_provider_counts_what_was_acquired_since",
    ),
    (
        "a wait is recorded in ms",
        "telemetry/opentelemetry.py",
        "wait.record(event.waited_ms / 1000, about)",
        "wait.record(event.waited_ms, about)",
        "integration/telemetry/test_outputs.py::test_the_span_of_a_wait_is_as_long_as_the_wait",
    ),
    (
        "a transaction is recorded in ms",
        "telemetry/opentelemetry.py",
        "transaction.record(event.lasted_ms / 1000, about)",
        "transaction.record(event.lasted_ms, about)",
        "integration/telemetry/test_outputs.py::test_a_transaction_is_a_span",
    ),
    (
        "events of several kinds are equal",
        "_core/events.py",
        "isinstance(other, Event) and type(self) is type(other) and",
        "isinstance(other, Event) and",
        "integration/telemetry/test_events.py::test_events_are_the_same_by_kind_and_facts",
    ),
    (
        "a renewal at the end of its lease is late",
        "_core/events.py",
        "return self.margin_ms < 0",
        "return self.margin_ms <= 0",
        "integration/telemetry/test_events.py::test_a_renewal_is_late_once_the_lease_has_ended",
    ),
    (
        "the name of a guard is too long for a key",
        "_core/row_keys.py",
        "if len(GUARD_PREFIX) + len(name) <= longest:",
        "if len(name) <= longest:",
        "unit/intervals/test_intervals.py::test_names_of_guards_are_no_names_of_items",
    ),
)

MISTAKES: Final = tuple(Mistake(*row) for row in ROWS)


def noticed(mistake: Mistake) -> tuple[str, str]:
    """Return by which command the mistake is noticed, and by which test."""
    with copied(mistake) as folder:
        for command, marks in COMMANDS.items():
            options = ["-q", "-x", "-n", "0", "--no-cov", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", marks]
            run = subprocess.run(
                [sys.executable, "-m", "pytest", *options, f"tests/{mistake.test}"],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(folder)},
            )
            failed = re.search(r"^(?:FAILED|ERROR) \S+/(\S+)\.py::([\w:]+)", run.stdout, re.MULTILINE)
            if failed and not CANNOT_WORK.search(run.stdout):
                return command, "`{}`: `{}`".format(*failed.groups())
            if run.returncode not in (0, 5):  # all passed, or none is of this command
                raise SystemExit(f"{mistake.name}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return "nothing", ""


def main() -> int:
    sys.stdout.write("| mistake | noticed by | test | after |\n|---|---|---|---|\n")
    commands = Counter[str]()
    for mistake in MISTAKES:
        if all(word in mistake.name for word in sys.argv[1:]):
            began = time.perf_counter()
            command, by = noticed(mistake)
            commands[command] += 1
            sys.stdout.write(f"| {mistake.name} | {command} | {by} | {time.perf_counter() - began:.0f} s |\n")
            sys.stdout.flush()
    count = commands.total()
    told = ", ".join(f"{commands[command]} by `{command}`" for command in COMMANDS)
    sys.stdout.write(f"Of {count} mistakes are noticed: {told}, {commands['nothing']} by nothing.\n")
    return int(commands["make test"] < ENOUGH * count)


if __name__ == "__main__":
    sys.exit(main())
