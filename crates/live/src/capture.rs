//! Packet capture of a run in real time: every packet at every point, with its bytes, as pcapng.
//!
//! The event loop must not wait for a disk. It copies packets and events into a fixed number of
//! chunks and passes full ones to a writer thread. That thread polls for them, because waking it
//! would cost the loop more than a packet does. If no chunk is free, packets are counted as missing
//! in the file; they cross the link as they would without a capture.
//!
//! The bytes of a packet are passed once, on arrival; the writer stores them until the packet
//! departs. It also sorts by time, because a queue that decides at enqueue reports the start of a
//! transmission in advance. The points are those of [`bentpipe_sim::points`]; the times are those
//! of the events in the link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bentpipe_core::packet::PacketId;
use bentpipe_core::time::Instant;
use bentpipe_core::trace::{Event, EventKind, NodeId};
use bentpipe_core::wire::{ecn, pcapng};
use bentpipe_sim::{Plan, points};
use rustix::io::Errno;

use crate::error::LabError;
use crate::store::Slot;

/// One packet of 65,535 bytes must fit.
const CHUNK_BYTES: usize = 1 << 16;
/// A packet makes five messages per hop, so both limits are reached together with packets of some
/// 300 bytes.
const CHUNK_MESSAGES: usize = 1_024;
/// 57 MB in total: a sixth of a second at 1.6 Gbit/s, about as long as a disk may stall.
const CHUNKS: usize = 512;
/// How long the writer sleeps when no chunk is full.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The memory limit of the writer for packets in transit; packets beyond it are missing in the
/// file.
const STORED_BYTES_MAX: usize = 256 << 20;
/// The size of a write to the file.
const WRITE_BYTES: usize = 1 << 18;

/// The state of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Packets in the file, each counted at every point.
    pub packets: u64,
    /// Packets missing in the file because it could not be written fast enough.
    pub missing: u64,
    /// The `errno` that ended the writing, if any.
    pub error_number: Option<i32>,
}

#[derive(Debug, Default)]
struct Counts {
    packets: AtomicU64,
    missing: AtomicU64,
}

/// Messages from the event loop to the writer.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// A packet arrived, with its length.
    Arrived(PacketId, u32),
    /// A packet event.
    Event(Event),
    /// A packet departed.
    Departed(PacketId),
}

#[derive(Debug, Default)]
struct Chunk {
    messages: Vec<Message>,
    /// The bytes of arrived packets, concatenated.
    bytes: Vec<u8>,
    /// No later message has an earlier time.
    reached: Instant,
}

impl Chunk {
    /// Its memory is touched in advance: the loop must not wait for page faults, least of all while
    /// a file fills the page cache.
    fn new() -> Self {
        let mut chunk = Self {
            messages: vec![Message::Departed(PacketId(1)); CHUNK_MESSAGES],
            bytes: vec![1; CHUNK_BYTES],
            reached: Instant::START,
        };
        chunk.clear();
        chunk
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.messages.len() < CHUNK_MESSAGES && self.bytes.len() + bytes <= CHUNK_BYTES
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.bytes.clear();
    }
}

/// The event loop's end of a capture, which never waits. Its hooks are not inlined, to keep the
/// loop without a capture small.
#[derive(Debug)]
pub struct Recorder {
    chunk: Chunk,
    /// The free chunks. The most recently used comes first, because it is in the cache.
    free: Vec<Chunk>,
    /// `None` once the capture has ended.
    filled: Option<SyncSender<Chunk>>,
    returned: Receiver<Chunk>,
    reached: Instant,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<io::Result<()>>>,
    error_number: Option<i32>,
}

