//! A run in real time as a capture file: every packet at every point, with its real bytes.
//!
//! The loop that moves packets must not wait for a disk. It copies what it sees into chunks of a fixed
//! number and size, and hands full ones to a thread that writes; that thread looks for them by itself,
//! since waking it would cost the loop more than a packet does. If no chunk is free, what would have
//! gone into it is counted and missing in the file: packets go their way as they do without a capture.
//!
//! A packet's bytes are handed over once, when it comes; the thread keeps them until it has left. It
//! also sorts by time: a queue that decides at arrival tells at once when a packet will be sent.
//! The points are those of [`bentpipe_sim::points`], the times those of the events in the link.

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

use crate::emulator::place_of;
use crate::error::LabError;

/// A packet may be 65,535 bytes long.
const CHUNK_BYTES: usize = 1 << 16;
/// A packet makes five of them on a hop, so that either limit is met with packets of some 300 bytes.
const CHUNK_NOTES: usize = 1_024;
/// Together 57 MB, a sixth of a second of 1.6 Gbit/s: as long as a disk may pause.
const CHUNKS: usize = 512;
/// How long the thread sleeps when there is nothing to write.
const PAUSE: Duration = Duration::from_millis(5);
/// So many bytes of packets on their way are kept at most; what comes beyond is missing in the file.
const KEPT_BYTES_MAX: usize = 256 << 20;
/// The file gets this much at a time.
const WRITE_BYTES: usize = 1 << 18;

/// How a capture fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// What is in the file: packets, each as often as it was seen at a point.
    pub packets: u64,
    /// What should be and is not, since the file could not be written fast enough.
    pub missing: u64,
    /// The system's number of the error that ended the writing, if one did.
    pub error_number: Option<i32>,
}

#[derive(Debug, Default)]
struct Counts {
    packets: AtomicU64,
    missing: AtomicU64,
}

/// What the loop tells the thread.
#[derive(Clone, Copy, Debug)]
enum Note {
    /// A packet has come, with so many bytes.
    Came(PacketId, u32),
    /// Something happened to it.
    Event(Event),
    /// It has left.
    Gone(PacketId),
}

#[derive(Debug, Default)]
struct Chunk {
    notes: Vec<Note>,
    /// Of the packets that have come, one after the other.
    bytes: Vec<u8>,
    /// Nothing that is told later happened before this.
    reached: Instant,
}

impl Chunk {
    /// Its memory is there from the start: the loop is not to wait for the kernel to find some, least
    /// of all while a file fills the memory of the machine.
    fn new() -> Self {
        let mut chunk = Self {
            notes: vec![Note::Gone(PacketId(1)); CHUNK_NOTES],
            bytes: vec![1; CHUNK_BYTES],
            reached: Instant::START,
        };
        chunk.clear();
        chunk
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.notes.len() < CHUNK_NOTES && self.bytes.len() + bytes <= CHUNK_BYTES
    }

    fn clear(&mut self) {
        self.notes.clear();
        self.bytes.clear();
    }
}

/// The loop's side of a capture: takes notes, and never waits. What it is told by is not inlined, so
/// that a loop without a capture is not the larger for it.
#[derive(Debug)]
pub struct Recorder {
    chunk: Chunk,
    /// Those that are free. The last one used comes first, since it is in a cache.
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
    /// Begins a capture of the hops of these plans, the first next to the world.
    ///
    /// # Errors
    /// If the process may have no more threads.
    pub fn start(out: impl Write + Send + 'static, plans: &[Plan]) -> Result<Self, LabError> {
        Self::with_chunks(CHUNKS, out, plans)
    }

    fn with_chunks(
        count: usize,
        out: impl Write + Send + 'static,
        plans: &[Plan],
    ) -> Result<Self, LabError> {
        // As many as there are, so that neither side ever waits for the other.
        let (filled, to_write) = sync_channel(count);
        let (give_back, returned) = sync_channel(count);
        let counts = Arc::new(Counts::default());
        let mut writer = Writer::new(out, plans, Arc::clone(&counts));
        let thread = thread::Builder::new()
            .name("bentpipe-capture".to_owned())
            .spawn(move || writer.run(&to_write, &give_back))
            .map_err(|error| LabError::machine("starting a thread", error, "allow more threads"))?;
        let mut free: Vec<_> = std::iter::repeat_with(Chunk::new).take(count).collect();
        Ok(Self {
            chunk: free.pop().expect("there is one at least"),
            free,
            filled: Some(filled),
            returned,
            reached: Instant::START,
            counts,
            thread: Some(thread),
            error_number: None,
        })
    }

    /// A packet is about to be told to a link that has reached a moment.
    #[inline(never)]
    pub(crate) fn came(&mut self, packet: PacketId, content: &[u8], reached: Instant) {
        self.reached = reached;
        // If there is no room, its events are found to lack it.
        if self.makes_room(content.len()) {
            self.chunk.notes.push(Note::Came(packet, content.len() as u32));
            self.chunk.bytes.extend_from_slice(content);
        }
    }

