//! The sizes of headers without options, in bytes.

/// Of IPv4.
pub const IPV4: u32 = 20;
/// Of IPv6.
pub const IPV6: u32 = 40;
/// Of TCP.
pub const TCP: u32 = 20;
/// Of UDP.
pub const UDP: u32 = 8;
/// Of a datagram: IPv4 and UDP.
pub const DATAGRAM: u32 = IPV4 + UDP;
/// Of a TCP segment: IPv4 and TCP.
pub const SEGMENT: u32 = IPV4 + TCP;
