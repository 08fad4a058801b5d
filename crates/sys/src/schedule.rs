//! How the kernel schedules a thread: what a thread may ask for, and what became of it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bentpipe_core::time::Duration;

/// What a thread that packets wait for asks for: so much of a processor, within each such period, before
/// all others (sched(7), SCHED_DEADLINE). It is kept waiting for no longer than the rest of a period.
const RUNTIME: Duration = Duration::from_micros(940);
const PERIOD: Duration = Duration::from_millis(1);
/// Where it does not get that: its priority, and how long its turns are when others wait, the least that
/// the kernel allows.
const NICE: i32 = -15;
const TURN: Duration = Duration::from_micros(100);

/// Asks for exact timers, and to run before others where that is allowed.
pub fn prefer_this_thread() {
    // All are wishes: what comes of them is seen in the lateness.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let deadline = libc::sched_attr {
        sched_policy: libc::SCHED_DEADLINE as u32,
        // What nobody else has asked for it may have, too. What it starts has no share in it.
        sched_flags: (libc::SCHED_FLAG_RECLAIM | libc::SCHED_FLAG_RESET_ON_FORK) as u64,
        sched_runtime: RUNTIME.as_nanos(),
        sched_deadline: PERIOD.as_nanos(),
        sched_period: PERIOD.as_nanos(),
        ..other()
    };
    if !set(&deadline) {
        // Since Linux 6.12 a thread that becomes ready takes the processor at once from one whose turns
        // are longer (EEVDF, PREEMPT_SHORT); otherwise it waits until that one's turn is over, some
        // milliseconds, whatever its priority. Older kernels take no notice. Ordinary users get the
        // short turns alone.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        let nice = rustix::process::getpriority_process(None).unwrap_or(0);
        set(&libc::sched_attr { sched_nice: nice, sched_runtime: TURN.as_nanos(), ..other() });
    }
}

/// An ordinary thread.
fn other() -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

/// Whether the calling thread has these attributes now.
#[allow(unsafe_code, reason = "there is no safe form of sched_setattr(2)")]
fn set(attributes: &libc::sched_attr) -> bool {
    // SAFETY: the kernel reads as many bytes as the structure says that it has.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

/// How long the kernel kept a thread waiting for a processor, from `/proc` (`proc(5)`, schedstat).
#[derive(Debug, Default)]
pub struct Scheduling {
    file: Option<File>,
    waited_ns: u64,
}

impl Scheduling {
    /// That of the calling thread, from now on.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let mut scheduling =
            Self { file: File::open("/proc/thread-self/schedstat").ok(), waited_ns: 0 };
        scheduling.kept_waiting();
        scheduling
    }

    /// How long since the last call. `None` where the kernel does not say.
    pub fn kept_waiting(&mut self) -> Option<Duration> {
        let mut text = [0; 64];
        let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or("");
        let total: u64 = text.split(' ').nth(1)?.parse().ok()?;
        let since = total.saturating_sub(self.waited_ns);
        self.waited_ns = total;
        Some(Duration::from_nanos(since))
    }
}
