//! Where what an engine sends goes.

use std::sync::Arc;

use crate::packet::{FlowId, Port};
use crate::trace::NodeId;

const PORT_BITS: u32 = 2;

/// Ports of an engine are numbered below this.
pub const PORTS_MAX: usize = 1 << PORT_BITS;

/// A port of an engine, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket(u32);

impl Socket {
    /// The first port of an engine. A graph holds fewer than 2^24 of them.
    #[inline]
    pub(crate) fn of(node: NodeId) -> Self {
        Self(node.0 << PORT_BITS)
    }

    /// Another port of the same engine.
    #[inline]
    pub(crate) fn with(self, port: Port) -> Self {
        assert!(usize::from(port.0) < PORTS_MAX, "ports are numbered below {PORTS_MAX}");
        Self(self.0 & !(PORTS_MAX as u32 - 1) | u32::from(port.0))
    }

    #[inline]
    pub(crate) fn node(self) -> NodeId {
        NodeId(self.0 >> PORT_BITS)
    }

    #[inline]
    pub(crate) fn port(self) -> Port {
        Port((self.0 % PORTS_MAX as u32) as u8)
    }
}

impl From<(NodeId, Port)> for Socket {
    fn from((node, port): (NodeId, Port)) -> Self {
        Self::of(node).with(port)
    }
}

/// Where packets sent out of one port go.
#[derive(Clone, Copy, Debug)]
struct Wire {
    /// How many flows are told apart; zero if all packets go to one place.
    flows: u32,
    /// The place, or where the places of the flows begin in the list of them.
    to: u32,
}

/// Nobody is there: the packet leaves the graph. No engine has a number so high.
const EGRESS: Socket = Socket(u32::MAX);

/// Where the packets of each flow go, by flow number.
type ByFlow = Arc<[(NodeId, Port)]>;

/// The wires of all engines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wires {
    /// By socket.
    wires: Vec<Wire>,
    /// Destinations by flow number, table after table.
    by_flow: Vec<Socket>,
    /// The tables that `by_flow` holds and where they begin there: each is stored once.
    tables: Vec<(ByFlow, u32)>,
}

impl Wires {
    /// Makes room for the ports of one more engine; nothing is wired to them.
    pub(crate) fn add(&mut self) {
        let unwired = Wire { flows: 0, to: EGRESS.0 };
        self.wires.extend([unwired; PORTS_MAX]);
    }

    pub(crate) fn connect(&mut self, from: Socket, to: Socket) {
        self.wires[from.0 as usize] = Wire { flows: 0, to: to.0 };
    }

    pub(crate) fn connect_by_flow(&mut self, from: Socket, to: ByFlow) {
        assert!(!to.is_empty(), "a table serves one flow at least");
        let flows = u32::try_from(to.len()).expect("flows are numbered in 32 bits");
        let stored = self.tables.iter().find(|(table, _)| Arc::ptr_eq(table, &to));
        let start = match stored {
            Some(&(_, start)) => start,
            None => {
                let start = u32::try_from(self.by_flow.len()).expect("few tables");
                self.by_flow.extend(to.iter().map(|&socket| Socket::from(socket)));
                self.tables.push((to, start));
                start
            }
        };
        self.wires[from.0 as usize] = Wire { flows, to: start };
    }

    /// Where a packet of a flow goes that leaves by `from`, if it stays in the graph.
    #[inline]
    pub(crate) fn destination(&self, from: Socket, flow: FlowId) -> Socket {
        let Wire { flows, to } = self.wires[from.0 as usize];
        if flows == 0 {
            return Socket(to);
        }
        assert!(flow.0 < flows, "a packet of a flow that nobody serves");
        self.by_flow[(to + flow.0) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(node: u32, port: u8) -> Socket {
        (NodeId(node), Port(port)).into()
    }

    fn wires() -> Wires {
        let mut wires = Wires::default();
        (0..4).for_each(|_| wires.add());
        wires
    }

    /// Given two tables of which one serves two ports, expect each port to lead where its table says
    /// and the shared one to be stored once.
    #[test]
    fn tables_are_told_apart_and_shared() {
        let mut wires = wires();
        let shared: ByFlow = [(NodeId(1), Port(0)), (NodeId(2), Port(3))].into();
        let other: ByFlow = [(NodeId(3), Port(1))].into();
        wires.connect_by_flow(socket(0, 1), Arc::clone(&shared));
        wires.connect_by_flow(socket(0, 2), other);
        wires.connect_by_flow(socket(1, 0), shared);
        assert_eq!(wires.destination(socket(0, 1), FlowId(1)), socket(2, 3));
        assert_eq!(wires.destination(socket(0, 2), FlowId(0)), socket(3, 1));
        assert_eq!(wires.destination(socket(1, 0), FlowId(0)), socket(1, 0));
        assert_eq!(wires.by_flow.len(), 3);
    }

    #[test]
    #[should_panic(expected = "a flow that nobody serves")]
    fn a_flow_without_a_place_is_not_led_to_that_of_another() {
        let mut wires = wires();
        let tables: [ByFlow; 2] = [[(NodeId(1), Port(0))].into(), [(NodeId(2), Port(0))].into()];
        for (table, port) in tables.into_iter().zip(0..) {
            wires.connect_by_flow(socket(0, port), table);
        }
        wires.destination(socket(0, 0), FlowId(1));
    }

    #[test]
    #[should_panic(expected = "numbered below 4")]
    fn a_port_is_not_taken_for_one_of_the_next_engine() {
        let _ = socket(0, 4);
    }
}
