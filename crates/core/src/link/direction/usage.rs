//! The use of the transmitter from the view of each TCP flow: by its own packets, by others, or idle.
//!
//! The transmitter is idle because a sender did not send earlier. The first data packet of a flow after
//! an idle time says what limited its sender until then ([`LimitedBy`]), and that limit gets the idle time
//! since the flow's previous data packet. So each nanosecond from the start of a flow on belongs to
//! exactly one part.
//!
//! While the rate is zero, nothing can be sent: such times are cut out of all others.

use std::sync::Arc;

use crate::link::Transmission;
use crate::packet::{FlowId, LimitedBy, Origin, Packet};
use crate::profile::Profile;
use crate::time::{Duration, Instant};
use crate::units::BitRate;

/// The use of the transmitter in the time of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowUse {
    /// Time for which packets of the flow were sent.
    pub sending: Duration,
    /// Their bits on the link, framing included.
    pub sent_bits: u64,
    /// Their TCP payload in bytes.
    pub payload_bytes: u64,
    /// Idle time by [`LimitedBy`].
    pub idle: [Duration; LimitedBy::ALL.len()],
    /// Time for which packets of others were sent.
    pub others: Duration,
    /// Time for which the rate was zero.
    pub outage: Duration,
    /// The end of the last data packet of the flow, or the end of the run: the sum of all times is the
    /// time from the start of the flow until then.
    pub until: Instant,
}

/// The account of a flow. Times are without outages. Every data packet uses the first fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Account {
    /// The idle time of the transmitter at the last data packet.
    idle_seen: Duration,
    sending: Duration,
    sent_bits: u64,
    payload_bytes: u64,
    until: Option<Instant>,
    start: Instant,
    /// The idle time that has been attributed; `None` until it is known what it was at the start of the
    /// flow.
    attributed: Option<Duration>,
    idle: [Duration; LimitedBy::ALL.len()],
    /// Packets without data since the last one with data: time and bits.
    pending: (Duration, u64),
}

/// No idle time: the next data packet adds the packets without data.
const NOT_SEEN: Duration = Duration::from_nanos(u64::MAX);

/// The accounts of the flows whose data passes a direction.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    accounts: Vec<Account>,
    /// The account of each flow of the run, in the direction of its data.
    account_of: Arc<[u32]>,
    /// Total idle time of the transmitter, up to the current busy period.
    idle: Duration,
    outages: Outages,
    /// The starts of flows that were not reached yet, with their accounts, the latest first.
    starts: Vec<(Instant, usize)>,
}

/// The times at which the rate is zero: start, end, and the sum of those before.
#[derive(Clone, Debug)]
struct Outages(Vec<(Instant, Instant, Duration)>);

impl Outages {
    fn of(rate: &Profile<BitRate>) -> Self {
        let mut outages = Vec::new();
        let Profile::Steps(steps) = rate else { return Self(outages) };
        let mut sum = Duration::ZERO;
        for pair in steps.windows(2) {
            if pair[0].1 == BitRate(0) {
                outages.push((pair[0].0, pair[1].0, sum));
                sum += pair[1].0 - pair[0].0;
            }
        }
        Self(outages)
    }

    /// The time for which the rate was zero before `at`.
    fn before(&self, at: Instant) -> Duration {
        let begun = self.0.partition_point(|outage| outage.0 < at);
        let Some(&(start, end, before)) = self.0[..begun].last() else { return Duration::ZERO };
        let mut sum = before;
        sum += at.min(end) - start;
        sum
    }

    /// The time from `from` to `to` without outages.
    #[inline]
    fn between(&self, from: Instant, to: Instant) -> Duration {
        let whole = to.saturating_since(from);
        if self.0.is_empty() { whole } else { self.without(from, to, whole) }
    }

    #[cold]
    #[inline(never)]
    fn without(&self, from: Instant, to: Instant, whole: Duration) -> Duration {
        whole.saturating_sub(self.before(to).saturating_sub(self.before(from)))
    }
}

