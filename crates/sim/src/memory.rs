//! How much memory a run takes, counted by the run itself, and what is expected of it beforehand.
//!
//! The count asks no operating system, so that a limit ends the same plan at the same event on every
//! machine. It adds up what grows with the length of a run: packets, and the rows that are recorded.
//! What a thing takes is the size of its type, the room by which containers grow, and the copies
//! through which a row passes until it is in a file.

use bentpipe_core::engine::Engine;
use bentpipe_core::graph::Graph;
use bentpipe_core::link::{Direction, Processor};
use bentpipe_core::packet::Packet;

use crate::plan::{Plan, Queue};
use crate::workload::{
    BulkReceiver, BulkSender, Client, ConstantRate, DatagramSink, Node, Participant, Reflector,
    Server,
};

/// What an allocator keeps beside each allocation (glibc's `malloc`: 8 bytes, rounded up to 16).
const ALLOCATION_BYTES: u64 = 16;

/// A packet, and its entries of 32 bytes in the line of a direction and in the list of what its sender
/// has outstanding. Both containers double when they are full.
pub const PACKET_BYTES: u64 = size_of::<Packet>() as u64 + ALLOCATION_BYTES + 2 * 64;

/// What a table's row takes: while a column grows, its old and its new place, which is twice as large.
/// Later the table, its copy for Python and the one in the frame.
pub const ROW_COPIES: u64 = 3;

/// Names, wires, random streams and the text of the plan, for each flow.
const FLOW_BYTES: u64 = 4_096;
/// A direction's queue and steps of its rate and delay, when it is idle.
const DIRECTION_BYTES: u64 = 2_048;
/// FQ-CoDel knows the place of each hash value's queue.
const HASH_VALUE_BYTES: u64 = size_of::<Option<usize>>() as u64;

/// What the engines of a graph and the plan take before anything happens.
pub(crate) fn fixed_bytes(plan: &Plan, graph: &Graph<Node>) -> u64 {
    let engines = graph.engines().map(engine_bytes).sum::<u64>();
    engines + plan_bytes(plan)
}

fn plan_bytes(plan: &Plan) -> u64 {
    let directions = std::iter::once(&plan.link.forward).chain(&plan.link.returns);
    let directions = directions.map(|direction| {
        let hash_values = match direction.queue {
            Queue::FqCodel { queues, .. } => u64::from(queues),
            _ => 0,
        };
        DIRECTION_BYTES + HASH_VALUE_BYTES * hash_values
    });
    FLOW_BYTES * plan.flows.len() as u64 + directions.sum::<u64>()
}

fn engine_bytes(node: &Node) -> u64 {
    let bytes = match node {
        Node::Direction(_) => size_of::<Direction>(),
        Node::Processor(_) => size_of::<Processor>(),
        Node::BulkSender(_) => size_of::<BulkSender>(),
        Node::BulkReceiver(_) => size_of::<BulkReceiver>(),
        Node::ConstantRate(_) => size_of::<ConstantRate>(),
        Node::DatagramSink(_) => size_of::<DatagramSink>(),
        Node::Client(_) => size_of::<Client>(),
        Node::Server(_) => size_of::<Server>(),
        Node::Participant(_) => size_of::<Participant>(),
        Node::Reflector(_) => size_of::<Reflector>(),
    };
    bytes as u64 + ALLOCATION_BYTES + size_of::<Node>() as u64
}
