//! TUN devices: the kernel's packets for the link, and the link's packets for the kernel.

use std::fs::File;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use tun_rs::{DeviceBuilder, SyncDevice};

use crate::error::SystemError;

/// A TUN device. The interface is removed with its network namespace.
pub struct Tun {
    device: SyncDevice,
    queue_packets: u32,
}

/// The configuration of a device.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The interface name.
    pub name: &'a str,
    /// The interface address.
    pub address: Ipv4Addr,
    /// The prefix length of the address.
    pub prefix: u8,
    /// The MTU, in bytes.
    pub mtu: u16,
    /// Whether segmentation is offloaded to the reader: each packet then has an
    /// [`crate::offload::Offload`] header in front, in both directions.
    pub super_packets: bool,
    /// The queue length in packets, beyond which the kernel drops. A thread without CAP_NET_ADMIN in the initial user
    /// namespace has the kernel's length instead: see [`Tun::queue_packets`].
    pub queue_packets: u32,
}

const NODE: &str = "/dev/net/tun";
/// Major 10, minor 200: `Documentation/networking/tuntap.rst` in the Linux source.
const NODE_NUMBER: u64 = libc::makedev(10, 200);

impl Tun {
    /// Creates a device in the calling thread's network namespace and brings it up. Without
    /// `super_packets` the kernel segments before the device, so the link sees packets as it would
    /// carry them.
    ///
    /// # Errors
    /// If `/dev/net/tun` is missing or cannot be opened, the thread lacks CAP_NET_ADMIN, or the kernel refuses the name,
    /// the address or the MTU.
    pub fn create(config: Config<'_>) -> Result<Self, SystemError> {
        // tun-rs would create a missing device node on the machine, permanently.
        check_device_node()?;
        Self::make(config).map_err(not_made)
    }

    fn make(config: Config<'_>) -> io::Result<Self> {
        let device = DeviceBuilder::new()
            .name(config.name)
            .mtu(config.mtu)
            .ipv4(config.address, config.prefix, None)
            .offload(config.super_packets)
            .packet_information(false)
            .build_sync()?;
        // Needs CAP_NET_ADMIN in the initial user namespace. Otherwise the kernel's 500 packets
        // stay, and drops there are counted.
        let _ = device.set_tx_queue_len(config.queue_packets);
        let queue_packets = device.tx_queue_len()?;
        device.set_nonblocking(true)?;
        // Closing a device that is not persistent waits for the interface to be unregistered, some
        // 17 ms (an RCU grace period). A persistent one is unregistered with its network namespace,
        // by a kernel worker.
        device.persist()?;
        Ok(Self { device, queue_packets })
    }

    /// The queue length in packets. A TUN device holds as many packets as its interface's
    /// `tx_queue_len` (`tun_attach` and `tun_queue_resize` in Linux's `drivers/net/tun.c`), and
    /// never stops that queue, so no packet waits in front of it.
    #[must_use]
    pub fn queue_packets(&self) -> u32 {
        self.queue_packets
    }

    /// Reads one packet. `None` if there is none. A longer packet is truncated to the buffer
    /// silently; to detect that, pass a buffer of one byte more than the longest packet.
    ///
    /// # Errors
    /// The kernel's error, except EAGAIN.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.device.recv(buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes one packet to the kernel. False if the kernel rejects it: it is not an IP packet, the
    /// interface is down, or there is no memory.
    pub fn send(&self, packet: &[u8]) -> bool {
        self.device.send(packet).is_ok()
    }

    /// Like [`Tun::send`], for a packet in several buffers.
    pub fn send_parts(&self, parts: &[IoSlice<'_>]) -> bool {
        rustix::io::writev(&self.device, parts).is_ok()
    }
}

/// Creates a device without an address, which is down, in the calling thread's network namespace. When its last
/// descriptor is closed, which a kill does, too, the kernel removes it with its addresses and routes.
///
/// # Errors
/// As [`Tun::create`], or an interface of that name exists.
pub fn create_transient(name: &str, super_packets: bool) -> Result<OwnedFd, SystemError> {
    check_device_node()?;
    // A persistent TUN device of this name would be taken over.
    if name_exists(name) {
        let error = io::Error::from_raw_os_error(libc::EEXIST);
        let fix = "choose another name, or remove the interface (ip link del)";
        return Err(SystemError::machine(&format!("making the TUN device {name}"), error, fix));
    }
    let make = || {
        let device = DeviceBuilder::new()
            .name(name)
            .offload(super_packets)
            .packet_information(false)
            .enable(false)
            .build_sync()?;
        device.set_nonblocking(true)?;
        device.as_fd().try_clone_to_owned()
    };
    make().map_err(not_made)
}

fn name_exists(name: &str) -> bool {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    socket.is_ok_and(|socket| rustix::net::netdevice::name_to_index(socket, name).is_ok())
}

fn not_made(error: io::Error) -> SystemError {
    let fix = match error.raw_os_error() {
        Some(libc::EPERM) => "give it CAP_NET_ADMIN, or run it where user namespaces are allowed",
        _ => "see dmesg",
    };
    SystemError::machine("making a TUN device", error, fix)
}

/// Checks that the kernel's TUN driver is present and this process may use it.
fn check_device_node() -> Result<(), SystemError> {
    let opened = File::options().read(true).write(true).open(NODE).and_then(|node| node.metadata());
    let error = match opened {
        Ok(found) if found.file_type().is_char_device() && found.rdev() == NODE_NUMBER => {
            return Ok(());
        }
        Ok(_) => io::Error::from_raw_os_error(libc::ENODEV),
        Err(error) => error,
    };
    let fix = match error.raw_os_error() {
        Some(libc::EACCES) => "as root: chmod 666 /dev/net/tun",
        // The device controller of the container's cgroup decides which devices it may open.
        Some(libc::EPERM) => "allow the container to use the device /dev/net/tun",
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