impl Recorder {
    /// Starts a capture of the hops of these plans; the first is next to the world.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(out: impl Write + Send + 'static, plans: &[Plan]) -> Result<Self, LabError> {
        Self::with_chunks(CHUNKS, out, plans)
    }

    fn with_chunks(
        count: usize,
        out: impl Write + Send + 'static,
        plans: &[Plan],
    ) -> Result<Self, LabError> {
        // The capacity for all chunks, so that neither end ever waits.
        let (filled, to_write) = sync_channel(count);
        let (return_chunk, returned) = sync_channel(count);
        let counts = Arc::new(Counts::default());
        let mut writer = Writer::new(out, plans, Arc::clone(&counts));
        let thread = thread::Builder::new()
            .name("bentpipe-capture".to_owned())
            .spawn(move || writer.run(&to_write, &return_chunk))
            .map_err(|error| LabError::machine("starting a thread", error, "allow more threads"))?;
        let mut free: Vec<_> = std::iter::repeat_with(Chunk::new).take(count).collect();
        Ok(Self {
            chunk: free.pop().expect("at least one chunk"),
            free,
            filled: Some(filled),
            returned,
            reached: Instant::START,
            counts,
            thread: Some(thread),
            error_number: None,
        })
    }

    /// Records a packet that is about to enter a link that has reached a time.
    #[inline(never)]
    pub(crate) fn on_arrival(&mut self, packet: PacketId, content: &[u8], reached: Instant) {
        self.reached = reached;
        // Without a free chunk, its events are counted as missing later.
        if self.ensure_room(content.len()) {
            self.chunk.messages.push(Message::Arrived(packet, content.len() as u32));
            self.chunk.bytes.extend_from_slice(content);
        }
    }

    #[inline(never)]
    pub(crate) fn on_event(&mut self, event: &Event) {
        if self.ensure_room(0) {
            self.chunk.messages.push(Message::Event(*event));
        } else if event.kind != EventKind::Marked {
            // A mark changes a packet and is none.
            self.counts.missing.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline(never)]
    pub(crate) fn on_departure(&mut self, packet: PacketId) {
        // Without a free chunk, its bytes stay stored until another packet uses the slot.
        if self.ensure_room(0) {
            self.chunk.messages.push(Message::Departed(packet));
        }
    }

    /// Passes the messages so far to the writer, for a link that has reached a time.
    pub(crate) fn flush(&mut self, reached: Instant) {
        self.reached = reached;
        self.next_chunk();
    }

    /// Passes the rest, with events until `at`, to the writer and waits until it is written.
    pub(crate) fn end(&mut self, at: Instant) {
        let (Some(filled), Some(thread)) = (self.filled.take(), self.thread.take()) else { return };
        self.chunk.reached = at;
        let rest = std::mem::take(&mut self.chunk);
        // It fails only after the writer has failed, which reports its error below.
        let _ = filled.try_send(rest);
        drop(filled);
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")));
        // An error without an `errno` is reported as EIO.
        self.error_number =
            ended.err().map(|error| error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()));
    }

    pub(crate) fn captured(&self) -> Captured {
        let Counts { packets, missing } = &*self.counts;
        Captured {
            packets: packets.load(Ordering::Relaxed),
            missing: missing.load(Ordering::Relaxed),
            error_number: self.error_number,
        }
    }

    fn ensure_room(&mut self, bytes: usize) -> bool {
        self.chunk.has_room(bytes) || (self.next_chunk() && self.chunk.has_room(bytes))
    }

    /// Replaces the chunk with a free one. Returns whether there was one.
    #[cold]
    fn next_chunk(&mut self) -> bool {
        let Some(filled) = &self.filled else { return false };
        self.free.extend(self.returned.try_iter());
        let Some(empty) = self.free.pop() else { return false };
        self.chunk.reached = self.reached;
        let full = std::mem::replace(&mut self.chunk, empty);
        // The channel holds all chunks, so this fails only after the writer has failed; then the
        // chunks run out.
        let _ = filled.try_send(full);
        true
    }
}

/// A packet in transit.
#[derive(Debug)]
struct StoredPacket {
    packet: PacketId,
    content: Arc<[u8]>,
    /// The engine that has enqueued it and not transmitted it yet.
    queued_at: Option<NodeId>,
}

/// A packet observed at a point.
#[derive(Debug)]
struct Observation {
    at: Instant,
    /// Its order among observations at the same time.
    sequence: u64,
    interface: u32,
    comment: Option<&'static str>,
    content: Arc<[u8]>,
}

impl Observation {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.sequence)
    }
}

impl PartialEq for Observation {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Observation {}

impl PartialOrd for Observation {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Observation {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The writer thread's end of a capture.
struct Writer<W> {
    out: W,
    counts: Arc<Counts>,
    /// By slot.
    stored: Vec<Option<StoredPacket>>,
    stored_bytes: usize,
    /// Observations not encoded yet, such as future ones.
    due: BinaryHeap<Reverse<Observation>>,
    next_sequence: u64,
    encoded: Vec<u8>,
    encoded_packets: u64,
}

impl<W: Write> Writer<W> {
    fn new(out: W, plans: &[Plan], counts: Arc<Counts>) -> Self {
        let mut encoded = Vec::new();
        points::begin(&mut encoded, plans, 0);
        Self {
            out,
            counts,
            stored: Vec::new(),
            stored_bytes: 0,
            due: BinaryHeap::new(),
            next_sequence: 0,
            encoded,
            encoded_packets: 0,
        }
    }

