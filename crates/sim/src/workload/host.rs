//! A host that opens TCP connections.

use bentpipe_core::packet::seq::SeqNumber;
use bentpipe_core::packet::{Address, Class, FlowId, Origin};
use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::config::CongestionName;
use bentpipe_core::tcp::{Config, Endpoint};

/// The TCP host of one end.
#[derive(Debug)]
pub struct Host {
    /// Its settings.
    pub config: Config,
    /// The source of initial sequence numbers.
    pub initials: Rng,
    /// The source of seeds for the congestion control of each connection.
    pub cycles: Rng,
    /// The flow of all its packets.
    pub flow: FlowId,
    /// The host at the other end.
    pub peer: Address,
    /// The class of all its packets.
    pub class: Class,
}

impl Host {
    #[inline]
    pub(super) fn endpoint(&mut self, origin: Origin) -> Endpoint {
        // Random initial sequence numbers (RFC 9293, section 3.4.1) make ordinary runs cover the
        // wrap.
        let initial = u32::try_from(self.initials.next_u64() >> 32).expect("32 bits");
        let endpoint = Endpoint::new(self.config, self.flow, origin, SeqNumber(initial));
        let endpoint = endpoint.toward(self.peer, self.class);
        if self.config.congestion != CongestionName::Bbr {
            return endpoint;
        }
        endpoint.with_rng(Rng::stream(self.cycles.next_u64(), "connection"))
    }
}
