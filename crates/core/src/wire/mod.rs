//! Protocol headers as bytes: emitted from simulated packets, and parsed from packets of real hosts.
//!
//! Parsers accept any bytes. A header that is truncated or inconsistent is `None`, or is parsed as far as
//! it is valid. Fragments are not reassembled.

pub mod checksum;
pub mod ecn;
pub mod ipv4;
pub mod ipv6;
pub mod pcapng;
pub mod tcp;
pub mod udp;

use core::net::IpAddr;

use checksum::Checksum;

/// Protocol number of TCP (IANA).
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// The five-tuple that identifies a transport flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiveTuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol number (IANA).
    pub protocol: u8,
    /// Source port; 0 if there is none or it cannot be read.
    pub source_port: u16,
    /// Destination port; likewise.
    pub destination_port: u16,
}

impl FiveTuple {
    /// The five-tuple of an IPv4 or IPv6 packet; `None` for anything else. Fragments other than the first
    /// have no ports.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        Headers::of(packet).map(|headers| headers.tuple)
    }

    /// The five-tuple of the opposite direction.
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

/// A summary of the headers of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The five-tuple.
    pub tuple: FiveTuple,
    /// The length in the IP header, which may exceed the bytes present.
    pub total_bytes: usize,
    /// The offset of the transport header, whether or not it is present.
    pub transport_offset: usize,
    /// Whether this is a fragment other than the first: it has no transport header.
    pub is_later_fragment: bool,
}

impl Headers {
    /// The headers of an IPv4 or IPv6 packet; `None` for anything else.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let (header, transport_offset) = ipv4::Header::parse(packet)?;
                let headers = Self {
                    tuple: without_ports(header.source, header.destination, header.protocol),
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
                    tuple: without_ports(header.source, header.destination, upper.protocol),
                    total_bytes,
                    transport_offset: upper.offset,
                    is_later_fragment: upper.is_later_fragment,
                };
                Some(headers.with_ports(packet))
            }
            _ => None,
        }
    }

    /// Reads the ports, for protocols whose headers begin with them.
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

fn without_ports(
    source: impl Into<IpAddr>,
    destination: impl Into<IpAddr>,
    protocol: u8,
) -> FiveTuple {
    let (source, destination) = (source.into(), destination.into());
    FiveTuple { source, destination, protocol, source_port: 0, destination_port: 0 }
}

/// The payload after a transport header, for its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This many bytes of zero, which are not stored.
    Zeros(usize),
}

impl Payload<'_> {
    /// The length.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it would have no caller")]
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
