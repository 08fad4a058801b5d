//! The TUN device: super-packets in both directions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bentpipe_sys::offload::coalesce::PACKETS_MAX;
use bentpipe_sys::offload::{Coalescer, has_valid_tcp_checksum, write_parts};
use rustix::io::Errno;

use super::IoCounters;

pub(super) struct Device {
    tun: OwnedFd,
}

impl Device {
    pub(super) fn new(tun: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&tun, true)?;
        Ok(Self { tun })
    }

    /// Reads a packet or super-packet with its header. `None` if there is none.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.tun, buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes packets; consecutive ones of a TCP connection as one super-packet. Counts what the kernel rejects.
    pub(super) fn write<'a>(&self, packets: impl Iterator<Item = &'a [u8]>, io: &mut IoCounters) {
        let mut run: [&[u8]; PACKETS_MAX] = [&[]; PACKETS_MAX];
        let mut count = 0;
        let mut coalescer: Option<Coalescer> = None;
        for packet in packets {
            let start = Coalescer::start(packet);
            // A super-packet cannot show an invalid checksum.
            let start = start.filter(|_| has_valid_tcp_checksum(packet));
            let continues = start.is_some()
                && coalescer.as_mut().is_some_and(|coalescer| coalescer.push(packet));
            if !continues {
                self.write_run(&run[..count], coalescer.take(), io);
                coalescer = start;
                count = 0;
            }
            run[count] = packet;
            count += 1;
            if coalescer.is_none() {
                self.write_run(&run[..count], None, io);
                count = 0;
            }
        }
        self.write_run(&run[..count], coalescer, io);
    }

    fn write_run(&self, run: &[&[u8]], coalescer: Option<Coalescer>, io: &mut IoCounters) {
        if run.is_empty() {
            return;
        }
        if run.len() > 1 {
            io.coalesced_writes += 1;
            io.coalesced_packets += run.len() as u64;
        }
        let packets = run.iter().copied();
        let written = write_parts(coalescer, packets, |parts| rustix::io::writev(&self.tun, parts));
        io.rejected_writes += u64::from(written.is_err());
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}
