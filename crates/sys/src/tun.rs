//! A TUN device: what the kernel of a namespace sends to the link, and what it gets from it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use tun_rs::{DeviceBuilder, SyncDevice};

use crate::error::SystemError;

/// The end of the link in a namespace. The interface is gone with its namespace.
pub struct Tun {
    device: SyncDevice,
    queue_packets: u32,
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
    /// How many packets wait here for who reads; the kernel drops what is more.
    pub queue_packets: u32,
}

const NODE: &str = "/dev/net/tun";
/// As the kernel's `Documentation/networking/tuntap.rst` has it.
const NODE_NUMBER: u64 = libc::makedev(10, 200);

impl Tun {
    /// Makes a device in the calling thread's network namespace, and takes it up. Unless it is asked
    /// otherwise the kernel cuts segments before they reach it, so that the link sees the packets that
    /// it would carry.
    ///
    /// # Errors
    /// If there is no `/dev/net/tun`, it may not be opened, or the thread may not make devices.
    pub fn up(config: Config<'_>) -> Result<Self, SystemError> {
        // The library would make what is missing, on the machine, and for good.
        look_at_node()?;
        Self::make(config).map_err(|error| {
            let fix = match error.raw_os_error() {
                Some(libc::EPERM) => {
                    "give it CAP_NET_ADMIN, or run it where user namespaces are allowed"
                }
                _ => "see dmesg",
            };
            SystemError::machine("making a TUN device", error, fix)
        })
    }

    fn make(config: Config<'_>) -> io::Result<Self> {
        let device = DeviceBuilder::new()
            .name(config.name)
            .mtu(config.mtu)
            .ipv4(config.address, config.prefix, None)
            .offload(config.super_packets)
            .packet_information(false)
            .build_sync()?;
        // Only root of the machine may do this. Others keep the kernel's 500 packets, and what is
        // dropped there is counted.
        let _ = device.set_tx_queue_len(config.queue_packets);
        let queue_packets = device.tx_queue_len()?;
        device.set_nonblocking(true)?;
        // Otherwise closing it waits for the interface to be unregistered, some 17 ms (an RCU grace
        // period). The kernel's worker that ends the namespace does that when nobody waits.
        device.persist()?;
        Ok(Self { device, queue_packets })
    }

    /// How many packets wait here for the driver at most: a TUN device holds as many as the interface's
    /// queue is long (`tun_attach` and `tun_queue_resize` of Linux's `drivers/net/tun.c`), and never
    /// stops that queue, so that none waits before it.
    #[must_use]
    pub fn queue_packets(&self) -> u32 {
        self.queue_packets
    }

    /// Reads one packet. `None` if there is none. A packet that is longer than the buffer fills it, and
    /// nothing says that it was cut: whoever needs to know gives a byte more than a packet may have.
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

/// Looks whether the kernel's TUN driver is there and this process may use it.
fn look_at_node() -> Result<(), SystemError> {
    let looked = File::options().read(true).write(true).open(NODE).and_then(|node| node.metadata());
    let error = match looked {
        Ok(found) if found.file_type().is_char_device() && found.rdev() == NODE_NUMBER => {
            return Ok(());
        }
        Ok(_) => io::Error::from_raw_os_error(libc::ENODEV),
        Err(error) => error,
    };
    let fix = match error.raw_os_error() {
        Some(libc::EACCES) => "as root: chmod 666 /dev/net/tun",
        // Of containers: who may open which device is a matter of their control group.
        Some(libc::EPERM) => "allow the container the device /dev/net/tun",
        _ => {
            "as root: modprobe tun; if it is missing then: mkdir -p /dev/net && \
             mknod -m 666 /dev/net/tun c 10 200; in a container: add the device /dev/net/tun"
        }
    };
    Err(SystemError::machine("opening /dev/net/tun", error, fix))
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
