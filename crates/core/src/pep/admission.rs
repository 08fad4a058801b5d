//! Admission of connections to a PEP: which SYNs are held, which go on to the relay, which pass without it.
//!
//! [`Admission`] has no sockets and no clock. Its caller reports what happens, with the time, and does what is decided. The
//! PEP of the simulator and the daemon of a gateway are two callers. What moves the data of an accepted connection, the
//! *relay*, is not part of it.
//!
//! ```text
//!          Open           on_opened         on_answer(Connected)         on_accepted        on_ended
//! on_syn -------> opening ---------> held ----------------------> started -----------> open --------> .
//!    |               |  ^              |                             ^
//!    |      on_taken v  | next_due     | refused, silent, asymmetric |
//!    |            deferred             v                             |
//!    |                                 .                             |
//!    |---------------------------- Accept, on_started ---------------'
//!    `--- Pass: bypassed
//! ```
//!
//! A SYN is *held* until its server has answered the leg that is opened to it, and then goes on to the relay. Its connection
//! is *started* until the relay has accepted the client, and then *open*. With early accept the SYN goes on at once. A SYN
//! beyond a maximum *passes* to its server; it is remembered as bypassed, so that a retransmitted one passes as well. A leg
//! can be impossible for a moment, while an earlier connection has its addresses and ports: the SYN is *deferred*, and the leg
//! is tried again.

mod asymmetric;
mod recent;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::Side;
use crate::time::{Duration, Instant};
use asymmetric::AsymmetricPaths;
use recent::Recent;

/// How long a bypassed connection is remembered after its last SYN. Linux gives up a SYN after 127 s (tcp(7),
/// `tcp_syn_retries`); hosts that conform to RFC 9293, section 3.8.3, retransmit it for at least 3 minutes, with shorter gaps.
pub const BYPASS_MEMORY: Duration = Duration::from_secs(127);
/// How soon the leg of a deferred SYN is tried again, and by which part of its time so far: it is at most so much late.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_PART: u64 = 4;
/// After this the client has retransmitted a deferred SYN (RFC 6298).
const DEFERRED_MAX: Duration = Duration::from_secs(1);

/// The addresses and ports of a connection, or what stands for them. Keys of the same two hosts follow each other in order.
pub trait ConnectionKey: Copy + Ord {
    /// The client and the server.
    type Hosts: Copy + Ord;

    /// The hosts of this connection.
    fn hosts(&self) -> Self::Hosts;

    /// A key that is not above any of these hosts, and above all of lower ones.
    fn first_of(hosts: Self::Hosts) -> Self;
}

/// The settings of an [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// The most connections that are split at the same time: those that are opening, held, started or open.
    pub connections_max: usize,
    /// The most SYNs that wait at the same time: those that are opening, held or deferred.
    pub waiting_max: usize,
    /// How long a server may take to answer, and then the relay to accept the client; see [`Admission::expire`].
    pub handshake_max: Duration,
    /// Whether SYNs go on to the relay before their servers have answered.
    pub early_accept: bool,
    /// How long a SYN that went on to the relay is remembered, so that a delayed copy of it opens nothing.
    pub started_memory: Duration,
    /// Whether a silent server may have answered past the gateway. Then it is given up after a time.
    pub may_be_asymmetric: bool,
    /// The most that is remembered of each kind: bypassed connections, started ones, asymmetric and symmetric paths.
    pub remembered_max: usize,
}

/// What is to be done with a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Open the leg to the server. Report the outcome before the next SYN: [`Admission::on_opened`],
    /// [`Admission::on_taken`], [`Admission::on_unopened`] or [`Admission::on_lost`].
    Open,
    /// Send the SYN on to the relay, and report it before the next one: [`Admission::on_started`].
    Accept,
    /// Let the SYN pass to its server, without the relay.
    Pass,
    /// Send the SYN on to the relay again, which has not accepted its connection.
    SendOn,
    /// Let all SYNs between both hosts pass: call [`Admission::on_asymmetric`].
    GiveUp,
    /// Nothing: the SYN was retransmitted while the first one is held, or it is a delayed copy.
    Drop,
}

/// How a server answered the leg to it, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<Leg = ()> {
    /// It accepted. The leg is kept until the client is accepted.
    Connected(Leg),
    /// It refused with a reset.
    Refused,
    /// A router said that it cannot be reached.
    Unreachable,
    /// The leg failed for another reason.
    Failed,
}

/// What is to be done with a SYN whose server has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Send it on to the relay.
    SendOn,
    /// Answer it with a reset.
    Reset,
    /// Answer it with the ICMP error of the router.
    Unreachable,
    /// Leave it without an answer.
    Nothing,
}

/// Why a client is not accepted although its server did not refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// It has reset the connection.
    Reset,
    /// The handshake took too long.
    Expired,
}

