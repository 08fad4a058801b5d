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

/// The wires of all engines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wires {
    /// By socket.
    wires: Vec<Wire>,
    /// Destinations by flow number, table after table.
    by_flow: Vec<Socket>,
    /// The tables that `by_flow` holds and where they begin there: each is stored once.
    tables: Vec<(Arc<[(NodeId, Port)]>, u32)>,
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

    pub(crate) fn connect_by_flow(&mut self, from: Socket, to: Arc<[(NodeId, Port)]>) {
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
