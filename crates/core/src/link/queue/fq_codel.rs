//! Flow queuing with controlled delay (RFC 8290): flows are hashed to queues, queues are served round
//! robin with a quantum of bytes (DRR++), a queue that was empty is served before the others, and CoDel
//! runs on each queue.
//!
//! Choices where the RFC leaves one, or where Linux differs:
//! - The hash is of the flow number and, for TCP, of the connection, in place of addresses and ports.
//! - The quantum counts IP bytes.
//! - CoDel's minimum backlog of one maximum packet applies to the one queue (as in RFC 8289); Linux
//!   applies it to all queues together. The maximum packet is the largest seen in any queue.
//! - Above the limit, packets are dropped from the head of the fattest queue (the one with most bytes)
//!   until half of its bytes or 64 packets are dropped, as in Linux, and again while the limit is
//!   exceeded. CoDel's count does not include these drops.

use std::collections::VecDeque;

use super::codel::{Control, ControlLaw, Fifo};
use super::{Limit, Occupancy, PacketSize, QueuedPacket};
use crate::packet::Packet;
use crate::rng::scramble;
use crate::time::{Duration, Instant};
use crate::trace::DropCause;

/// The parameters of a [`FqCoDel`] discipline.
#[derive(Clone, Copy, Debug)]
pub struct FqCoDelConfig {
    /// The capacity of all queues together; not a time.
    pub limit: Limit,
    /// CoDel's target.
    pub target: Duration,
    /// CoDel's interval.
    pub interval: Duration,
    /// IP bytes that a queue may send in a round.
    pub quantum_bytes: u32,
    /// The number of queues.
    pub queues: u32,
    /// Whether CoDel marks packets of ECN-capable transports instead of dropping them.
    pub ecn: bool,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct FqCoDel {
    limit: Limit,
    control_law: ControlLaw,
    quantum: i64,
    salt: u64,
    /// The index in `queues` for each hash value. Most hash values never occur: a queue is created for
    /// the first packet with its hash value.
    queue_of_hash: Vec<Option<usize>>,
    queues: Vec<Queue>,
    /// Indices of queues that wait for their first round (the RFC's list of new queues).
    new: VecDeque<usize>,
    /// Indices of queues that had one (the list of old queues).
    old: VecDeque<usize>,
    waiting: Occupancy,
}

#[derive(Clone, Debug, Default)]
struct Queue {
    fifo: Fifo,
    control: Control,
    /// IP bytes that the queue may still send in its round.
    credit: i64,
    /// Whether the queue is in one of the two lists.
    listed: bool,
}

/// The most packets dropped from a queue at once (Linux, `drop_batch_size`).
const BATCH_PACKETS: usize = 64;

impl FqCoDel {
    /// Empty queues. `salt` perturbs the hash, so that it differs between runs and between links.
    ///
    /// # Panics
    /// If there are no queues, the quantum is zero, or the limit is a time: the sojourn time of a
    /// packet is not known when it arrives.
    #[must_use]
    pub fn new(config: FqCoDelConfig, salt: u64) -> Self {
        config.limit.assert_held();
        assert!(config.queues > 0, "flows are hashed to at least one queue");
        assert!(config.quantum_bytes > 0, "the quantum is at least one byte");
        Self {
            limit: config.limit,
            control_law: ControlLaw::new(config.target, config.interval, config.ecn),
            quantum: config.quantum_bytes.into(),
            salt,
            queue_of_hash: vec![None; config.queues as usize],
            queues: Vec::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            waiting: Occupancy::default(),
        }
    }

    /// See [`super::DropAtDequeue::enqueue`].
    pub fn enqueue(&mut self, queued: QueuedPacket, on_drop: &mut impl FnMut(DropCause, &Packet)) {
        let bytes_max = self.waiting.bytes_max;
        self.control_law.observe(&queued.packet);
        self.waiting.on_enqueue(queued.size());
        self.enqueue_to_flow(queued);
        while !self.limit.holds(&self.waiting) {
            self.drop_from_fattest(on_drop);
        }
        // The maximum does not include packets that were dropped at once.
        self.waiting.bytes_max = bytes_max.max(self.waiting.bytes);
    }

