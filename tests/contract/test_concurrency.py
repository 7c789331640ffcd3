"""Each request is atomic, also while other clients write the same item.

moto is not asked: under threads it loses updates and entries, lets two creators in, lets readers see half a
transaction, and now and then raises a RuntimeError ("dictionary changed size during iteration"). None of
that happens every time, so no test can assert it.
"""

from pynamo_locking.certify.contract import concurrency
from tests.contract.asking import asked_at_once

test_enter_gives_every_entry_a_ticket_of_its_own = asked_at_once(
    concurrency.enter_gives_every_entry_a_ticket_of_its_own
)
test_the_bound_of_the_queue_holds = asked_at_once(concurrency.the_bound_of_the_queue_holds)
test_compare_and_set_loses_no_update = asked_at_once(concurrency.compare_and_set_loses_no_update)
test_one_creator = asked_at_once(concurrency.one_creator)
test_transactions_are_isolated = asked_at_once(concurrency.transactions_are_isolated)