    fn run(&mut self, filled: &Receiver<Chunk>, returned: &SyncSender<Chunk>) -> io::Result<()> {
        loop {
            match filled.try_recv() {
                Ok(mut chunk) => {
                    self.process(&chunk)?;
                    chunk.clear();
                    // It fails if the recorder was dropped; then the chunk is not needed.
                    let _ = returned.try_send(chunk);
                }
                Err(TryRecvError::Empty) => {
                    self.write()?;
                    thread::sleep(POLL_INTERVAL);
                }
                Err(TryRecvError::Disconnected) => return self.write(),
            }
        }
    }

    fn process(&mut self, chunk: &Chunk) -> io::Result<()> {
        let mut rest = &chunk.bytes[..];
        for message in &chunk.messages {
            match *message {
                Message::Arrived(packet, bytes) => {
                    let (content, others) = rest.split_at(bytes as usize);
                    rest = others;
                    self.store(packet, content);
                }
                Message::Event(event) => self.on_event(&event),
                Message::Departed(packet) => self.remove(packet),
            }
        }
        self.encode_until(chunk.reached)
    }

    fn store(&mut self, packet: PacketId, content: &[u8]) {
        let slot = Slot::of(packet).0 as usize;
        if slot >= self.stored.len() {
            self.stored.resize_with(slot + 1, || None);
        }
        // A previous packet in the slot has departed, even if its message is missing.
        let before = self.stored[slot].take();
        self.stored_bytes -= before.map_or(0, |stored| stored.content.len());
        if self.stored_bytes + content.len() <= STORED_BYTES_MAX {
            self.stored_bytes += content.len();
            self.stored[slot] =
                Some(StoredPacket { packet, content: content.into(), queued_at: None });
        }
    }

    fn remove(&mut self, packet: PacketId) {
        let stored = self.stored.get_mut(Slot::of(packet).0 as usize);
        if let Some(stored) =
            stored.and_then(|stored| stored.take_if(|stored| stored.packet == packet))
        {
            self.stored_bytes -= stored.content.len();
        }
    }

    fn on_event(&mut self, event: &Event) {
        let Event { at, node, kind, packet, .. } = *event;
        let stored = self.stored.get_mut(Slot::of(packet).0 as usize).and_then(Option::as_mut);
        let Some(stored) = stored.filter(|stored| stored.packet == packet) else {
            let is_packet = u64::from(kind != EventKind::Marked);
            self.counts.missing.fetch_add(is_packet, Ordering::Relaxed);
            return;
        };
        if kind == EventKind::Marked {
            let mut marked = stored.content.to_vec();
            ecn::mark(&mut marked);
            stored.content = marked.into();
            return;
        }
        let was_queued = stored.queued_at == Some(node);
        stored.queued_at = (kind == EventKind::Enqueued).then_some(node);
        let Some(interface) = points::interface(node, kind, was_queued) else { return };
        let comment = points::comment(kind);
        let content = Arc::clone(&stored.content);
        self.due.push(Reverse(Observation {
            at,
            sequence: self.next_sequence,
            interface,
            comment,
            content,
        }));
        self.next_sequence += 1;
    }

    fn encode_until(&mut self, reached: Instant) -> io::Result<()> {
        while let Some(Reverse(first)) = self.due.peek()
            && first.at <= reached
            && let Some(Reverse(observation)) = self.due.pop()
        {
            let Observation { at, interface, comment, content, .. } = observation;
            let (at_ns, original_bytes) = (at.as_nanos(), content.len() as u32);
            let bytes = &content[..];
            let packet = pcapng::Packet { interface, at_ns, bytes, original_bytes, comment };
            pcapng::packet(&mut self.encoded, &packet);
            self.encoded_packets += 1;
            if self.encoded.len() >= WRITE_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Writes the encoded blocks.
    fn write(&mut self) -> io::Result<()> {
        self.out.write_all(&self.encoded)?;
        self.encoded.clear();
        self.counts.packets.fetch_add(self.encoded_packets, Ordering::Relaxed);
        self.encoded_packets = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