    #[inline(never)]
    pub(crate) fn event(&mut self, event: &Event) {
        if self.makes_room(0) {
            self.chunk.notes.push(Note::Event(*event));
        } else {
            self.counts.missing.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline(never)]
    pub(crate) fn gone(&mut self, packet: PacketId) {
        // If there is no room, its bytes are kept until another packet is in its place.
        if self.makes_room(0) {
            self.chunk.notes.push(Note::Gone(packet));
        }
    }

    /// Hands over what there is, of a link that has reached a moment.
    pub(crate) fn hand_over(&mut self, reached: Instant) {
        self.reached = reached;
        self.next_chunk();
    }

    /// Hands over the rest, what happens until `at`, and waits until it is written.
    pub(crate) fn end(&mut self, at: Instant) {
        let (Some(filled), Some(thread)) = (self.filled.take(), self.thread.take()) else { return };
        self.chunk.reached = at;
        let rest = std::mem::take(&mut self.chunk);
        // It fails if the thread has, which then says why.
        let _ = filled.try_send(rest);
        drop(filled);
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        // What has no number of its own is told as an input/output error.
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

    fn makes_room(&mut self, bytes: usize) -> bool {
        self.chunk.has_room(bytes) || (self.next_chunk() && self.chunk.has_room(bytes))
    }

    /// Changes the chunk for a free one. Whether there was one.
    #[cold]
    fn next_chunk(&mut self) -> bool {
        let Some(filled) = &self.filled else { return false };
        self.free.extend(self.returned.try_iter());
        let Some(empty) = self.free.pop() else { return false };
        self.chunk.reached = self.reached;
        let full = std::mem::replace(&mut self.chunk, empty);
        // There is room for all chunks, so it fails only if the thread has ended by an error: the
        // chunks run out then.
        let _ = filled.try_send(full);
        true
    }
}

/// A packet that is on its way.
#[derive(Debug)]
struct Kept {
    packet: PacketId,
    content: Arc<[u8]>,
    /// The engine that has let it in and not sent it yet.
    waits_at: Option<NodeId>,
}

/// A packet at a point.
#[derive(Debug)]
struct Seen {
    at: Instant,
    /// Its turn among others of the same moment.
    turn: u64,
    interface: u32,
    comment: Option<&'static str>,
    content: Arc<[u8]>,
}

impl Seen {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.turn)
    }
}

impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Seen {}

impl PartialOrd for Seen {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Seen {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The thread's side of a capture.
struct Writer<W> {
    out: W,
    counts: Arc<Counts>,
    /// By the place of the packet in the store of the link.
    kept: Vec<Option<Kept>>,
    kept_bytes: usize,
    /// What is not encoded yet, such as what is known to happen later.
    due: BinaryHeap<Reverse<Seen>>,
    told: u64,
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
            kept: Vec::new(),
            kept_bytes: 0,
            due: BinaryHeap::new(),
            told: 0,
            encoded,
            encoded_packets: 0,
        }
    }

    fn run(&mut self, filled: &Receiver<Chunk>, returned: &SyncSender<Chunk>) -> io::Result<()> {
        loop {
            match filled.try_recv() {
                Ok(mut chunk) => {
                    self.take(&chunk)?;
                    chunk.clear();
                    // It fails if the loop is gone: then nobody needs it.
                    let _ = returned.try_send(chunk);
                }
                Err(TryRecvError::Empty) => {
                    self.write()?;
                    thread::sleep(PAUSE);
                }
                Err(TryRecvError::Disconnected) => return self.write(),
            }
        }
    }

    fn take(&mut self, chunk: &Chunk) -> io::Result<()> {
        let mut rest = &chunk.bytes[..];
        for note in &chunk.notes {
            match *note {
                Note::Came(packet, bytes) => {
                    let (content, others) = rest.split_at(bytes as usize);
                    rest = others;
                    self.keep(packet, content);
                }
                Note::Event(event) => self.see(&event),
                Note::Gone(packet) => self.forget(packet),
            }
        }
        self.encode_until(chunk.reached)
    }

    fn keep(&mut self, packet: PacketId, content: &[u8]) {
        let place = place_of(packet).0 as usize;
        if place >= self.kept.len() {
            self.kept.resize_with(place + 1, || None);
        }
        // Whoever was there has left, even if nobody told.
        let before = self.kept[place].take();
        self.kept_bytes -= before.map_or(0, |kept| kept.content.len());
        if self.kept_bytes + content.len() <= KEPT_BYTES_MAX {
            self.kept_bytes += content.len();
            self.kept[place] = Some(Kept { packet, content: content.into(), waits_at: None });
        }
    }

    fn forget(&mut self, packet: PacketId) {
        let kept = self.kept.get_mut(place_of(packet).0 as usize);
        if let Some(kept) = kept.and_then(|kept| kept.take_if(|kept| kept.packet == packet)) {
            self.kept_bytes -= kept.content.len();
        }
    }

    fn see(&mut self, event: &Event) {
        let Event { at, node, kind, packet, .. } = *event;
        let kept = self.kept.get_mut(place_of(packet).0 as usize).and_then(Option::as_mut);
        let Some(kept) = kept.filter(|kept| kept.packet == packet) else {
            self.counts.missing.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if kind == EventKind::Marked {
            let mut marked = kept.content.to_vec();
            ecn::mark(&mut marked);
            kept.content = marked.into();
            return;
        }
        let has_waited = kept.waits_at == Some(node);
        kept.waits_at = (kind == EventKind::Enqueued).then_some(node);
        let Some(interface) = points::interface(node, kind, has_waited) else { return };
        let comment = points::comment(kind);
        let content = Arc::clone(&kept.content);
        self.due.push(Reverse(Seen { at, turn: self.told, interface, comment, content }));
        self.told += 1;
    }

    fn encode_until(&mut self, reached: Instant) -> io::Result<()> {
        while let Some(Reverse(first)) = self.due.peek()
            && first.at <= reached
            && let Some(Reverse(seen)) = self.due.pop()
        {
            let Seen { at, interface, comment, content, .. } = seen;
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

    /// Whole blocks.
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
