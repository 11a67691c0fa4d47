"""The lesson that an adaptive lock must have learnt, worked out beside it from the times at which it was held."""

import math
from dataclasses import dataclass


@dataclass
class Lesson:
    """One lock's memory as the runner follows it. Times are seconds."""

    renew: float | None = None

    def lease(self, asked: float) -> float:
        """The lease of the next acquisition."""
        return asked if self.renew is None else math.floor(self.renew + 10)

    def after(self, took: int, asked: float) -> float | None:
        """The memory after work that took so long; None: nothing is kept."""
        if took <= 0:
            return self.renew
        if self.renew is None:
            return took if took > asked - 5 else None
        average = (self.renew * 8 + took * 2) / 10
        return average if average >= asked - 5 else None

    def learn(self, found: float | None, shortest: float, longest: float, asked: float) -> bool:
        """Whether what is found can come from work within these bounds; then it is what the next work starts from."""
        possible = [self.after(took, asked) for took in range(int(shortest), int(longest) + 1)]
        fits = any(same(found, one) for one in possible)
        self.renew = found
        return fits


def same(a: float | None, b: float | None) -> bool:
    return a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9)
