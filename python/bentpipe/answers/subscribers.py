"""How many subscribers a number of active users stands for in the busy hour.

The data of a subscriber in a month is a mean rate, and the rate in the busy hour is `BUSY_HOUR`
times that. An active user takes pages at a rate of its own, so by Little's law the mean number of
active users is the rate of all subscribers over that of one active user. Subscribers become active
independently of each other, so the number has a Poisson distribution, whatever the lengths of their
sessions (M/G/infinity).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from bentpipe.answers.catalog import Option
from bentpipe.answers.counts import largest
from bentpipe.answers.question import LinkQuestion
from bentpipe.errors import UsageError

# The ratio of the busy hour to the average hour: Cisco VNI Usage Study 2010, of service providers
# worldwide (blogs.cisco.com, "Prime Time for Broadband: Part 2", 2010). In 2009 it was 1.59.
BUSY_HOUR: Final = 1.72
# Of the busy hour: for this share of it no more are active than fit.
_SHARE: Final = 0.95
_MONTH_S: Final = 365.25 / 12 * 86_400


class Demand(NamedTuple):
    """The data of a subscriber in a month, and the rate of an active user in bit/s."""

    monthly_bytes: int
    user_bps: float

    @property
    def busy_hour_bps(self) -> float:
        """The mean rate of a subscriber in the busy hour, in bit/s."""
        return BUSY_HOUR * 8 * self.monthly_bytes / _MONTH_S

    def active(self, subscribers: int) -> float:
        """Return how many users are active on average in the busy hour."""
        return subscribers * self.busy_hour_bps / self.user_bps

    def fits(self, subscribers: int, users: int) -> bool:
        """Return whether at most ``users`` are active for 95 % of the busy hour; 0 fit none."""
        return users > 0 and _poisson_share(users, self.active(subscribers)) >= _SHARE

    def fitting(self, users: int) -> int:
        """Return the largest number of subscribers for which that holds."""
        # With as many active on average as fit, more are active for over 5 % of the time.
        mean = math.ceil(users * self.user_bps / self.busy_hour_bps)
        if mean == 0:
            return 0
        return largest(lambda count: self.fits(count, users), guess=mean // 2, limit=mean)

    def figures(self, users: int, subscribers: int | None) -> dict[str, Any]:
        """Return the figures of an answer; those asked for are None without ``subscribers``."""
        fitting = self.fitting(users)
        return {
            "busy_hour_bps": self.busy_hour_bps,
            "fitting_subscribers": fitting,
            "fitting_active_users": self.active(fitting),
            "active_users": subscribers and self.active(subscribers),
            "subscribers_fit": subscribers and self.fits(subscribers, users),
        }


@dataclass(kw_only=True, eq=False)
class Subscribed(LinkQuestion):
    """A question about active users that is asked for subscribers, too."""

    monthly_bytes: Annotated[
        int | None,
        Option(
            "The data of a subscriber in a month: then also how many subscribers fit.",
            "DATA",
            flag="--monthly-data",
            min=1,
        ),
    ] = None
    subscribers: Annotated[
        int | None,
        Option("Whether so many fit in the busy hour, with --monthly-data.", "N", min=1),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subscribers is not None and self.monthly_bytes is None:
            raise UsageError(
                f"--subscribers {self.subscribers}: how active they are is missing; add the data "
                "of a subscriber in a month, such as --monthly-data 100GB"
            )

    def demand(self, users: int, user_bps: float) -> dict[str, Any]:
        """Return the figures of subscribers of whom ``users`` fit; none without their data.

        ``user_bps`` is the mean rate of an active user in bit/s.
        """
        if self.monthly_bytes is None:
            return {}
        return Demand(self.monthly_bytes, user_bps).figures(users, self.subscribers)


def _poisson_share(at_most: int, mean: float) -> float:
    """Return the probability that a Poisson variable is no larger."""
    if mean == 0:
        return 1.0
    powers = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(at_most + 1))
    return math.fsum(map(math.exp, powers))
