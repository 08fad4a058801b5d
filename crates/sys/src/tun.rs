//! A TUN device: what the kernel of a namespace sends to the link, and what it gets from it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use tun_rs::{DeviceBuilder, SyncDevice};

/// The end of the link in a namespace. It is gone when this is dropped.
pub struct Tun {
    device: SyncDevice,
}

/// How a device is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The name of the interface.
    pub name: &'a str,
    /// Its address.
    pub address: Ipv4Addr,
    /// How many bits of the address all hosts on the link share.
    pub prefix: u8,
    /// The longest packet, in bytes.
    pub mtu: u16,
    /// Whether segments are left to be cut: each packet then has an [`crate::offload::Offload`] in
    /// front, both ways.
    pub super_packets: bool,
}

/// The kernel drops packets that wait here for the driver. A stall of 10 ms at a million packets a
/// second must not look like a queue that is full.
const KERNEL_QUEUE_PACKETS: u32 = 10_000;

impl Tun {
    /// Makes a device in the calling thread's network namespace, and takes it up. Unless it is asked
    /// otherwise the kernel cuts segments before they reach it, so that the link sees the packets that
    /// it would carry.
    ///
    /// # Errors
    /// What the kernel says, if there is no `/dev/net/tun` or the thread may not make devices.
    pub fn up(config: Config<'_>) -> io::Result<Self> {
        let device = DeviceBuilder::new()
            .name(config.name)
            .mtu(config.mtu)
            .ipv4(config.address, config.prefix, None)
            .offload(config.super_packets)
            .packet_information(false)
            .build_sync()?;
        // Only root of the machine may do this. Others keep the kernel's 500 packets, and what is
        // dropped there is counted.
        let _ = device.set_tx_queue_len(KERNEL_QUEUE_PACKETS);
        device.set_nonblocking(true)?;
        Ok(Self { device })
    }

    /// Reads one packet. `None` if there is none.
    ///
    /// # Errors
    /// What the kernel says, but for "none is there".
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.device.recv(buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Hands one packet to the kernel. False if it does not take it: it is no IP packet, or the
    /// interface is down, or there is no memory.
    pub fn send(&self, packet: &[u8]) -> bool {
        self.device.send(packet).is_ok()
    }
}

impl Tun {
    /// As [`Tun::send`], for a packet in parts.
    pub fn send_parts(&self, parts: &[IoSlice<'_>]) -> bool {
        rustix::io::writev(&self.device, parts).is_ok()
    }
}

/// What the kernel of a namespace counts of an interface.
#[derive(Debug)]
pub struct KernelCounters {
    file: File,
    prefix: String,
}

impl KernelCounters {
    /// Those of an interface of the calling thread's network namespace, to be read from anywhere.
    ///
    /// # Errors
    /// If `/proc` is not there.
    pub fn open(interface: &str) -> io::Result<Self> {
        let file = File::open("/proc/thread-self/net/dev")?;
        Ok(Self { file, prefix: format!("{interface}:") })
    }

    /// Packets for the interface that the kernel dropped, because the driver did not read them in
    /// time. Zero if it does not say.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let mut bytes = [0; 4096];
        let read = self.file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]);
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&self.prefix));
        // Eight numbers of what was received, then bytes, packets, errors and drops of what was sent.
        let dropped = line.and_then(|numbers| numbers.split_whitespace().nth(11)?.parse().ok());
        dropped.unwrap_or(0)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
