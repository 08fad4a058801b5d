//! The progress of the threads that carry traffic.
//!
//! Each waits for at most [`WAKE_TIMEOUT`] and counts the times that it goes on. A thread whose count stands still for
//! longer hangs, or has ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::event::Timespec;

/// The longest time that a thread waits: a third of the time between two reports of a worker.
pub(crate) const WAKE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The count of one thread.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// The thread goes on.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Watches the counts of several threads.
#[derive(Debug)]
pub struct HeartbeatMonitor(Vec<(Heartbeat, Option<u64>)>);

impl HeartbeatMonitor {
    /// Of threads that were just started.
    #[must_use]
    pub fn new(heartbeats: impl IntoIterator<Item = Heartbeat>) -> Self {
        Self(heartbeats.into_iter().map(|heartbeat| (heartbeat, None)).collect())
    }

    /// Whether every thread has gone on since the last call. The first call finds that all have.
    pub fn all_progressed(&mut self) -> bool {
        let mut all = true;
        for (heartbeat, before) in &mut self.0 {
            let count = Some(heartbeat.0.load(Ordering::Relaxed));
            all &= count != *before;
            *before = count;
        }
        all
    }
}

/// Why a thread has ended that serves until it is stopped.
pub(crate) fn reason_of_end(thread: &str, ended: JoinHandle<io::Result<()>>) -> io::Error {
    let why = match ended.join() {
        Ok(Ok(())) => "it has returned".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it has panicked".to_owned(),
    };
    io::Error::other(format!("{thread} has ended: {why}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// Given a thread that waits for something else between two beats, expect no progress of all meanwhile, though another
    /// thread goes on; expect it when both have; and none any more when the first thread has ended.
    #[test]
    fn one_thread_that_hangs_is_enough() {
        let [hanging, other] = [Heartbeat::default(), Heartbeat::default()];
        let mut monitor = HeartbeatMonitor::new([hanging.clone(), other.clone()]);
        let (resume, awaited) = channel();
        let (beaten, beats) = channel();
        let thread = thread::spawn(move || {
            while awaited.recv().is_ok() {
                hanging.beat();
                beaten.send(()).expect("it is read");
            }
        });
        assert!(monitor.all_progressed());
        for _ in 0..2 {
            other.beat();
            assert!(!monitor.all_progressed());
            resume.send(()).expect("it waits");
            beats.recv().expect("it goes on");
            other.beat();
            assert!(monitor.all_progressed());
        }
        drop(resume);
        thread.join().expect("no panic");
        other.beat();
        assert!(!monitor.all_progressed());
    }

    /// Given threads that return, fail and panic, expect the reason of each.
    #[test]
    fn the_end_of_a_thread_has_a_reason() {
        let ended = |work: fn() -> io::Result<()>| {
            reason_of_end("the reader", thread::spawn(work)).to_string()
        };
        assert_eq!(ended(|| Ok(())), "the reader has ended: it has returned");
        assert_eq!(ended(|| Err(io::Error::other("no socket"))), "the reader has ended: no socket");
        assert_eq!(ended(|| panic!("on purpose")), "the reader has ended: it has panicked");
    }
}