impl Usage {
    /// Accounts of the flows with these starts, in the order of `account_of`.
    pub(super) fn new(
        starts: impl IntoIterator<Item = Instant>,
        account_of: Arc<[u32]>,
        rate: &Profile<BitRate>,
    ) -> Self {
        let accounts: Vec<_> = starts.into_iter().map(Account::new).collect();
        let mut starts: Vec<_> = accounts.iter().map(|account| account.start).zip(0..).collect();
        starts.sort_unstable_by(|one, other| other.cmp(one));
        Self { accounts, account_of, idle: Duration::ZERO, outages: Outages::of(rate), starts }
    }

    /// Counts a transmission.
    #[inline(always)]
    pub(super) fn on_sent(&mut self, packet: &Packet, transmission: Transmission, bits: u32) {
        let Some(limited_by) = packet.limited_by else {
            self.on_sent_without_data(packet, transmission, bits);
            return;
        };
        let Transmission { start, departure } = transmission;
        let (idle, sending) = (self.idle, self.outages.between(start, departure));
        let Some(account) = self.account(packet.flow) else { return };
        if account.idle_seen != idle {
            account.attribute(idle, limited_by);
        }
        account.sending += sending;
        account.sent_bits += u64::from(bits);
        account.payload_bytes += u64::from(packet.tcp_payload());
        account.until = Some(departure);
    }

    #[inline(always)]
    fn account(&mut self, flow: FlowId) -> Option<&mut Account> {
        let account = *self.account_of.get(flow.0 as usize)?;
        self.accounts.get_mut(account as usize)
    }

    /// The idle time up to `at`, if the transmitter is idle from `free_at` on.
    fn idle_until(&self, free_at: Instant, at: Instant) -> Duration {
        self.idle + self.outages.between(free_at, at)
    }

    /// The transmitter was idle from `free_at` to `at`.
    #[inline]
    pub(super) fn on_idle(&mut self, free_at: Instant, at: Instant) {
        if self.starts.is_empty() {
            self.idle = self.idle_until(free_at, at);
        } else {
            self.reach_starts(free_at, at);
        }
    }

    /// [`Usage::on_idle`] while flows have not started.
    #[cold]
    #[inline(never)]
    fn reach_starts(&mut self, free_at: Instant, at: Instant) {
        while let Some((start, number)) = self.starts.pop_if(|(start, _)| *start <= at) {
            let idle = self.idle_until(free_at, start);
            self.accounts[number].attributed.get_or_insert(idle);
        }
        self.idle = self.idle_until(free_at, at);
    }

    /// Counts a packet that has no data of a flow of this direction: an ACK, a SYN or FIN, a datagram, or
    /// a frame with packets of several flows.
    #[cold]
    #[inline(never)]
    fn on_sent_without_data(&mut self, packet: &Packet, transmission: Transmission, bits: u32) {
        if packet.id.origin() != Origin::Sender && packet.nested().is_empty() {
            return;
        }
        let Transmission { start, departure } = transmission;
        let sending = self.outages.between(start, departure);
        let idle = self.idle;
        for_each_share(packet, sending, bits, &mut |inner, sending, bits| {
            let is_of_sender = inner.id.origin() == Origin::Sender && inner.segment().is_some();
            let Some(account) = self.account(inner.flow).filter(|_| is_of_sender) else { return };
            account.pending.0 += sending;
            account.pending.1 += bits;
            account.idle_seen = NOT_SEEN;
            if let Some(limited_by) = inner.limited_by {
                account.attribute(idle, limited_by);
                account.payload_bytes += u64::from(inner.tcp_payload());
                account.until = Some(departure);
            }
        });
    }

    /// The use in the time of a flow that ended before the run: up to its last data packet.
    pub(super) fn of_finished(&self, flow: FlowId) -> Option<FlowUse> {
        let account = self.account_at(flow)?;
        let until = account.until?;
        Some(self.close(account, until))
    }

