"""Whether the tests notice a mistake of one line: ``python -m tests.mistakes [a word of its name]``.

Each mistake is written into the package in turn, and the line is put back afterwards. What runs until its first failure
are the tests of `make check`, or the one test that is named with the mistake. tests/evidence.md has the table
of the former.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pynamo_locking

PACKAGE: Final = Path(pynamo_locking.__file__).parent


class Mistake(NamedTuple):
    """What is wrong, in which file, the right code, which is there once, and the wrong one.

    `test` is the test that notices it, in `tests/integration`; without one, `make check` has to.
    """

    name: str
    file: str
    right: str
    wrong: str
    test: str = ""


MISTAKES: Final = (
    Mistake(
        "a guarded write does not name the lock",
        "_io/protocol.py",
        "FENCE: Final = OWN_ENTRY + Clause(_LATEST) + NO_INTENT",
        "FENCE: Final = NO_INTENT",
    ),
    Mistake(
        "a number of a write is used twice",
        "_io/protocol.py",
        '_LATEST: Final = "#l.#q.#me[1].#w < :write"',
        '_LATEST: Final = "#l.#q.#me[1].#w <= :write"',
    ),
    Mistake(
        "a write from outside does not ask for intents",
        "_io/protocol.py",
        "NOT_LOCKED: Final = Clause(_FREE) + NO_INTENT",
        "NOT_LOCKED: Final = Clause(_FREE) + KNOWN_FORMAT",
    ),
    Mistake(
        "the version is not checked",
        "_items/versions.py",
        "if path is None or not self.is_checked:",
        "if path is None or self.is_checked:",
    ),
    Mistake(
        "a lost answer is taken for a refusal", "_core/dynamodb.py", "answer is not Answer.UNANSWERED and not", "not"
    ),
    Mistake(
        "an absent entry counts as lost",
        "_core/lock_queue.py",
        "return MissingEntry.UNKNOWN if in_doubt else",
        "return",
    ),
    Mistake(
        "a lease is renewed after its end",
        "_locks/heartbeat.py",
        "return next_renewal(started, lease)",
        "return started + 2 * lease",
    ),
    Mistake(
        "an eviction does not wait for a whole lease",
        "_core/lease.py",
        "now - since >= lease * (1 + RATE_MARGIN)",
        "now - since >= lease * (1 - RATE_MARGIN)",
    ),
    Mistake(
        "a waiter waits too long",
        "_locks/acquire.py",
        "monotonic() + options.wait",
        "monotonic() + 2 * options.wait",
    ),
    Mistake(
        "locked ranges include their upper end",
        "_core/lock_modes.py",
        "order(bound) < order(other)",
        "order(bound) <= order(other)",
    ),
    Mistake(
        "intervals include their end", "_intervals/intervals.py", "None or lower < upper", "None or lower <= upper"
    ),
    Mistake(
        "the intent of an aborted transaction stays",
        "_io/write_intents.py",
        "        drop(row, intent)",
        "        pass",
    ),
    Mistake(
        "a committed result leaves the error of an earlier call",
        "_recipes/idempotency.py",
        "actions: list[Action] = [table.error.remove()]",
        "actions: list[Action] = []",
        "recipes/test_idempotent.py::test_a_committed_result_replaces_an_error_that_is_no_longer_kept",
    ),
    Mistake(
        "the read after a refusal is not consistent",
        "_models/edit.py",
        "is_consistent = self._refusals > 0 or any(",
        "is_consistent = any(",
        "models/test_combining.py::test_after_a_refusal_the_item_is_read_consistently",
    ),
    Mistake(
        "a write that is sent alone is at rest",
        "_models/batch_writes.py",
        "self._at_rest.difference_update(group)",
        "pass",
        "models/test_batches_by_statements.py::test_a_write_that_was_left_under_way_is_in_doubt",
    ),
    Mistake(
        "the row of a unique value keeps its old expiry",
        "_writes/unique_rows.py",
        "row.expires = None if expires is None",
        "row.expires = row.expires if expires is None",
        "unique/test_faults.py::test_what_a_long_transaction_makes_lasting_is_not_free_again",
    ),
    Mistake(
        "an earlier doubt is forgotten",
        "_core/dynamodb.py",
        "self.in_doubt = self.in_doubt or was_repeated",
        "self.in_doubt = was_repeated",
        "unique/test_faults.py::test_a_copy_without_an_answer_is_not_forgotten_when_the_next_is_throttled",
    ),
    Mistake(
        "a program that was ended counts as a success",
        "cli/run.py",
        "has_succeeded=code == 0 and why_lost is None",
        "has_succeeded=code == 0",
        "cli/test_run_once.py::test_a_program_that_was_ended_does_not_count",
    ),
    Mistake(
        "a release without an answer is not noted",
        "_locks/release.py",
        "_unfinished.update(dict.fromkeys(entry_ids, row))",
        "pass",
        "locks/test_interrupts.py::test_a_release_without_an_answer_is_made_up_for_at_the_end_of_the_process",
    ),
    Mistake(
        "what TTL removes with a mark is a finding",
        "contrib/streams.py",
        "elif change.old is not None and not change.is_by_ttl:",
        "elif change.old is not None:",
        "contrib/test_streams.py::test_what_ttl_removes_with_a_mark_is_no_finding",
    ),
    Mistake(
        "only the first item of a transaction meets a locked range",
        "_writes/native_transaction.py",
        "setdefault(foreign_check.row.identity, foreign_check).join(foreign_check)",
        "setdefault(foreign_check.row.identity, foreign_check)",
        "intervals/test_enforced_ranges.py::test_each_item_of_a_transaction_meets_a_locked_range",
    ),
    Mistake(
        "a record is kept after a later read",
        "_models/isolation.py",
        "self._records.clear()",
        "pass",
        "models/test_reading.py::test_a_header_is_as_new_as_the_item_that_is_judged_by_it",
    ),
    Mistake(
        "a get under the lock is eventually consistent",
        "_models/reads.py",
        "range_key, consistent_read or target is not None, names",
        "range_key, consistent_read, names",
        "models/test_reading.py::test_reads_inside_a_lock_are_consistent",
    ),
    Mistake(
        "a result of a transaction is kept as long as a row of a lock",
        "_recipes/idempotency.py",
        "self._terms.kept_s + IDLE_TTL_S)))",
        "IDLE_TTL_S)))",
        "recipes/test_idempotent.py::test_a_result_of_a_transaction_is_kept_as_long_as_it_counts",
    ),
    Mistake(
        "a later wish replaces the first",
        "_recipes/leader_election.py",
        "self._wish = self._wish or wish",
        "self._wish = wish",
        "recipes/test_leader_election.py::test_work_that_has_failed_and_is_told_to_resign_has_failed",
    ),
    Mistake(
        "a row of a unique value does not expire with its item",
        "_models/unique_audit.py",
        "row.to = Holder(table, key, expiry.time_in(image, self._expires))",
        "row.to = Holder(table, key)",
        "unique/test_repair.py::test_a_row_expires_with_its_item",
    ),
    Mistake(
        "a refused row of another item settles a doubt",
        "_writes/send.py",
        "is_open = in_doubt and not is_final",
        "is_open = False",
        "unique/test_faults.py::test_a_refused_row_says_nothing_of_an_earlier_copy",
    ),
    Mistake(
        "a token that was used before tells of another call",
        "_writes/send.py",
        "if outcome is Outcome.APPLIED and (in_doubt or not work.is_named):",
        "if outcome is Outcome.APPLIED:",
        "writes/test_rows_together.py::test_a_token_that_the_caller_has_used_before_does_not_tell_of_another_call",
    ),
    Mistake(
        "any row that was not refused tells that nothing was written",
        "_writes/send.py",
        "return self.check is not None or (self.is_traced and is_checked)",
        "return True",
        "writes/test_rows_together.py::test_a_check_that_is_met_again_does_not_tell_that_nothing_was_written",
    ),
    Mistake(
        "an absent item tells that a transaction was applied",
        "_writes/send.py",
        "if outcome is Outcome.APPLIED and refusal.image is None and row is not work.item:",
        "if outcome is None:",
        "writes/test_rows_together.py::test_the_decision_of_a_long_transaction_is_not_told_by_an_absent_item",
    ),
    Mistake(
        "a doubt of a transaction is not carried over",
        "_writes/native_transaction.py",
        "                    write.note_doubt()",
        "                    pass",
        "writes/test_in_doubt_under_a_lock.py::test_an_update_in_doubt_by_a_transaction_is_not_undone_by_the_next_save",
    ),
    Mistake(
        "the look for a lost write is eventually consistent",
        "_writes/send.py",
        '"Key": made["Key"], "ConsistentRead": True}',
        '"Key": made["Key"]}',
        "writes/test_write_ids.py::test_a_lost_request_to_count_is_not_sent_again",
    ),
    Mistake(
        "a savepoint keeps a condition",
        "_transactions/item.py",
        "self._forget_change()\n        self.item",
        "kept = self.condition\n        self._forget_change()\n        self.condition = kept\n        self.item",
        "transactions/test_copies.py::test_a_rollback_to_a_savepoint_forgets_the_condition_of_a_write",
    ),
    Mistake(
        "an expiry is not moved by a second suspension",
        "_transactions/suspension.py",
        ", Place(expires).set(Stored(number(expiry_s)))]",
        "] + ([Place(expires).set(Stored(number(expiry_s)))] if resumed is None else [])",
        "transactions/test_suspension.py::test_a_transaction_that_is_suspended_again_is_kept_for_as_long_again",
    ),
    Mistake(
        "a record that is given up keeps its content",
        "_io/protocol.py",
        'set_="#expires = :ends, #f = :format", remove="#content", add=',
        'set_="#expires = :ends, #f = :format", add=',
        "transactions/test_fates.py::test_a_key_that_has_expired_and_is_given_up_is_free",
    ),
    Mistake(
        "a watch that has seen broken locks succeeds",
        "cli/locks.py",
        '    return Exit.NO if last["unreadable"] else Exit.OK',
        "    return Exit.OK",
        "cli/test_hostile.py::test_a_watch_that_has_seen_broken_locks_ends_with_1",
    ),
    Mistake(
        "a third attempt forgets the first",
        "_transactions/transaction.py",
        "earlier = (*options.earlier, transaction.id)",
        "earlier = (transaction.id,)",
        "transactions/test_fates.py::test_a_repeated_function_is_asked_for_as_a_whole",
    ),
)


@contextmanager
def planted(mistake: Mistake):
    """Have the mistake in the package for a while."""
    file = PACKAGE / mistake.file
    text = file.read_text()
    assert text.count(mistake.right) == 1, f"{mistake.file} does not have once: {mistake.right}"
    try:
        file.write_text(text.replace(mistake.right, mistake.wrong))
        yield
    finally:
        file.write_text(text)


def noticed(test: str) -> tuple[float, str]:
    """Return after how many seconds the test, or `make check-tests`, was red, and by what."""
    alone = [sys.executable, "-m", "pytest", "--no-cov", "-q", "-x", "-n", "0", f"tests/integration/{test}"]
    began = time.perf_counter()
    run = subprocess.run(
        alone if test else ["make", "check-tests", "ARGS=-x"], check=False, capture_output=True, text=True
    )
    elapsed = time.perf_counter() - began
    if not run.returncode:
        return elapsed, "nothing"
    failed = re.search(r"^(?:FAILED|ERROR) \S+/(\S+)\.py::(\w+)", run.stdout, re.MULTILINE)
    return elapsed, "`{}`: `{}`".format(*failed.groups()) if failed else run.stdout[-400:]


def main() -> None:
    sys.stdout.write("| mistake | red after | by |\n|---|---|---|\n")
    for mistake in MISTAKES:
        if all(word in mistake.name for word in sys.argv[1:]):
            with planted(mistake):
                elapsed, by = noticed(mistake.test)
            sys.stdout.write(f"| {mistake.name} | {elapsed:.0f} s | {by} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
