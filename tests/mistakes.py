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
LEFT: Final = "slow or processes or waits or alone or interrupts or other_engine"

#: By which command a mistake is noticed, with the tests that it has.
COMMANDS: Final = {"make test": f"not ({LEFT})", "make test-all": ""}

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
        "the read after a refusal is not consistent",
        "_models/edit.py",
        "is_consistent = self._refusals > 0 or any(",
        "is_consistent = any(",
        "integration/models/test_combining.py::test_after_a_refusal_the_item_is_read_consistently",
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
        "what TTL removes with a mark is a finding",
        "contrib/streams.py",
        "elif change.old is not None and not change.is_by_ttl:",
        "elif change.old is not None:",
        "integration/contrib/test_streams.py::test_what_ttl_removes_with_a_mark_is_no_finding",
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
        "integration/recipes/test_idempotent.py::test_a_result_of_a_transaction_is_kept_as_long_as_it_counts",
    ),
    (
        "a later wish replaces the first",
        "_recipes/leader_election.py",
        "self._wish = self._wish or wish",
        "self._wish = wish",
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
        "a doubt of a transaction is not carried over",
        "_writes/native_transaction.py",
        "                    write.note_doubt()",
        "                    pass",
        "integration/writes/test_in_doubt_under_a_lock.py::test_an_update_in_doubt_by_a_transaction_is_not_undone_by_the_next_save",
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
        "self._forget_change()\n        self.item",
        "kept = self.condition\n        self._forget_change()\n        self.condition = kept\n        self.item",
        "integration/transactions/test_copies.py::test_a_rollback_to_a_savepoint_forgets_the_condition_of_a_write",
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
        "_transactions/transaction.py",
        "earlier = (*options.earlier, transaction.id)",
        "earlier = (transaction.id,)",
        "integration/transactions/test_fates.py::test_a_repeated_function_is_asked_for_as_a_whole",
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
            if failed:
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
