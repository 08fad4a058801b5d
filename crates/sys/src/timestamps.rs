//! Arrival times of packets at a device, timestamped by the kernel for a packet socket
//! (`packet(7)`).
//!
//! A packet read from a TUN device has no arrival time. The kernel copies the head of each packet,
//! with a timestamp, to packet sockets on the interface just before the device gets the packet. The
//! socket's ring is memory shared with the kernel (`PACKET_RX_RING`): a copy costs the sending host
//! some 0.2 us, and reading it costs no system call.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A frame holds a header of 80 bytes and the head of a packet: in IPv4 without options, all of the
/// UDP or TCP headers, checksums included, up to the first TCP options.
const SNAP_BYTES: usize = 48;
const FRAME_BYTES: usize = 128;
/// At least one block, and at most a ring of 2 MB.
const FRAMES_MIN: usize = 1 << 9;
const FRAMES_MAX: usize = 1 << 14;
const BLOCK_BYTES: usize = 1 << 16;
/// How many frames a search looks past. Packets from senders on two processors can appear in a
/// different order than they arrive, and some are lost before the device.
const SEARCH_DEPTH: usize = 64;

/// The head of a packet in the ring.
#[derive(Clone, Copy, Debug)]
struct Frame<'a> {
    /// `CLOCK_REALTIME`.
    at_ns: u64,
    bytes: usize,
    head: &'a [u8],
}

/// The result of a search for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    /// How many frames are no longer needed.
    consumed: usize,
    at_ns: Option<u64>,
}

/// Searches the frames for a packet, the oldest first. Frames older than `oldest_ns` are of packets
/// that were lost before the device, or they would have been read.
fn find<'a>(frame_at: impl Fn(usize) -> Option<Frame<'a>>, packet: &[u8], oldest_ns: u64) -> Match {
    let mut lost = 0;
    while frame_at(lost).is_some_and(|frame| frame.at_ns < oldest_ns) {
        lost += 1;
    }
    let head = &packet[..packet.len().min(SNAP_BYTES)];
    let matches = |frame: &Frame<'_>| frame.bytes == packet.len() && frame.head == head;
    for index in lost..lost + SEARCH_DEPTH {
        match frame_at(index) {
            Some(frame) if matches(&frame) => {
                return Match { consumed: index + 1, at_ns: Some(frame.at_ns) };
            }
            Some(_) => {}
            None => break,
        }
    }
    Match { consumed: lost, at_ns: None }
}

/// A packet socket on one interface, with its ring.
#[derive(Debug)]
pub struct Timestamps {
    ring: NonNull<u8>,
    frames: usize,
    next: usize,
    socket: OwnedFd,
    is_paused: bool,
}

// SAFETY: only this value accesses the ring, which lives as long as it.
#[allow(unsafe_code, reason = "the ring is a raw pointer")]
unsafe impl Send for Timestamps {}

#[allow(unsafe_code, reason = "the ring is memory that the kernel writes")]
impl Timestamps {
    /// Opens a socket on an interface of the calling thread's network namespace. `packets` is the
    /// queue length of the device.
    ///
    /// # Errors
    /// If the kernel lacks packet sockets, or denies them.
    pub fn open(interface: &str, packets: u32) -> io::Result<Self> {
        // Twice as many frames, for packets that are lost before the device.
        let frames = 2 * packets as usize;
        let frames = frames.next_power_of_two().clamp(FRAMES_MIN, FRAMES_MAX);
        // With protocol 0 it receives nothing until it is bound.
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the arguments are integers.
        let socket = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: it was just opened, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, TPACKET_V2)?;
        attach_outgoing_filter(&socket)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as libc::c_uint,
            tp_block_nr: (frames * FRAME_BYTES / BLOCK_BYTES) as libc::c_uint,
            tp_frame_size: FRAME_BYTES as libc::c_uint,
            tp_frame_nr: frames as libc::c_uint,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the socket's ring, of the size requested above.
        let ring = unsafe {
            let flags = libc::MAP_SHARED;
            let fd = socket.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), frames * FRAME_BYTES, protection, flags, fd, 0)
        };
        let mapped = ring != libc::MAP_FAILED;
        let ring = NonNull::new(ring.cast()).filter(|_| mapped);
        let ring = ring.ok_or_else(io::Error::last_os_error)?;
        let stamps = Self { ring, frames, next: 0, socket, is_paused: false };
        bind(&stamps.socket, interface)?;
        Ok(stamps)
    }

    /// Pauses or resumes the copies. They cost the sending hosts time, and a driver that reads
    /// without sleeping does not need them. Returns whether this is a change: then
    /// the device may hold packets that have no frame.
    pub fn set_paused(&mut self, paused: bool) -> bool {
        let is_change = paused != self.is_paused;
        if is_change {
            let value = libc::c_int::from(paused);
            let ignores = libc::PACKET_IGNORE_OUTGOING;
            // Kernels before 4.20 lack the option and continue to copy.
            let _ = set(&self.socket, libc::SOL_PACKET, ignores, value);
            self.is_paused = paused;
        }
        is_change
    }

    /// The arrival time of a packet that was just read, in nanoseconds of `CLOCK_REALTIME`: of a
    /// frame not older than `oldest_ns`, if there is one.
    pub fn lookup(&mut self, packet: &[u8], oldest_ns: u64) -> Option<u64> {
        let found = find(|index| self.frame_head(index), packet, oldest_ns);
        for _ in 0..found.consumed {
            self.status(0).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.frames;
        }
        found.at_ns
    }

    /// Whether the device may hold a packet: there is a frame, or the copies are paused.
    #[must_use]
    pub fn may_have_packets(&self) -> bool {
        self.is_paused || self.status(0).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Discards all frames in the ring.
    pub fn discard(&mut self) {
        for _ in 0..self.frames {
            let status = self.status(0);
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return;
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.frames;
        }
    }

    fn frame(&self, index: usize) -> NonNull<u8> {
        let index = (self.next + index) % self.frames;
        // SAFETY: the index is below the number of frames.
        unsafe { self.ring.add(index * FRAME_BYTES) }
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: a frame starts with its status, is aligned as its header is, and lives as long as
        // `self`. Both sides access the status atomically.
        unsafe { AtomicU32::from_ptr(self.frame(index).cast().as_ptr()) }
    }

    fn frame_head(&self, index: usize) -> Option<Frame<'_>> {
        if self.status(index).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let frame = self.frame(index);
        // SAFETY: by its status the frame belongs to user space, and the kernel has written its header.
        let header = unsafe { frame.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(header.tp_net);
        let bytes = (header.tp_snaplen as usize).min(FRAME_BYTES.checked_sub(start)?);
        // SAFETY: these bytes are within the frame, which belongs to user space until `lookup` or
        // `discard` returns it.
        let head = unsafe { std::slice::from_raw_parts(frame.add(start).as_ptr(), bytes) };
        let at_ns = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
        Some(Frame { at_ns, bytes: header.tp_len as usize, head })
    }
}

