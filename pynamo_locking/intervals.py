"""Items with an interval that does not overlap any other one."""

from pynamo_locking._intervals.interval_mixin import IntervalMixin, Intervals

__all__ = ["IntervalMixin", "Intervals"]
