//! When packets came to a device, as the kernel stamps them for whoever listens there (`packet(7)`).
//!
//! A packet that is read from a device says nothing of when it came. A listener is shown each packet
//! just before the device gets it, with the time, in a ring of memory that it shares with the kernel:
//! its frames cost the host that sends some 0.2 us a packet, and who reads them no system call.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Frames hold a header of 80 bytes and so much of each packet: in IPv4 that is all of the headers of
/// UDP and TCP, checksums included, up to the first options.
const HEAD_BYTES: usize = 48;
const FRAME_BYTES: usize = 128;
/// At least a block of them, and at most so many that a ring takes 2 MB.
const FRAMES_MIN: usize = 1 << 9;
const FRAMES_MAX: usize = 1 << 14;
const BLOCK_BYTES: usize = 1 << 16;
/// So many packets that were shown and never came are looked past at a time. Senders on two
/// processors may be shown in another order than they come.
const LOOK_PAST: usize = 64;

/// A packet as it was shown.
#[derive(Clone, Copy, Debug)]
struct Shown<'a> {
    /// Of the machine's real-time clock.
    at_ns: u64,
    bytes: usize,
    head: &'a [u8],
}

/// What is known of a packet that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// So many of what was shown are no longer waited for.
    done: usize,
    at_ns: Option<u64>,
}

/// Looks for a packet among those shown, the first first. Those older than `oldest_ns` were lost
/// before the device got them, or it would have been read.
fn find<'a>(shown: impl Fn(usize) -> Option<Shown<'a>>, packet: &[u8], oldest_ns: u64) -> Found {
    let mut lost = 0;
    while shown(lost).is_some_and(|shown| shown.at_ns < oldest_ns) {
        lost += 1;
    }
    let head = &packet[..packet.len().min(HEAD_BYTES)];
    let is_it = |shown: &Shown<'_>| shown.bytes == packet.len() && shown.head == head;
    for place in lost..lost + LOOK_PAST {
        match shown(place) {
            Some(shown) if is_it(&shown) => {
                return Found { done: place + 1, at_ns: Some(shown.at_ns) };
            }
            Some(_) => {}
            None => break,
        }
    }
    Found { done: lost, at_ns: None }
}

/// Listens on one interface.
#[derive(Debug)]
pub struct Stamps {
    ring: NonNull<u8>,
    frames: usize,
    next: usize,
    socket: OwnedFd,
    is_paused: bool,
}

// SAFETY: the ring is reached by this value alone, and lives as long as it.
#[allow(unsafe_code, reason = "the ring is behind a pointer")]
unsafe impl Send for Stamps {}

#[allow(unsafe_code, reason = "the ring is memory that the kernel writes")]
impl Stamps {
    /// Listens on an interface of the calling thread's network namespace, whose device holds so many
    /// packets.
    ///
    /// # Errors
    /// If the kernel has no packet sockets, or none for this thread.
    pub fn listen(interface: &str, packets: u32) -> io::Result<Self> {
        // As many again: those that were shown and never came.
        let frames = 2 * packets as usize;
        let frames = frames.next_power_of_two().clamp(FRAMES_MIN, FRAMES_MAX);
        // With no protocol it hears nothing until it is bound.
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain numbers go in.
        let socket = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: it was opened just now, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, TPACKET_V2)?;
        listen_to_the_sent(&socket)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as libc::c_uint,
            tp_block_nr: (frames * FRAME_BYTES / BLOCK_BYTES) as libc::c_uint,
            tp_frame_size: FRAME_BYTES as libc::c_uint,
            tp_frame_nr: frames as libc::c_uint,
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the socket's ring, of the size that was just asked for.
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

    /// Listens no longer, or again: hosts pay for a listener, and one that reads without a pause knows
    /// when packets come. Whether that is a change: then packets may be in the device that were not shown.
    pub fn pause(&mut self, pause: bool) -> bool {
        let is_change = pause != self.is_paused;
        if is_change {
            let value = libc::c_int::from(pause);
            let ignores = libc::PACKET_IGNORE_OUTGOING;
            // Kernels before 4.20 cannot, and go on.
            let _ = set(&self.socket, libc::SOL_PACKET, ignores, value);
            self.is_paused = pause;
        }
        is_change
    }

    /// When a packet came that was read just now, in nanoseconds of the machine's real-time clock; if
    /// it was shown, not before `oldest_ns`.
    pub fn of(&mut self, packet: &[u8], oldest_ns: u64) -> Option<u64> {
        let found = find(|place| self.shown(place), packet, oldest_ns);
        for _ in 0..found.done {
            self.status(0).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.frames;
        }
        found.at_ns
    }

    /// Whether the device may have a packet: one was shown, or nobody would know.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.is_paused || self.status(0).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Passes over all that was shown until now.
    pub fn forget(&mut self) {
        for _ in 0..self.frames {
            let status = self.status(0);
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return;
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.frames;
        }
    }