#[allow(unsafe_code, reason = "munmap takes a raw pointer")]
impl Drop for Timestamps {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and no reference into it remains.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.frames * FRAME_BYTES) };
    }
}

/// `enum tpacket_versions` of the kernel.
const TPACKET_V2: libc::c_int = 1;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[allow(unsafe_code, reason = "the standard library has no names for these options")]
fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: the kernel reads the value, which outlives the call.
    let done = unsafe {
        let size = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size)
    };
    checked(done).map(|_| ())
}

/// Attaches a classic BPF filter that passes the heads of packets sent to the device. Packets that
/// the driver writes to the device would otherwise be copied too, on the driver's time.
fn attach_outgoing_filter(socket: &OwnedFd) -> io::Result<()> {
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, value, if_not| libc::sock_filter { code, jt: 0, jf: if_not, k: value };
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    let mut filter = [
        step((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, packet_type, 0),
        step((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, libc::PACKET_OUTGOING.into(), 1),
        step(RETURN, SNAP_BYTES as u32, 0),
        step(RETURN, 0, 0),
    ];
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

#[allow(unsafe_code, reason = "the standard library has no packet sockets")]
fn bind(socket: &OwnedFd, interface: &str) -> io::Result<()> {
    let name = CString::new(interface)?;
    // SAFETY: the name is zero-terminated and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zero is a valid address; the kernel reads it during the call.
    let bound = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index.cast_signed();
        let size = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size)
    };
    checked(bound).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(frames: &[(u64, Vec<u8>)], packet: &[u8], oldest_ns: u64) -> Match {
        let nth = |index: usize| {
            let (at_ns, packet) = frames.get(index)?;
            let head = &packet[..packet.len().min(SNAP_BYTES)];
            Some(Frame { at_ns: *at_ns, bytes: packet.len(), head })
        };
        find(nth, packet, oldest_ns)
    }

    /// Given frames of packets 1, 2, 3 and again 2, expect each packet to have its own time, a
    /// frame without a packet to be skipped, and an unknown packet to consume no frame.
    #[test]
    fn a_packet_has_the_time_of_its_frame() {
        let frames = [(10, vec![1; 60]), (20, vec![2; 60]), (30, vec![3; 60]), (40, vec![2; 60])];
        let at = |consumed, at_ns| Match { consumed, at_ns };
        assert_eq!(found(&frames, &[1; 60], 0), at(1, Some(10)));
        assert_eq!(found(&frames, &[2; 60], 0), at(2, Some(20)), "the first was lost");
        assert_eq!(
            found(&frames, &[2; 60], 25),
            at(4, Some(40)),
            "older frames are of lost packets"
        );
        assert_eq!(found(&frames, &[4; 60], 0), at(0, None));
        assert_eq!(found(&frames, &[1; 61], 15), at(1, None), "another length");
        assert_eq!(found(&[], &[1; 60], 0), at(0, None));
    }

    proptest! {
        /// Given distinct packets with any losses, but fewer in sequence than a search looks past,
        /// expect each packet that is read to have its own time.
        #[test]
        fn lost_packets_do_not_shift_times(lost: Vec<bool>, sizes in 5_usize..100) {
            let packet = |number: usize| {
                let mut packet = vec![0; sizes];
                packet[..4].copy_from_slice(&(number as u32).to_le_bytes());
                packet
            };
            let frames: Vec<_> =
                (0..lost.len()).map(|number| (number as u64, packet(number))).collect();
            let (mut consumed, mut in_sequence) = (0, 0);
            for (number, lost) in lost.iter().enumerate() {
                in_sequence = if *lost { in_sequence + 1 } else { 0 };
                if *lost && in_sequence < SEARCH_DEPTH {
                    continue;
                }
                let found = found(&frames[consumed..], &packet(number), 0);
                prop_assert_eq!(found.at_ns, Some(number as u64));
                consumed += found.consumed;
            }
        }
    }
}
