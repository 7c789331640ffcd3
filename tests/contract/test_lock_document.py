"""What engines make of a request on a lock map that certify does not ask for."""

from certify.contract.rows import RELEASE, names
from tests.contract.helpers import INVALID, Table, deviates, refused


def test_remove_below_a_missing_map_is_invalid(table: Table) -> None:
    """REMOVE does not make the parents of a path, nor pass over their absence."""
    table.put()
    with refused(INVALID, unless=deviates(table.engine, "accepts REMOVE below a missing map")):
        table.update(RELEASE, names=names())
