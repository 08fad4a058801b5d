//! Wires: the next hop of a packet, by the port that it leaves from and its destination.

use std::sync::Arc;

use crate::packet::{Address, Port};
use crate::trace::NodeId;

const PORT_BITS: u32 = 2;

/// The number of ports of an engine.
pub const PORTS_MAX: usize = 1 << PORT_BITS;

/// An engine and one of its ports, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EnginePort(u32);

impl EnginePort {
    /// Port 0 of an engine. A graph holds fewer than 2^24 engines.
    #[inline]
    pub(crate) fn of(node: NodeId) -> Self {
        Self(node.0 << PORT_BITS)
    }

    /// Port 0 of the same engine.
    #[inline]
    pub(crate) fn first(self) -> Self {
        Self(self.0 & !(PORTS_MAX as u32 - 1))
    }

    /// The given port, counted from this one; one of the two is port 0.
    #[inline]
    pub(crate) fn shifted(self, port: Port) -> Self {
        assert!(usize::from(port.0) < PORTS_MAX, "ports are numbered below {PORTS_MAX}");
        debug_assert!(self.port().0 == 0 || port.0 == 0, "an engine with more than one port");
        Self(self.0 | u32::from(port.0))
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

impl From<(NodeId, Port)> for EnginePort {
    fn from((node, port): (NodeId, Port)) -> Self {
        Self::of(node).shifted(port)
    }
}

/// The next hop or the routing table of a port.
#[derive(Clone, Copy, Debug)]
struct Wire {
    /// The number of destinations in the table; zero if there is no table.
    destinations: u32,
    /// The next hop, or the index of the table's first entry in [`Wires::routes`].
    to: u32,
}

/// The way out of the graph, as the target of a wire. An unconnected port leads there too. No engine
/// has this number.
pub const EGRESS: (NodeId, Port) = (NodeId(u32::MAX >> PORT_BITS), Port(PORTS_MAX as u8 - 1));
/// [`EGRESS`] in one word.
pub(crate) const EGRESS_PORT: EnginePort = EnginePort(u32::MAX);
/// The table has no entry for the destination: the packet is dropped.
pub(crate) const UNROUTED: EnginePort = EnginePort(u32::MAX - PORTS_MAX as u32);

/// Cold: only packets for unknown destinations get here.
#[cold]
#[inline(never)]
fn unrouted() -> EnginePort {
    UNROUTED
}

/// A routing table: the next hop by destination.
type Routes = Arc<[Option<(NodeId, Port)>]>;

/// The wires of all engines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wires {
    /// By engine port.
    wires: Vec<Wire>,
    /// The entries of all routing tables, table after table.
    routes: Vec<EnginePort>,
    /// Each table in `routes`, once, with the index of its first entry.
    tables: Vec<(Routes, u32)>,
}

impl Wires {
    /// Adds the ports of one more engine, unconnected.
    pub(crate) fn add(&mut self) {
        let unconnected = Wire { destinations: 0, to: EGRESS_PORT.0 };
        self.wires.extend([unconnected; PORTS_MAX]);
    }

    pub(crate) fn connect(&mut self, from: EnginePort, to: EnginePort) {
        self.wires[from.0 as usize] = Wire { destinations: 0, to: to.0 };
    }

    pub(crate) fn connect_by_destination(&mut self, from: EnginePort, to: Routes) {
        assert!(!to.is_empty(), "a routing table has at least one destination");
        let destinations = u32::try_from(to.len()).expect("hosts have 32-bit numbers");
        let stored = self.tables.iter().find(|(table, _)| Arc::ptr_eq(table, &to));
        let start = match stored {
            Some(&(_, start)) => start,
            None => {
                let start = u32::try_from(self.routes.len()).expect("few tables");
                self.routes.extend(to.iter().map(|next| next.map_or(UNROUTED, EnginePort::from)));
                self.tables.push((to, start));
                start
            }
        };
        self.wires[from.0 as usize] = Wire { destinations, to: start };
    }

    /// The next hop of a packet for `destination` that leaves by `from`.
    #[inline]
    pub(crate) fn next_hop(&self, from: EnginePort, destination: Address) -> EnginePort {
        let Wire { destinations, to } = self.wires[from.0 as usize];
        if destinations == 0 {
            return EnginePort(to);
        }
        if destination.0 >= destinations {
            return unrouted();
        }
        self.routes[(to + destination.0) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine_port(node: u32, port: u8) -> EnginePort {
        (NodeId(node), Port(port)).into()
    }

    fn wires() -> Wires {
        let mut wires = Wires::default();
        (0..4).for_each(|_| wires.add());
        wires
    }

    /// Given two tables, one of which serves two ports, expect each port to use its table and the
    /// shared table to be stored once.
    #[test]
    fn each_port_uses_its_table_and_equal_tables_are_shared() {
        let mut wires = wires();
        let shared: Routes = [Some((NodeId(1), Port(0))), Some((NodeId(2), Port(3)))].into();
        let other: Routes = [Some((NodeId(3), Port(1)))].into();
        wires.connect_by_destination(engine_port(0, 1), Arc::clone(&shared));
        wires.connect_by_destination(engine_port(0, 2), other);
        wires.connect_by_destination(engine_port(1, 0), shared);
        assert_eq!(wires.next_hop(engine_port(0, 1), Address(1)), engine_port(2, 3));
        assert_eq!(wires.next_hop(engine_port(0, 2), Address(0)), engine_port(3, 1));
        assert_eq!(wires.next_hop(engine_port(1, 0), Address(0)), engine_port(1, 0));
        assert_eq!(wires.routes.len(), 3);
    }

    /// Given two adjacent tables, expect no route for a destination beyond the end of the first table
    /// or without an entry in it, and not a route of the second table.
    #[test]
    fn an_unknown_destination_has_no_route() {
        let mut wires = wires();
        let first: Routes = [Some((NodeId(1), Port(0))), None].into();
        let second: Routes = [Some((NodeId(2), Port(0)))].into();
        for (table, port) in [first, second].into_iter().zip(0..) {
            wires.connect_by_destination(engine_port(0, port), table);
        }
        assert_eq!(wires.next_hop(engine_port(0, 0), Address(1)), UNROUTED);
        assert_eq!(wires.next_hop(engine_port(0, 0), Address(2)), UNROUTED);
        assert_ne!(UNROUTED, EGRESS_PORT);
    }

    #[test]
    fn an_unwired_port_leads_to_egress() {
        let mut wires = wires();
        assert_eq!(EnginePort::from(EGRESS), EGRESS_PORT);
        assert_eq!(wires.next_hop(engine_port(0, 1), Address(7)), EGRESS_PORT);
        let routes: Routes = [Some(EGRESS)].into();
        wires.connect_by_destination(engine_port(0, 0), routes);
        assert_eq!(wires.next_hop(engine_port(0, 0), Address(0)), EGRESS_PORT);
    }

    #[test]
    #[should_panic(expected = "numbered below 4")]
    fn a_port_number_above_the_maximum_panics() {
        let _ = engine_port(0, 4);
    }
}
