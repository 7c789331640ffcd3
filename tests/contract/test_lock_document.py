"""Enter, renew, release and evict: one UpdateItem each on the lock map."""

from pynamo_locking.certify.contract import lock_document
from pynamo_locking.certify.contract.requests import RELEASE, names
from tests.contract.asking import asked
from tests.contract.helpers import INVALID, Table, deviates, refused

test_enter_takes_the_old_counter_as_ticket = asked(lock_document.enter_takes_the_old_counter_as_ticket)
test_enter_returns_the_whole_item = asked(lock_document.enter_returns_the_whole_item)
test_enter_twice_is_refused_with_the_entry_in_the_old_image = asked(
    lock_document.enter_twice_is_refused_with_the_entry_in_the_old_image
)
test_enter_is_refused_when_the_queue_is_full = asked(lock_document.enter_is_refused_when_the_queue_is_full)
test_enter_without_a_map_is_refused = asked(lock_document.enter_without_a_map_is_refused)
test_enter_without_an_item_is_refused_without_an_image = asked(
    lock_document.enter_without_an_item_is_refused_without_an_image
)
test_create_the_map = asked(lock_document.create_the_map)
test_create_the_map_of_a_missing_item_or_twice_is_refused = asked(
    lock_document.create_the_map_of_a_missing_item_or_twice_is_refused
)
test_create_the_row_of_a_name = asked(lock_document.create_the_row_of_a_name)
test_renew = asked(lock_document.renew)
test_renew_of_a_missing_entry_is_refused = asked(lock_document.renew_of_a_missing_entry_is_refused)
test_release = asked(lock_document.release)
test_release_of_the_last_entry_leaves_empty_maps = asked(lock_document.release_of_the_last_entry_leaves_empty_maps)
test_evict_several_in_one_request = asked(lock_document.evict_several_in_one_request)
test_save_and_release_in_one_request = asked(lock_document.save_and_release_in_one_request)
test_set_below_a_missing_map_is_invalid = asked(lock_document.set_below_a_missing_map_is_invalid)
test_set_from_a_missing_path_is_invalid = asked(lock_document.set_from_a_missing_path_is_invalid)
test_remove_of_a_missing_leaf_is_fine = asked(lock_document.remove_of_a_missing_leaf_is_fine)
test_overlapping_paths_are_invalid = asked(lock_document.overlapping_paths_are_invalid)
test_a_map_and_an_entry_of_it_overlap = asked(lock_document.a_map_and_an_entry_of_it_overlap)
test_lock_is_a_reserved_word = asked(lock_document.lock_is_a_reserved_word)


def test_remove_below_a_missing_map_is_invalid(table: Table) -> None:
    """REMOVE does not make the parents of a path, nor pass over their absence."""
    table.put()
    with refused(INVALID, unless=deviates(table.engine, "accepts REMOVE below a missing map")):
        table.update(RELEASE, names=names())