    /// The use in the time of a flow up to `now`, at which its sender is `limited_by`; the last transmission
    /// ends at `free_at`. `future` are the transmissions that end after `now`.
    pub(super) fn of_unfinished<'a>(
        &self,
        flow: FlowId,
        (free_at, now): (Instant, Instant),
        limited_by: LimitedBy,
        future: impl Iterator<Item = (&'a Packet, Transmission, u32)>,
    ) -> Option<FlowUse> {
        let mut account = *self.account_at(flow)?;
        let idle_before = self.idle_until(free_at, account.start);
        account.attributed.get_or_insert(idle_before);
        account.attribute(self.idle_until(free_at, now), limited_by);
        for (packet, Transmission { start, departure }, bits) in future {
            let rest = self.outages.between(start.max(now), departure);
            for_each_share(packet, rest, bits, &mut |inner, sending, bits| {
                let is_own = inner.flow == flow && inner.id.origin() == Origin::Sender;
                if is_own && inner.segment().is_some() {
                    account.sending = account.sending.saturating_sub(sending);
                    // A packet that is being sent at `now` counts as sent.
                    if start >= now {
                        account.sent_bits -= bits;
                        account.payload_bytes -= u64::from(inner.tcp_payload());
                    }
                }
            });
        }
        Some(self.close(&account, now))
    }

    fn account_at(&self, flow: FlowId) -> Option<&Account> {
        self.accounts.get(*self.account_of.get(flow.0 as usize)? as usize)
    }

    /// What is left of the time from the start of the flow to `until` was used by others.
    fn close(&self, account: &Account, until: Instant) -> FlowUse {
        let elapsed = until.saturating_since(account.start);
        let mut others = self.outages.between(account.start, until);
        let outage = elapsed.saturating_sub(others);
        others = others.saturating_sub(account.sending);
        account.idle.iter().for_each(|idle| others = others.saturating_sub(*idle));
        FlowUse {
            sending: account.sending,
            sent_bits: account.sent_bits,
            payload_bytes: account.payload_bytes,
            idle: account.idle,
            others,
            outage,
            until,
        }
    }
}

impl Account {
    fn new(start: Instant) -> Self {
        Self {
            idle_seen: NOT_SEEN,
            start,
            attributed: None,
            sending: Duration::ZERO,
            sent_bits: 0,
            payload_bytes: 0,
            idle: Default::default(),
            pending: Default::default(),
            until: None,
        }
    }

    /// Attributes the idle time since the last data packet, and adds the packets without data.
    fn attribute(&mut self, idle: Duration, limited_by: LimitedBy) {
        // Without an idle time since the start of the flow, none is to be attributed.
        let since = self.attributed.unwrap_or(idle);
        self.idle[limited_by as usize] += idle.saturating_sub(since);
        self.attributed = Some(idle);
        self.idle_seen = idle;
        let (sending, bits) = std::mem::take(&mut self.pending);
        self.sending += sending;
        self.sent_bits += bits;
    }
}

/// Calls `share` with each packet that is not a frame, and its share of time and bits of the
/// whole, in proportion to its bytes. The shares add up to the whole.
fn for_each_share(
    packet: &Packet,
    sending: Duration,
    bits: u32,
    share: &mut impl FnMut(&Packet, Duration, u64),
) {
    let nested = packet.nested();
    if nested.is_empty() {
        share(packet, sending, bits.into());
        return;
    }
    let total: u64 = nested.iter().map(|inner| u64::from(inner.bytes)).sum();
    let part = |whole: u64, bytes: u64| {
        let part = u128::from(whole) * u128::from(bytes) / u128::from(total.max(1));
        u64::try_from(part).expect("no more than the whole")
    };
    let mut before = 0;
    for inner in nested {
        let end = before + u64::from(inner.bytes);
        let [time, size] =
            [sending.as_nanos(), bits.into()].map(|whole| part(whole, end) - part(whole, before));
        share(inner, Duration::from_nanos(time), size);
        before = end;
    }
}
