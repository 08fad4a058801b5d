//! The check of a PEP's [`Admission`]: any events, compared with a model that is slow and simple.
//!
//! The laws: no more connections are split, and no more SYNs wait, than may; each SYN has one decision, that of the model; a
//! bypassed connection is not split while it is remembered; handshakes end at their limit; a deferred SYN is tried again
//! until its client has retransmitted it, and not after that; every connection that was split is counted once.

use std::collections::BTreeMap;

use crate::pep::{
    Abandoned, Admission, AdmissionConfig, Answer, BYPASS_MEMORY, ConnectionKey, Decision, Reply,
    Side,
};
use crate::time::{Duration, Instant};

/// A connection: its two hosts, and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The client and the server.
    pub hosts: u8,
    /// Their ports.
    pub ports: u8,
}

impl ConnectionKey for Key {
    type Hosts = u8;

    fn hosts(&self) -> u8 {
        self.hosts
    }

    fn first_of(hosts: u8) -> Self {
        Self { hosts, ports: 0 }
    }
}

/// What comes of opening a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It is being opened.
    Opened,
    /// An earlier connection has its addresses and ports.
    Taken,
    /// It is impossible.
    Unopened,
    /// The SYN is lost.
    Lost,
}

/// An event of an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionEvent {
    /// Time passes; then deferred SYNs are tried, with this outcome.
    Wait(Duration, Opening),
    /// A SYN with a number arrives.
    Syn(Key, u32, Side, Opening),
    /// A server answers.
    Answer(Key, Answer),
    /// The relay accepts a client.
    Accepted(Key),
    /// A connection that was open ends.
    Ended,
    /// A client resets its connection, or the caller ends the handshake.
    Abandoned(Key, Abandoned),
    /// A server answers past the gateway.
    Asymmetric(Key),
    /// Time for what has expired.
    Expire,
}

/// How late a deferred SYN can be tried: until its client has retransmitted it after 1 s, and a quarter of that.
const LAST_TRY: Duration = Duration::from_millis(1_250);
/// RFC 6298: the retransmission of a SYN that was lost, and then half of the one after that.
const SILENT: Duration = Duration::from_millis(2_500);
const PATH_MEMORY: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Held,
    Started,
    Deferred,
}

/// What is known of each connection, without an order and without a sum that is kept.
#[derive(Debug, Default)]
struct Model {
    now: Instant,
    /// With the time since which it is held or started, or at which the deferred SYN arrived, and the number of its SYN.
    stages: BTreeMap<Key, (Stage, Instant, u32)>,
    open: usize,
    /// With the number of the first SYN and the time of its last copy.
    bypassed: BTreeMap<Key, (u32, Instant)>,
    sent_on: BTreeMap<(Key, u32), Instant>,
    paths: BTreeMap<u8, Instant>,
    /// Connections that were split and are neither held nor started now.
    finished: u64,
}

impl Model {
    fn remembers(&self, at: Instant, memory: Duration) -> bool {
        self.now.saturating_since(at) < memory
    }

    fn is_bypassed(&self, key: &Key) -> bool {
        self.bypassed.get(key).is_some_and(|bypassed| self.remembers(bypassed.1, BYPASS_MEMORY))
    }

    fn is_asymmetric(&self, key: &Key) -> bool {
        self.paths.get(&key.hosts).is_some_and(|&at| self.remembers(at, PATH_MEMORY))
    }

    fn count(&self, stage: Stage) -> usize {
        self.stages.values().filter(|entry| entry.0 == stage).count()
    }

    fn stage(&self, key: &Key) -> Option<Stage> {
        self.stages.get(key).map(|entry| entry.0)
    }

    /// A decision on a SYN of no connection that is known.
    fn admitted(&self, key: &Key, config: &AdmissionConfig) -> Decision {
        let split = self.count(Stage::Held) + self.count(Stage::Started) + self.open;
        let waiting = self.count(Stage::Held) + self.count(Stage::Deferred);
        let is_full = split >= config.connections_max || waiting >= config.waiting_max;
        match () {
            () if is_full || self.is_asymmetric(key) => Decision::Pass,
            () if config.early_accept => Decision::Accept,
            () => Decision::Open,
        }
    }

    fn decision(&mut self, key: &Key, number: u32, config: &AdmissionConfig) -> Decision {
        match self.stages.get(key) {
            Some((Stage::Started, ..)) => return Decision::SendOn,
            Some((Stage::Held, ..)) => return Decision::Drop,
            Some((Stage::Deferred, ..)) | None => {}
        }
        if self.is_bypassed(key) {
            return Decision::Pass;
        }
        let sent_on = self.sent_on.get(&(*key, number));
        if sent_on.is_some_and(|&at| self.remembers(at, config.started_memory)) {
            return Decision::Drop;
        }
        self.stages.remove(key);
        self.admitted(key, config)
    }

