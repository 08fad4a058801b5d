"""How many subscribers a number of active users stands for in the busy hour.

The data that a subscriber downloads in a month is a mean rate, and the rate in the busy hour is
`BUSY_HOUR` times that. An active user takes pages at a rate of its own, so each subscriber is
active for the ratio of both. Subscribers become active independently of each other, so the number
of active ones has a binomial distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from bentpipe.answers.catalog import Option
from bentpipe.answers.counts import largest
from bentpipe.answers.question import LinkQuestion
from bentpipe.answers.traffic import Users
from bentpipe.errors import UsageError
from bentpipe.units import NS_PER_S, format_rate, format_size

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

    @property
    def activity(self) -> float:
        """The share of the busy hour in which a subscriber is active: 1 if pages take too long."""
        return min(self.busy_hour_bps / self.user_bps, 1.0)

    def fits(self, subscribers: int, users: int) -> bool:
        """Return whether at most ``users`` are active for 95 % of the busy hour; 0 fit none."""
        return users > 0 and _binomial_share(users, subscribers, self.activity) >= _SHARE

    def fitting(self, users: int) -> int:
        """Return the largest number of subscribers for which that holds."""
        # With as many active on average as fit, more are active for over 5 % of the time, unless
        # all are active.
        most = math.ceil(users / self.activity)
        return largest(lambda n: self.fits(n, users), guess=most // 2, limit=most) if most else 0

    def figures(self, users: int, subscribers: int | None) -> dict[str, Any]:
        """Return the figures of an answer; those asked for are None without ``subscribers``.

        Where they do not fit, pages take longer than known here, so that more are active.
        """
        fitting = self.fitting(users)
        fit = subscribers and self.fits(subscribers, users)
        return {
            "busy_hour_times": BUSY_HOUR,
            "busy_hour_bps": self.busy_hour_bps,
            "fitting_subscribers": fitting,
            "fitting_active_users": fitting * self.activity,
            "offered_bps": (subscribers or fitting) * self.busy_hour_bps,
            "active_users": subscribers * self.activity if subscribers and fit else None,
            "subscribers_fit": fit,
        }


@dataclass(kw_only=True, eq=False)
class Subscribed(LinkQuestion):
    """A question about active users that is asked for subscribers, too."""

    monthly_bytes: Annotated[
        int | None,
        Option(
            "What a subscriber downloads in a month: then also how many subscribers fit.",
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

    def check_demand(self, readers: Users, rate_bps: int) -> None:
        """Check that one reader of pages can download as much as a subscriber does.

        Raises:
            UsageError: that is more than the pages at the rate of the link, in bit/s, and pauses.
        """
        if self.monthly_bytes is None:
            return
        most_bps = readers.rate_bps(8 * NS_PER_S * readers.page_bytes / rate_bps)
        most_bytes = most_bps * _MONTH_S / BUSY_HOUR / 8
        if self.monthly_bytes > most_bytes:
            busy_bps = Demand(self.monthly_bytes, most_bps).busy_hour_bps
            raise UsageError(
                f"--monthly-data {format_size(self.monthly_bytes)}: {format_rate(busy_bps)} in the "
                f"busy hour is more than one reader of pages: one downloads up to "
                f"{format_rate(most_bps)}, {format_size(most_bytes)} a month"
            )

    def demand(self, users: int, user_bps: float) -> dict[str, Any]:
        """Return the figures of subscribers of whom ``users`` fit; none without their data.

        ``user_bps`` is the mean rate of an active user in bit/s.
        """
        if self.monthly_bytes is None:
            return {}
        return Demand(self.monthly_bytes, user_bps).figures(users, self.subscribers)


def _binomial_share(at_most: int, count: int, share: float) -> float:
    """Return the probability that no more of ``count`` are active, each for this share of time."""
    if at_most >= count:
        return 1.0
    if share == 1:
        return 0.0
    yes, no = math.log(share), math.log1p(-share)
    return math.fsum(
        math.exp(_log_ways(count, k) + k * yes + (count - k) * no) for k in range(at_most + 1)
    )


def _log_ways(count: int, some: int) -> float:
    """Return the logarithm of the ways to choose some of them."""
    return math.lgamma(count + 1) - math.lgamma(some + 1) - math.lgamma(count - some + 1)