/// Counts since the start. At any time `split` is the sum of the five below it and of the connections that are held or
/// started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionCounters {
    /// Connections that were held or started.
    pub split: u64,
    /// Those whose clients the relay has accepted.
    pub accepted: u64,
    /// Those whose servers refused.
    pub refused: u64,
    /// Those whose servers could not be reached or did not answer in time, or whose clients did not go on.
    pub expired: u64,
    /// Those that their clients have reset before.
    pub reset: u64,
    /// Those whose SYNs passed after they were held.
    pub released: u64,
    /// Connections that passed without the relay, with the released ones.
    pub unsplit: u64,
}

#[derive(Debug)]
struct Entry<Syn, Leg> {
    /// What a SYN and its retransmissions have in common, such as the sequence number.
    number: u32,
    client: Side,
    /// When the stage began; when a deferred SYN, also if it is opening, arrived.
    since: Instant,
    stage: Stage<Syn, Leg>,
}

#[derive(Debug)]
enum Stage<Syn, Leg> {
    Opening,
    Deferred { syn: Syn, next: Instant },
    Held(Syn),
    Started(Leg),
}

/// See the module's description. It keeps what its caller needs of each connection: a `Syn` while it waits, and a `Leg` while
/// it is started.
#[derive(Debug)]
pub struct Admission<Key: ConnectionKey, Syn = (), Leg = ()> {
    config: AdmissionConfig,
    entries: BTreeMap<Key, Entry<Syn, Leg>>,
    /// Those of the entries that are deferred, by the time of the next try.
    deferred: BTreeSet<(Instant, Key)>,
    /// The number of entries that are started.
    started: usize,
    /// The connections that the relay has accepted.
    open: usize,
    max_connections: usize,
    /// With the number of the SYN that was the first to pass.
    bypassed: Recent<Key, u32>,
    /// SYNs that went on to the relay.
    sent_on: Recent<(Key, u32)>,
    paths: Option<AsymmetricPaths<Key::Hosts>>,
    counters: AdmissionCounters,
}

impl<Key: ConnectionKey, Syn, Leg> Admission<Key, Syn, Leg> {
    /// The most memory for a connection that is not open yet, without what `Syn` and `Leg` own: nodes of the trees are at
    /// least half full, except the first.
    pub const ENTRY_BYTES: usize =
        2 * (size_of::<(Key, Entry<Syn, Leg>)>() + size_of::<(Instant, Key)>());

    /// An admission without connections.
    #[must_use]
    pub fn new(config: AdmissionConfig) -> Self {
        let most = config.remembered_max;
        Self {
            config,
            entries: BTreeMap::new(),
            deferred: BTreeSet::new(),
            started: 0,
            open: 0,
            max_connections: 0,
            bypassed: Recent::new(BYPASS_MEMORY, most),
            sent_on: Recent::new(config.started_memory, most),
            paths: config.may_be_asymmetric.then(|| AsymmetricPaths::new(most)),
            counters: AdmissionCounters::default(),
        }
    }

    /// Counts since the start.
    #[must_use]
    pub fn counters(&self) -> AdmissionCounters {
        self.counters
    }

