from dataclasses import dataclass
from typing import Any
@dataclass
class ClockView:
    time_source: Any
    skew_s: float = 0.0
    drift: float = 0.0
    def __post_init__(self): self._start = self.time_source()
    def monotonic(self): return (self.time_source() - self._start) * (1 + self.drift)
    def time_ms(self): return int((self.time_source() + self.skew_s) * 1000)
