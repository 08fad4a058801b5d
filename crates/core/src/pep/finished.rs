//! Connections that have ended, as long as segments of their beginning or end may arrive.

use std::collections::{BTreeMap, VecDeque};

use super::Key;
use super::connection::{End, HANDSHAKE_MAX};
use crate::packet::{Address, FlowId, Origin, Packet, PacketId, Payload};
use crate::tcp::{reset_for, time_wait_ack};
use crate::time::{Duration, Instant};

/// While a host may retransmit its SYN, and longer than a host stays in TIME-WAIT (60 s in Linux).
const MEMORY: Duration = HANDSHAKE_MAX;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Finished {
    ends: BTreeMap<Key, (Instant, End)>,
    /// In order of time; a connection that was reused has old entries.
    expiries: VecDeque<(Instant, Key)>,
}

impl Finished {
    pub(super) fn insert(&mut self, now: Instant, key: Key, end: End) {
        self.expire(now);
        self.ends.insert(key, (now + MEMORY, end));
        self.expiries.push_back((now + MEMORY, key));
    }

    /// Forgets a connection, whose number is used again.
    pub(super) fn remove(&mut self, now: Instant, key: Key) {
        self.expire(now);
        self.ends.remove(&key);
    }

    /// How a connection ended.
    pub(super) fn end_of(&self, now: Instant, key: Key) -> Option<End> {
        self.ends.get(&key).filter(|(until, _)| *until > now).map(|&(_, end)| end)
    }

    fn expire(&mut self, now: Instant) {
        while let Some(&(until, key)) = self.expiries.front()
            && until <= now
        {
            self.expiries.pop_front();
            if self.ends.get(&key).is_some_and(|end| end.0 == until) {
                self.ends.remove(&key);
            }
        }
    }
}

/// The answer to a segment of a connection that has ended.
pub(super) fn answer(
    now: Instant,
    packet: &Packet,
    end: End,
    serial: u64,
    address: fn(FlowId, Origin) -> Address,
) -> Option<Packet> {
    let segment = packet.segment()?;
    let answer = match end {
        End::Closed => time_wait_ack(segment)?,
        End::Refused | End::Reset | End::Expired => reset_for(segment)?,
    };
    let sender = packet.id.origin();
    Some(Packet {
        id: PacketId::new(packet.flow, sender.opposite(), serial),
        created_at: now,
        flow: packet.flow,
        destination: address(packet.flow, sender),
        class: packet.class,
        bytes: answer.ip_bytes(),
        payload: Payload::Tcp(answer),
        ..Packet::default()
    })
}