    /// See [`super::DropAtDequeue::dequeue`].
    pub fn dequeue(
        &mut self,
        now: Instant,
        on_drop: &mut impl FnMut(DropCause, &Packet),
    ) -> Option<QueuedPacket> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let index = *list.front()?;
            let queue = &mut self.queues[index];
            if queue.credit <= 0 {
                queue.credit += self.quantum;
                list.pop_front();
                self.old.push_back(index);
                continue;
            }
            let waiting = &mut self.waiting;
            let next =
                queue.control.dequeue(&self.control_law, now, &mut queue.fifo, &mut |queued| {
                    waiting.on_dequeue(queued.size());
                    on_drop(DropCause::Codel, &queued.packet);
                });
            if let Some(next) = next {
                queue.credit -= i64::from(next.packet.bytes);
                waiting.on_dequeue(next.size());
                return Some(next);
            }
            list.pop_front();
            // A new queue that becomes empty moves to the old queues: if it were removed, its next packet
            // would make it new again, and it could starve the others (RFC 8290, 4.2).
            if is_new {
                self.old.push_back(index);
            } else {
                queue.listed = false;
            }
        }
    }

    /// The packets that wait, queue by queue.
    pub(super) fn packets(&self) -> impl Iterator<Item = &Packet> {
        self.queues.iter().flat_map(|queue| queue.fifo.iter())
    }

    pub(super) fn take_packets(&mut self) -> Vec<QueuedPacket> {
        self.queues.iter_mut().flat_map(|queue| queue.fifo.take()).collect()
    }

    /// Whether a packet of this size would not fit.
    pub(super) fn is_full(&self, size: PacketSize) -> bool {
        !self.limit.has_room(&self.waiting, size, Duration::ZERO)
    }

    /// The packets that wait, in all queues together.
    #[must_use]
    pub fn occupancy(&self) -> &Occupancy {
        &self.waiting
    }

    fn enqueue_to_flow(&mut self, queued: QueuedPacket) {
        let hash = self.hash(&queued.packet);
        let index = *self.queue_of_hash[hash].get_or_insert_with(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        });
        let queue = &mut self.queues[index];
        queue.fifo.push(queued);
        if !queue.listed {
            queue.listed = true;
            queue.credit = self.quantum;
            self.new.push_back(index);
        }
    }

    /// The hash value, below the number of queues: the high half of a product, so that the number need
    /// not be a power of two.
    fn hash(&self, packet: &Packet) -> usize {
        let connection = packet.segment().map_or(0, |segment| segment.connection);
        let flow = u64::from(connection) << 32 | u64::from(packet.flow.0);
        let hash = scramble(flow ^ scramble(self.salt));
        let product = u128::from(hash) * self.queue_of_hash.len() as u128;
        usize::try_from(product >> 64).expect("below the number of queues")
    }

    /// Drops from the head of the queue with most bytes; among equals, of the one with most packets
    /// (packets without IP bytes have link bytes), then of the one created first.
    fn drop_from_fattest(&mut self, on_drop: &mut impl FnMut(DropCause, &Packet)) {
        let size = |queue: &&mut Queue| (queue.fifo.bytes(), queue.fifo.packets());
        let fattest = self.queues.iter_mut().rev().max_by_key(size);
        let fifo = &mut fattest.expect("a backlog above the limit is in a queue").fifo;
        let enough = fifo.bytes() / 2;
        let before = fifo.bytes();
        for _ in 0..BATCH_PACKETS {
            let first = fifo.pop().expect("the queue has packets until half of its bytes are gone");
            self.waiting.on_dequeue(first.size());
            on_drop(DropCause::QueueFull, &first.packet);
            if before - fifo.bytes() >= enough {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Drops, queued, serial};
    use super::*;
    use crate::packet::{FlowId, Payload};

    fn fq_codel(limit: Limit, quantum_bytes: u32, salt: u64) -> FqCoDel {
        let target = Duration::from_millis(5);
        let interval = Duration::from_millis(100);
        let (queues, ecn) = (1_024, false);
        let config = FqCoDelConfig { limit, target, interval, quantum_bytes, queues, ecn };
        FqCoDel::new(config, salt)
    }

    fn enqueue(queue: &mut FqCoDel, flow: u32, serials: core::ops::Range<u64>, bytes: u32) {
        for serial in serials {
            queue.enqueue(queued(flow, serial, bytes, 0), &mut |_, _| panic!("there is room"));
        }
    }

    /// Dequeues a packet without sojourn time, so that `CoDel` drops nothing, and returns its flow.
    fn dequeue(queue: &mut FqCoDel) -> Option<u32> {
        let next = queue.dequeue(Instant::START, &mut |_, _| panic!("no packet has waited"));
        next.map(|next| next.packet.flow.0)
    }

    /// Given two backlogged flows with packets of 1,500 and of 100 bytes, expect their bytes sent to differ
    /// by at most a quantum and a packet, with quanta below and above the packet size.
    #[test]
    fn flows_get_equal_shares_in_bytes() {
        for quantum in [300, 1_500, 1_514] {
            let mut queue = fq_codel(Limit::Unlimited, quantum, 1);
            enqueue(&mut queue, 0, 0..100, 1_500);
            enqueue(&mut queue, 1, 0..1_500, 100);
            let mut sent = [0u64; 2];
            while sent.iter().sum::<u64>() < 200_000 {
                match dequeue(&mut queue).expect("both have packets") {
                    0 => sent[0] += 1_500,
                    _ => sent[1] += 100,
                }
                let bound = 1_500 + u64::from(quantum);
                assert!(sent[0].abs_diff(sent[1]) <= bound, "quantum {quantum}: {sent:?}");
            }
        }
    }

    /// A packet of 1,500 bytes uses a quantum of 1,500 bytes; one more byte is charged to the next round.
    #[test]
    fn a_round_ends_when_its_quantum_is_sent() {
        let mut queue = fq_codel(Limit::Unlimited, 1_500, 1);
        enqueue(&mut queue, 0, 0..4, 1_500);
        enqueue(&mut queue, 1, 0..8, 750);
        let turns: Vec<_> = (0..12).map_while(|_| dequeue(&mut queue)).collect();
        assert_eq!(turns, [0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1]);
        assert_eq!(dequeue(&mut queue), None);
    }

    #[test]
    fn a_sparse_flow_is_served_before_the_busy_ones() {
        let mut queue = fq_codel(Limit::Unlimited, 1_500, 1);
        enqueue(&mut queue, 0, 0..10, 1_500);
        enqueue(&mut queue, 1, 0..10, 1_500);
        assert_eq!(
            [dequeue(&mut queue), dequeue(&mut queue), dequeue(&mut queue)],
            [0, 1, 0].map(Some)
        );
        enqueue(&mut queue, 2, 0..1, 100);
        assert_eq!([dequeue(&mut queue), dequeue(&mut queue)], [2, 1].map(Some));
        assert_eq!(queue.queues.len(), 3, "no two of these flows share a queue");
    }

    /// Given two sparse flows, each of which sends its next packet while a packet of the other is sent, so
    /// that one of them always has a packet, expect a busy flow to be served after at most two sparse
    /// packets from new queues and two from old ones: an emptied new queue becomes an old one.
    #[test]
    fn new_queues_do_not_starve_old_ones() {
        let mut queue = fq_codel(Limit::Unlimited, 1_500, 1);
        enqueue(&mut queue, 0, 0..200, 1_500);
        assert_eq!(dequeue(&mut queue), Some(0));
        enqueue(&mut queue, 1, 0..1, 100);
        let (mut since_busy, mut busy) = (0, 0);
        for round in 0..400 {
            let flow = dequeue(&mut queue).expect("the busy flow has packets");
            since_busy = if flow == 0 { 0 } else { since_busy + 1 };
            busy += u32::from(flow == 0);
            assert!(since_busy <= 4, "in round {round}");
            if flow > 0 {
                enqueue(&mut queue, 3 - flow, round + 1..round + 2, 100);
            }
        }
        assert!(busy >= 80, "{busy} of 400 packets, expected at least every fifth");
    }

    /// Given 10 packets of 1,500 bytes and 20 of 100, expect drops of half of the 15,000 bytes: the oldest
    /// five packets.
    #[test]
    fn packets_above_the_limit_are_dropped_from_the_fattest_queue() {
        let mut queue = fq_codel(Limit::Packets(30), 1_500, 1);
        enqueue(&mut queue, 0, 0..20, 100);
        enqueue(&mut queue, 1, 0..10, 1_500);
        let mut drops = Drops::default();
        queue.enqueue(queued(0, 20, 100, 0), &mut drops.record());
        let expected: Vec<_> = (0..5).map(|serial| (DropCause::QueueFull, 1, serial)).collect();
        assert_eq!(drops.0, expected);
        assert_eq!((queue.occupancy().packets, queue.occupancy().bytes), (26, 9_600));
    }

    /// Given packets without IP bytes, which have link bytes, and another flow whose queue is empty.
    #[test]
    fn a_queue_without_ip_bytes_can_be_the_fattest() {
        let mut queue = fq_codel(Limit::LinkBytes(24), 1_500, 1);
        enqueue(&mut queue, 0, 0..1, 0);
        assert_eq!(dequeue(&mut queue), Some(0));
        enqueue(&mut queue, 1, 0..3, 0);
        let mut drops = Drops::default();
        queue.enqueue(queued(1, 3, 0, 0), &mut drops.record());
        assert_eq!(drops.0, [(DropCause::QueueFull, 1, 0)]);
    }

    #[test]
    fn at_most_64_packets_are_dropped_at_once() {
        let mut queue = fq_codel(Limit::Packets(1_000), 1_500, 1);
        enqueue(&mut queue, 0, 0..1_000, 100);
        let mut drops = Drops::default();
        queue.enqueue(queued(0, 1_000, 100, 0), &mut drops.record());
        assert_eq!(drops.0.len(), 64);
        assert_eq!(drops.0[63], (DropCause::QueueFull, 0, 63));
    }

    /// Given a packet larger than the limit, expect all packets to be dropped, itself included, and the
    /// maximum without it.
    #[test]
    fn a_limit_in_bytes_always_holds() {
        let mut queue = fq_codel(Limit::Bytes(3_000), 1_500, 1);
        enqueue(&mut queue, 0, 0..30, 100);
        let mut drops = Drops::default();
        queue.enqueue(queued(1, 0, 9_000, 0), &mut drops.record());
        assert_eq!(drops.0, [(DropCause::QueueFull, 1, 0)], "it was the longest queue");
        let left = Occupancy { packets: 30, bytes: 3_000, link_bytes: 3_240, bytes_max: 3_000 };
        assert_eq!(*queue.occupancy(), left);
        assert_eq!(std::iter::from_fn(|| dequeue(&mut queue)).count(), 30);
    }

    /// Given two queues whose packets have waited for 20 ms when the first is sent at 20 ms, expect a drop
    /// an interval later, at 120 ms, from the queue that is served each millisecond, and none from the
    /// other, whose packets are sent at once.
    #[test]
    fn each_queue_has_its_own_codel_state() {
        let mut queue = fq_codel(Limit::Unlimited, 1_000, 1);
        enqueue(&mut queue, 0, 0..1_000, 1_000);
        let mut drops = Drops::default();
        let mut last = None;
        for millis in 20..130 {
            queue.enqueue(queued(1, millis, 1_000, millis), &mut drops.record());
            for _ in 0..2 {
                let sent = queue.dequeue(Instant::from_millis(millis), &mut drops.record());
                let sent = sent.expect("there are packets").packet;
                last = (sent.flow == FlowId(0)).then(|| serial(&sent)).or(last);
            }
            assert_eq!(drops.0.len(), usize::from(millis >= 120), "at {millis} ms");
        }
        assert_eq!(drops.0, [(DropCause::Codel, 0, 100)]);
        assert_eq!(last, Some(110), "110 sent and one dropped, counted from zero");
    }

    /// 100 flows use 1,024 (1 - (1 - 1/1,024)^100) = 95.3 of 1,024 queues, standard deviation 2.04. The
    /// mean of 400 salts has an error of 0.102; the bound is five of them.
    #[test]
    fn the_hash_distributes_flows_uniformly() {
        let mut made = 0;
        for salt in 0..400 {
            let mut queue = fq_codel(Limit::Unlimited, 1_500, salt);
            (0..100).for_each(|flow| enqueue(&mut queue, flow, 0..1, 100));
            made += queue.queues.len();
        }
        assert!(made.abs_diff(38_126) < 204, "{made} queues with 400 salts");
    }

    #[test]
    fn connections_of_one_flow_have_different_queues() {
        let queue = fq_codel(Limit::Unlimited, 1_500, 1);
        let hash = |connection| {
            let segment = crate::packet::segment::Segment { connection, ..Default::default() };
            let packet = queued(0, 0, 100, 0).packet;
            queue.hash(&Packet { payload: Payload::Tcp(segment), ..(*packet).clone() })
        };
        assert_ne!(hash(0), hash(1));
        assert_eq!(hash(0), queue.hash(&queued(0, 5, 40, 0).packet));
    }
}
