"""Which worker runs which tests: the same in every run, so that what ran before a test is no matter of chance."""

from __future__ import annotations

from collections import Counter

from xdist.scheduler import LoadScheduling


class FixedScheduling(LoadScheduling):  # type: ignore[misc]
    """Each worker gets whole files, in their order; the next one goes to the worker with the fewest tests."""

    def schedule(self) -> None:
        """Give out all tests at once. Later calls are about what a worker left that has crashed."""
        if self.collection is not None or not self._check_nodes_have_same_collection():
            super().schedule()
            return
        tests = next(iter(self.node2collection.values()))
        self.collection: list[str] | None = tests
        nodes = sorted(self.nodes, key=lambda node: str(node.gateway.id))
        for node, own in zip(nodes, shares(tests, len(nodes)), strict=True):
            self.node2pending[node].extend(own)
            node.send_runtest_some(own)
            node.shutdown()


def shares(tests: list[str], workers: int) -> list[list[int]]:
    """The places of the tests that each worker runs."""
    files = [test.partition("::")[0] for test in tests]
    given: dict[str, int] = {}
    load: Counter[int] = Counter()
    weights = Counter({file: count * _weight(file) for file, count in Counter(files).items()})
    for file, weight in weights.most_common():
        given[file] = min(range(workers), key=lambda worker: load[worker])
        load[given[file]] += weight
    return [[i for i, file in enumerate(files) if given[file] == worker] for worker in range(workers)]


def _weight(file: str) -> int:
    """About how long one of its tests takes, in hundredths of a second."""
    if file.startswith("tests/simulation/test_") and "checkers" not in file:  # a search makes many runs
        return 18
    return 1 if file.startswith("tests/unit") else 5
