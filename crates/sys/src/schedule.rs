//! How the kernel schedules a thread: what a thread may ask for, and what became of it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bentpipe_core::time::Duration;

/// The priority of a thread that packets wait for, and how long its turns are when others wait: the
/// least that the kernel allows.
const NICE: i32 = -15;
const TURN: Duration = Duration::from_micros(100);

/// Asks for exact timers, to run before others where that is allowed, and for turns that are as
/// short as can be. Real-time priority is not asked for: a thread that has it and spins is stopped
/// for 50 ms of every second.
pub fn prefer_this_thread() {
    // All are wishes: what comes of them is seen in the lateness.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    ask_for_short_turns();
}

/// Since Linux 6.12 a thread that becomes ready takes the processor at once from one whose turns are
/// longer (EEVDF, `PREEMPT_SHORT`); otherwise it waits until that one's turn is over, some
/// milliseconds, whatever its priority. Older kernels take no notice.
#[allow(unsafe_code, reason = "there is no safe form of sched_setattr(2)")]
fn ask_for_short_turns() {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: NICE,
        sched_priority: 0,
        sched_runtime: TURN.as_nanos(),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel reads as many bytes as the structure says that it has.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
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

    /// How long since the last call. Zero where the kernel does not say.
    pub fn kept_waiting(&mut self) -> Duration {
        let mut text = [0; 64];
        let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or("");
        let Some(total) = text.split(' ').nth(1).and_then(|word| word.parse().ok()) else {
            return Duration::ZERO;
        };
        let since = u64::saturating_sub(total, self.waited_ns);
        self.waited_ns = total;
        Duration::from_nanos(since)
    }
}