    fn pass(&mut self, key: Key, number: u32) {
        let (is_known, now) = (self.is_bypassed(&key), self.now);
        match self.bypassed.get_mut(&key) {
            Some((first, at)) if is_known => {
                if *first == number {
                    *at = now;
                }
            }
            _ => {
                self.bypassed.insert(key, (number, now));
            }
        }
    }

    /// Removes a connection that was split.
    fn finish(&mut self, key: &Key) {
        if self.stages.remove(key).is_some() {
            self.finished += 1;
        }
    }
}

/// An admission with its model.
struct Checked {
    config: AdmissionConfig,
    admission: Admission<Key, Key, Key>,
    model: Model,
}

/// Checks the laws with these events, one after the other. What is remembered must be unbounded.
///
/// # Errors
/// Describes the first event that breaks a law.
pub fn check_admission(config: AdmissionConfig, events: &[AdmissionEvent]) -> Result<(), String> {
    let config = AdmissionConfig { remembered_max: usize::MAX, ..config };
    let admission = Admission::new(config);
    let mut checked = Checked { config, admission, model: Model::default() };
    for (number, &event) in events.iter().enumerate() {
        let result = checked.apply(event).and_then(|()| checked.check_sums());
        result.map_err(|error| format!("event {number}, {event:?}: {error}"))?;
    }
    Ok(())
}

fn expect<T: PartialEq + core::fmt::Debug>(what: &str, found: &T, right: &T) -> Result<(), String> {
    if found == right { Ok(()) } else { Err(format!("{what}: {found:?}, not {right:?}")) }
}

impl Checked {
    fn apply(&mut self, event: AdmissionEvent) -> Result<(), String> {
        let now = self.model.now;
        match event {
            AdmissionEvent::Wait(time, opening) => {
                self.model.now += time;
                self.retry(opening)
            }
            AdmissionEvent::Syn(key, number, client, opening) => {
                self.on_syn(key, number, client, opening)
            }
            AdmissionEvent::Answer(key, answer) => self.on_answer(key, answer),
            AdmissionEvent::Accepted(key) => {
                let is_started = self.model.stage(&key) == Some(Stage::Started);
                let accepted = self.admission.on_accepted(&key);
                if is_started {
                    self.model.finish(&key);
                    self.model.open += 1;
                }
                expect("accepted", &accepted, &is_started.then_some(key))
            }
            AdmissionEvent::Ended => {
                self.admission.on_ended();
                self.model.open = self.model.open.saturating_sub(1);
                Ok(())
            }
            AdmissionEvent::Abandoned(key, reason) => {
                let stage = self.model.stage(&key);
                let is_split = matches!(stage, Some(Stage::Held | Stage::Started));
                let abandoned = self.admission.on_abandoned(&key, reason);
                if is_split {
                    self.model.finish(&key);
                }
                expect("abandoned", &abandoned, &is_split)
            }
            AdmissionEvent::Asymmetric(key) => self.on_asymmetric(key),
            AdmissionEvent::Expire => {
                let limit = self.config.handshake_max;
                let entries = self.model.stages.iter();
                let late = entries.filter(|&(_, &(stage, since, _))| {
                    stage != Stage::Deferred && now.saturating_since(since) >= limit
                });
                let late: Vec<_> = late.map(|(&key, entry)| (key, entry.0)).collect();
                late.iter().for_each(|(key, _)| self.model.finish(key));
                let held = late.iter().filter(|entry| entry.1 == Stage::Held);
                expect("expired", &self.admission.expire(now), &held.map(|entry| entry.0).collect())
            }
        }
    }

    fn on_syn(
        &mut self,
        key: Key,
        number: u32,
        client: Side,
        opening: Opening,
    ) -> Result<(), String> {
        let now = self.model.now;
        let since = self.model.stages.get(&key).map(|entry| entry.1);
        let right = self.model.decision(&key, number, &self.config);
        let decision = self.admission.on_syn(key, number, client, now);
        if decision == Decision::GiveUp {
            // Whether others answer is not in the model, only when a server can be given up.
            let is_silent = since.is_some_and(|since| now.saturating_since(since) >= SILENT);
            let may_be = is_silent || self.model.is_asymmetric(&key);
            let is_held = self.model.stage(&key) == Some(Stage::Held);
            expect("gives up", &(self.config.may_be_asymmetric && is_held && may_be), &true)?;
            return self.on_asymmetric(key);
        }
        expect("decision", &decision, &right)?;
        self.carry_out(decision, (key, number), now, opening)
    }