    fn frame(&self, place: usize) -> NonNull<u8> {
        let number = (self.next + place) % self.frames;
        // SAFETY: the number is below that of frames.
        unsafe { self.ring.add(number * FRAME_BYTES) }
    }

    fn status(&self, place: usize) -> &AtomicU32 {
        // SAFETY: a frame begins with its status, is aligned as its header is, and lives with us. The
        // kernel and we change it whole.
        unsafe { AtomicU32::from_ptr(self.frame(place).cast().as_ptr()) }
    }

    fn shown(&self, place: usize) -> Option<Shown<'_>> {
        if self.status(place).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let frame = self.frame(place);
        // SAFETY: the frame is ours by its status, and the kernel has written its header.
        let header = unsafe { frame.cast::<libc::tpacket2_hdr>().read() };
        let start = usize::from(header.tp_net);
        let bytes = (header.tp_snaplen as usize).min(FRAME_BYTES.checked_sub(start)?);
        // SAFETY: these bytes are within the frame, which is ours until `of` gives it back.
        let head = unsafe { std::slice::from_raw_parts(frame.add(start).as_ptr(), bytes) };
        let at_ns = u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec);
        Some(Shown { at_ns, bytes: header.tp_len as usize, head })
    }
}

#[allow(unsafe_code, reason = "a mapping is given back by its address")]
impl Drop for Stamps {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nobody has a reference into it any more.
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
    // SAFETY: the kernel reads the value, which lives during the call.
    let done = unsafe {
        let size = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size)
    };
    checked(done).map(|_| ())
}

/// A filter (classic BPF) that lets the heads of packets pass that go to the device: what comes from
/// it is shown to listeners too, in the time of the driver.
fn listen_to_the_sent(socket: &OwnedFd) -> io::Result<()> {
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, value, if_not| libc::sock_filter { code, jt: 0, jf: if_not, k: value };
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    let mut filter = [
        step((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, packet_type, 0),
        step((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, libc::PACKET_OUTGOING.into(), 1),
        step(RETURN, HEAD_BYTES as u32, 0),
        step(RETURN, 0, 0),
    ];
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

#[allow(unsafe_code, reason = "the standard library has no packet sockets")]
fn bind(socket: &OwnedFd, interface: &str) -> io::Result<()> {
    let name = CString::new(interface)?;
    // SAFETY: the name ends with a zero and lives during the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes zero is a valid address; the kernel reads it during the call.
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

    fn found(shown: &[(u64, Vec<u8>)], packet: &[u8], oldest_ns: u64) -> Found {
        let nth = |place: usize| {
            let (at_ns, packet) = shown.get(place)?;
            let head = &packet[..packet.len().min(HEAD_BYTES)];
            Some(Shown { at_ns: *at_ns, bytes: packet.len(), head })
        };
        find(nth, packet, oldest_ns)
    }

    /// Given packets 1, 2, 3 and again 2 shown, expect each to have its own time, the one that was
    /// shown and lost to be passed over, and a stranger to take no one's place.
    #[test]
    fn a_packet_has_the_time_at_which_it_was_shown() {
        let shown = [(10, vec![1; 60]), (20, vec![2; 60]), (30, vec![3; 60]), (40, vec![2; 60])];
        let at = |done, at_ns| Found { done, at_ns };
        assert_eq!(found(&shown, &[1; 60], 0), at(1, Some(10)));
        assert_eq!(found(&shown, &[2; 60], 0), at(2, Some(20)), "the first was lost");
        assert_eq!(found(&shown, &[2; 60], 25), at(4, Some(40)), "what is old was lost");
        assert_eq!(found(&shown, &[4; 60], 0), at(0, None));
        assert_eq!(found(&shown, &[1; 61], 15), at(1, None), "another length");
        assert_eq!(found(&[], &[1; 60], 0), at(0, None));
    }

    proptest! {
        /// Given any packets of which any are lost, but no more in a row than are looked past, expect
        /// each of the others to have its own time, if no two are alike.
        #[test]
        fn losses_do_not_shift_times(lost: Vec<bool>, sizes in 5_usize..100) {
            let packet = |number: usize| {
                let mut packet = vec![0; sizes];
                packet[..4].copy_from_slice(&(number as u32).to_le_bytes());
                packet
            };
            let shown: Vec<_> =
                (0..lost.len()).map(|number| (number as u64, packet(number))).collect();
            let (mut done, mut in_a_row) = (0, 0);
            for (number, lost) in lost.iter().enumerate() {
                in_a_row = if *lost { in_a_row + 1 } else { 0 };
                if *lost && in_a_row < LOOK_PAST {
                    continue;
                }
                let found = found(&shown[done..], &packet(number), 0);
                prop_assert_eq!(found.at_ns, Some(number as u64));
                done += found.done;
            }
        }
    }
}
