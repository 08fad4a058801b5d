//! Headers as bytes: made from what the simulator carries, and read from what real hosts send.
//!
//! Everything here takes any bytes: what is cut short or contradicts itself is `None`, or read as far
//! as it can be trusted. Nothing is put together again from fragments.

pub mod checksum;
pub mod ecn;
pub mod ipv4;
pub mod ipv6;
pub mod pcapng;
pub mod tcp;
pub mod udp;

use core::net::IpAddr;

use checksum::Checksum;

/// TCP's number in IANA's list of protocols.
pub const TCP: u8 = 6;
/// UDP's number.
pub const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// What tells conversations apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiveTuple {
    /// Who sent it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// A number of IANA's list of protocols.
    pub protocol: u8,
    /// The port that it comes from; 0 where there is none, or none can be read.
    pub source_port: u16,
    /// The port that it is for; 0 likewise.
    pub destination_port: u16,
}

impl FiveTuple {
    /// That of an IP packet, version 4 or 6. `None` if it is no such packet. Fragments but the first
    /// have no ports: all that is known of them is who talks to whom, and by what protocol.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        Headers::of(packet).map(|headers| headers.tuple)
    }

    /// That of the answers.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// What the headers of an IP packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Whose it is.
    pub tuple: FiveTuple,
    /// The length of the packet as its header says, which may be more than there is of it.
    pub total_bytes: usize,
    /// Where the transport header begins, or would begin.
    pub transport_offset: usize,
    /// Whether it is a fragment other than the first, which has no transport header.
    pub is_later_fragment: bool,
}

impl Headers {
    /// Those of an IP packet, version 4 or 6. `None` if it is no such packet.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let (header, transport_offset) = ipv4::Header::parse(packet)?;
                let headers = Self {
                    tuple: portless(header.source, header.destination, header.protocol),
                    total_bytes: header.total_bytes.into(),
                    transport_offset,
                    is_later_fragment: header.fragment_offset != 0,
                };
                Some(headers.with_ports(packet))
            }
            6 => {
                let header = ipv6::Header::parse(packet)?;
                let total_bytes = header.total_bytes(packet);
                let upper = header.upper(packet.get(..total_bytes).unwrap_or(packet));
                let headers = Self {
                    tuple: portless(header.source, header.destination, upper.protocol),
                    total_bytes,
                    transport_offset: upper.offset,
                    is_later_fragment: upper.is_later_fragment,
                };
                Some(headers.with_ports(packet))
            }
            _ => None,
        }
    }

    /// These protocols begin with the two ports.
    fn with_ports(mut self, packet: &[u8]) -> Self {
        let has_ports = matches!(self.tuple.protocol, TCP | UDP | DCCP | SCTP | UDP_LITE);
        if self.is_later_fragment || !has_ports {
            return self;
        }
        let packet = packet.get(..self.total_bytes).unwrap_or(packet);
        let transport = packet.get(self.transport_offset..).unwrap_or_default();
        if let Some(&[a, b, c, d]) = transport.first_chunk() {
            self.tuple.source_port = u16::from_be_bytes([a, b]);
            self.tuple.destination_port = u16::from_be_bytes([c, d]);
        }
        self
    }
}

fn portless(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, protocol: u8) -> FiveTuple {
    let (source, destination) = (source.into(), destination.into());
    FiveTuple { source, destination, protocol, source_port: 0, destination_port: 0 }
}

/// What follows a transport header, for its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// So many bytes that nobody carries; they count as zeros.
    Zeros(usize),
}

impl Payload<'_> {
    /// How many bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        match *self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(count) => count,
        }
    }

    fn add_to(self, sum: &mut Checksum) {
        match self {
            Self::Bytes(bytes) => sum.add(bytes),
            Self::Zeros(_) => {}
        }
    }
}