    fn carry_out(
        &mut self,
        decision: Decision,
        (key, number): (Key, u32),
        arrived: Instant,
        opening: Opening,
    ) -> Result<(), String> {
        let now = self.model.now;
        let stage = match (decision, opening) {
            (Decision::Open, Opening::Opened) => {
                self.admission.on_opened(&key, key, now);
                (Stage::Held, now, number)
            }
            (Decision::Open, Opening::Taken) => {
                self.admission.on_taken(&key, key, now);
                if now.saturating_since(arrived) >= Duration::from_secs(1) {
                    return Ok(());
                }
                (Stage::Deferred, arrived, number)
            }
            (Decision::Accept, _) => {
                self.admission.on_started(&key, key, now);
                self.model.sent_on.insert((key, number), now);
                (Stage::Started, now, number)
            }
            (Decision::Open, Opening::Unopened) => {
                self.admission.on_unopened(&key, now);
                self.model.pass(key, number);
                return Ok(());
            }
            (Decision::Open, Opening::Lost) => {
                self.admission.on_lost(&key);
                return Ok(());
            }
            (Decision::Pass, _) => {
                self.model.pass(key, number);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.model.stages.insert(key, stage);
        Ok(())
    }

    /// Tries the deferred SYNs that are due. One that is tried again is due later.
    fn retry(&mut self, opening: Opening) -> Result<(), String> {
        let now = self.model.now;
        while let Some((key, syn, decision)) = self.admission.next_due(now) {
            expect("its SYN", &syn, &key)?;
            let Some((Stage::Deferred, arrived, number)) = self.model.stages.remove(&key) else {
                return Err(format!("{key:?} is due and was not deferred"));
            };
            expect("decision when due", &decision, &self.model.admitted(&key, &self.config))?;
            self.carry_out(decision, (key, number), arrived, opening)?;
        }
        let next = self.admission.next_due_at();
        expect("something is due", &next.is_some_and(|next| next <= now), &false)?;
        expect("some wait", &next.is_some(), &(self.model.count(Stage::Deferred) > 0))?;
        let deferred = self.model.stages.values().filter(|entry| entry.0 == Stage::Deferred);
        let oldest = deferred.map(|entry| entry.1).min();
        let is_late =
            |next: Instant| oldest.is_some_and(|oldest| next.saturating_since(oldest) > LAST_TRY);
        expect("a try is too late", &next.is_some_and(is_late), &false)
    }

    fn on_answer(&mut self, key: Key, answer: Answer) -> Result<(), String> {
        let (now, entry) = (self.model.now, self.model.stages.get(&key).copied());
        let (answer, reply) = match answer {
            Answer::Connected(()) => (Answer::Connected(key), Reply::SendOn),
            Answer::Refused => (Answer::Refused, Reply::Reset),
            Answer::Unreachable => (Answer::Unreachable, Reply::Unreachable),
            Answer::Failed => (Answer::Failed, Reply::Nothing),
        };
        let replied = self.admission.on_answer(&key, answer, now);
        let Some((Stage::Held, _, number)) = entry else {
            return expect("reply to no held SYN", &replied, &None);
        };
        if reply == Reply::SendOn {
            self.model.stages.insert(key, (Stage::Started, now, number));
            self.model.sent_on.insert((key, number), now);
        } else {
            self.model.finish(&key);
        }
        expect("reply", &replied, &Some((reply, key)))
    }

    fn on_asymmetric(&mut self, key: Key) -> Result<(), String> {
        let now = self.model.now;
        let is_held = self.model.stage(&key) == Some(Stage::Held);
        let is_known = is_held || self.model.is_bypassed(&key);
        let mut right = Vec::new();
        if self.config.may_be_asymmetric && is_known {
            self.model.paths.insert(key.hosts, now);
            let held = self.model.stages.clone().into_iter();
            for (held, (_, _, number)) in
                held.filter(|(held, entry)| held.hosts == key.hosts && entry.0 == Stage::Held)
            {
                self.model.finish(&held);
                self.model.pass(held, number);
                right.push((held, held));
            }
        }
        expect("released", &self.admission.on_asymmetric(&key, now), &right)
    }

    fn check_sums(&self) -> Result<(), String> {
        let (admission, model, config) = (&self.admission, &self.model, &self.config);
        let [held, started, deferred] =
            [Stage::Held, Stage::Started, Stage::Deferred].map(|stage| model.count(stage));
        expect("connections", &admission.connections(), &(held + started + model.open))?;
        expect("SYNs that wait", &admission.waiting(), &(held + deferred))?;
        expect("too many", &(admission.max_connections() > config.connections_max), &false)?;
        expect("too many wait", &(admission.waiting() > config.waiting_max), &false)?;
        let counters = admission.counters();
        let ends = [
            counters.accepted,
            counters.refused,
            counters.expired,
            counters.reset,
            counters.released,
        ];
        let finished = ends.iter().sum::<u64>();
        expect("connections that are finished", &finished, &model.finished)?;
        expect("split", &counters.split, &(finished + (held + started) as u64))
    }
}