    /// The connections that are split now: those that are opening, held, started or open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.entries.len() - self.deferred.len() + self.open
    }

    /// The largest number of [`Admission::connections`] so far.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// The SYNs that wait now: those that are opening, held or deferred.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.entries.len() - self.started
    }

    /// Whether the SYN of this connection has gone on to the relay, which has not accepted it yet.
    #[must_use]
    pub fn is_started(&self, key: &Key) -> bool {
        self.entries.get(key).is_some_and(|entry| matches!(entry.stage, Stage::Started(_)))
    }

    /// When a deferred SYN is to be tried again; `None` if there is none. See [`Admission::next_due`].
    #[must_use]
    pub fn next_due_at(&self) -> Option<Instant> {
        self.deferred.first().map(|first| first.0)
    }

    /// A SYN of a client on a side has arrived. `number` is what its retransmissions have in common with it and another SYN
    /// with the same key has not, such as the sequence number.
    pub fn on_syn(&mut self, key: Key, number: u32, client: Side, now: Instant) -> Decision {
        if let Some(entry) = self.entries.get(&key) {
            match entry.stage {
                Stage::Opening => return Decision::Drop,
                Stage::Started(_) => return Decision::SendOn,
                Stage::Held(_) => {
                    let (hosts, server, since) = (key.hosts(), client.other(), entry.since);
                    let passes =
                        |paths: &AsymmetricPaths<_>| paths.passes(hosts, server, since, now);
                    let gives_up = self.paths.as_ref().is_some_and(passes);
                    return if gives_up { Decision::GiveUp } else { Decision::Drop };
                }
                // It is tried at once.
                Stage::Deferred { .. } => {}
            }
        }
        if let Some(first) = self.bypassed.get(&key, now) {
            // Another one may be that of a client which always has the same port: it is split again some time.
            if first == number {
                self.bypassed.insert(key, number, now);
            }
            return Decision::Pass;
        }
        if self.sent_on.contains(&(key, number), now) {
            return Decision::Drop;
        }
        self.take_entry(&key);
        self.admit(key, number, client, now, now)
    }

    /// Decides on a SYN of no connection that is known. `since` is when it arrived.
    fn admit(
        &mut self,
        key: Key,
        number: u32,
        client: Side,
        since: Instant,
        now: Instant,
    ) -> Decision {
        let is_full = self.waiting() >= self.config.waiting_max
            || self.connections() >= self.config.connections_max;
        let is_asymmetric =
            self.paths.as_ref().is_some_and(|paths| paths.contains(key.hosts(), now));
        if is_full || is_asymmetric {
            return self.pass(key, number, now);
        }
        self.entries.insert(key, Entry { number, client, since, stage: Stage::Opening });
        self.max_connections = self.max_connections.max(self.connections());
        if self.config.early_accept { Decision::Accept } else { Decision::Open }
    }

    fn pass(&mut self, key: Key, number: u32, now: Instant) -> Decision {
        self.counters.unsplit += 1;
        self.bypassed.insert(key, number, now);
        Decision::Pass
    }

    /// The leg to the server is being opened: the SYN is held from now on.
    pub fn on_opened(&mut self, key: &Key, syn: Syn, now: Instant) {
        let Some(entry) = self.opening(key) else { return };
        (entry.since, entry.stage) = (now, Stage::Held(syn));
        self.counters.split += 1;
    }

    /// The leg to the server cannot be opened, because an earlier connection still has its addresses and ports. The SYN is
    /// deferred, or dropped if that took too long.
    pub fn on_taken(&mut self, key: &Key, syn: Syn, now: Instant) {
        let Some(entry) = self.opening(key) else { return };
        let waited = now.saturating_since(entry.since);
        if waited < DEFERRED_MAX {
            let pause = PAUSE_MIN.max(Duration::from_nanos(waited.as_nanos() / PAUSE_PART));
            entry.stage = Stage::Deferred { syn, next: now + pause };
            self.deferred.insert((now + pause, *key));
        } else {
            self.entries.remove(key);
        }
    }

    /// The leg to the server cannot be opened at all: the SYN passes.
    pub fn on_unopened(&mut self, key: &Key, now: Instant) {
        if let Some(&mut Entry { number, .. }) = self.opening(key) {
            self.entries.remove(key);
            self.pass(*key, number, now);
        }
    }

    /// The SYN was lost here while its leg was opened. One that is retransmitted is a new one.
    pub fn on_lost(&mut self, key: &Key) {
        if self.opening(key).is_some() {
            self.entries.remove(key);
        }
    }

    /// The SYN goes on to the relay before its server was asked.
    pub fn on_started(&mut self, key: &Key, leg: Leg, now: Instant) {
        if self.opening(key).is_some() {
            self.counters.split += 1;
            self.start(key, leg, now);
        }
    }

    fn opening(&mut self, key: &Key) -> Option<&mut Entry<Syn, Leg>> {
        self.entries.get_mut(key).filter(|entry| matches!(entry.stage, Stage::Opening))
    }

    /// Returns what the entry was before.
    fn start(&mut self, key: &Key, leg: Leg, now: Instant) -> Option<Stage<Syn, Leg>> {
        let entry = self.entries.get_mut(key)?;
        entry.since = now;
        self.started += 1;
        self.sent_on.insert((*key, entry.number), (), now);
        Some(std::mem::replace(&mut entry.stage, Stage::Started(leg)))
    }

    /// The server of a SYN has answered. `None` if it is not held any more.
    pub fn on_answer(
        &mut self,
        key: &Key,
        answer: Answer<Leg>,
        now: Instant,
    ) -> Option<(Reply, Syn)> {
        let entry = self.entries.get(key)?;
        if !matches!(entry.stage, Stage::Held(_)) {
            return None;
        }
        if let Some(paths) = &mut self.paths
            && matches!(answer, Answer::Connected(_) | Answer::Refused)
        {
            paths.on_answer(key.hosts(), entry.client.other(), now);
        }
        let counters = &mut self.counters;
        let (reply, before) = match answer {
            Answer::Connected(leg) => (Reply::SendOn, self.start(key, leg, now)?),
            Answer::Refused => {
                counters.refused += 1;
                (Reply::Reset, self.entries.remove(key)?.stage)
            }
            Answer::Unreachable => {
                counters.expired += 1;
                (Reply::Unreachable, self.entries.remove(key)?.stage)
            }
            Answer::Failed => {
                counters.expired += 1;
                (Reply::Nothing, self.entries.remove(key)?.stage)
            }
        };
        let Stage::Held(syn) = before else { return None };
        Some((reply, syn))
    }

    /// The relay has accepted the client of a connection that was started: it is open until [`Admission::on_ended`]. `None`
    /// if it is not known.
    pub fn on_accepted(&mut self, key: &Key) -> Option<Leg> {
        if !self.is_started(key) {
            return None;
        }
        let Stage::Started(leg) = self.take_entry(key)?.stage else { return None };
        self.counters.accepted += 1;
        self.open += 1;
        Some(leg)
    }

    /// A connection that was open has ended.
    pub fn on_ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// The caller knows that the client of a connection is not to be accepted any more. False if it is not held or started.
    pub fn on_abandoned(&mut self, key: &Key, reason: Abandoned) -> bool {
        let is_split =
            |entry: &Entry<_, _>| matches!(entry.stage, Stage::Held(_) | Stage::Started(_));
        let is_known = self.entries.get(key).is_some_and(is_split);
        if is_known {
            self.take_entry(key);
            match reason {
                Abandoned::Reset => self.counters.reset += 1,
                Abandoned::Expired => self.counters.expired += 1,
            }
        }
        is_known
    }

    /// The server of a connection that is held or bypassed answers past the gateway, or so it seems. Returns the SYNs that are
    /// held between both hosts, which pass. The caller closes their legs, which send no reset since they were not answered.
    pub fn on_asymmetric(&mut self, key: &Key, now: Instant) -> Vec<(Key, Syn)> {
        let is_held = |entry: &Entry<_, _>| matches!(entry.stage, Stage::Held(_));
        let is_known =
            self.entries.get(key).is_some_and(is_held) || self.bypassed.contains(key, now);
        let Some(paths) = self.paths.as_mut().filter(|_| is_known) else { return Vec::new() };
        let hosts = key.hosts();
        paths.insert(hosts, now);
        let of_both = self.entries.range(Key::first_of(hosts)..);
        let of_both = of_both.take_while(|(held, _)| held.hosts() == hosts);
        let keys: Vec<_> =
            of_both.filter(|(_, entry)| is_held(entry)).map(|(&held, _)| held).collect();
        keys.into_iter().filter_map(|held| Some((held, self.release(&held, now)?))).collect()
    }

    fn release(&mut self, key: &Key, now: Instant) -> Option<Syn> {
        let Entry { number, stage: Stage::Held(syn), .. } = self.take_entry(key)? else {
            return None;
        };
        self.counters.released += 1;
        self.pass(*key, number, now);
        Some(syn)
    }

    /// Takes a deferred SYN that is to be tried now, with the decision on it, which is to be carried out as that of
    /// [`Admission::on_syn`].
    pub fn next_due(&mut self, now: Instant) -> Option<(Key, Syn, Decision)> {
        let &(_, key) = self.deferred.first().filter(|first| first.0 <= now)?;
        let Entry { number, client, since, stage } = self.take_entry(&key)?;
        let Stage::Deferred { syn, .. } = stage else { return None };
        Some((key, syn, self.admit(key, number, client, since, now)))
    }

    /// Ends the handshakes that have taken too long, and forgets what is not to be remembered any more. Returns the SYNs that
    /// were held, whose legs the caller closes. To be called once in a while: what is due is late by as much.
    pub fn expire(&mut self, now: Instant) -> Vec<Syn> {
        let limit = self.config.handshake_max;
        let is_late = |entry: &Entry<_, _>| {
            let has_limit = matches!(entry.stage, Stage::Held(_) | Stage::Started(_));
            has_limit && now.saturating_since(entry.since) >= limit
        };
        let late = self.entries.iter().filter(|(_, entry)| is_late(entry));
        let late: Vec<_> = late.map(|(&key, _)| key).collect();
        self.counters.expired += late.len() as u64;
        let stages = late.iter().filter_map(|key| Some(self.take_entry(key)?.stage));
        let held = stages.filter_map(|stage| match stage {
            Stage::Held(syn) => Some(syn),
            _ => None,
        });
        let held = held.collect();
        self.sent_on.forget_old(now);
        self.bypassed.forget_old(now);
        if let Some(paths) = &mut self.paths {
            paths.forget_old(now);
        }
        held
    }

    /// Removes an entry with what counts it.
    fn take_entry(&mut self, key: &Key) -> Option<Entry<Syn, Leg>> {
        let entry = self.entries.remove(key)?;
        match entry.stage {
            Stage::Started(_) => self.started -= 1,
            Stage::Deferred { next, .. } => {
                self.deferred.remove(&(next, *key));
            }
            Stage::Opening | Stage::Held(_) => {}
        }
        Some(entry)
    }
}
