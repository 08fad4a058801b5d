//! Thread scheduling: the requested policy and the measured run delay.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bentpipe_core::time::Duration;

/// SCHED_DEADLINE parameters of the thread that moves packets: so much processor time in each
/// period, ahead of all other policies (sched(7)). It waits for no longer than the rest of a
/// period.
const RUNTIME: Duration = Duration::from_micros(940);
const PERIOD: Duration = Duration::from_millis(1);
/// Without SCHED_DEADLINE: the nice value, and the smallest slice that the kernel allows.
const NICE: i32 = -15;
const SLICE: Duration = Duration::from_micros(100);

/// Requests minimal timer slack and, where permitted, real-time scheduling of the calling thread. Returns
/// whether the thread has priority over ordinary programs.
pub fn request_real_time_scheduling() -> bool {
    // All of these are best effort. Their effect shows in the measured lateness.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let deadline = libc::sched_attr {
        sched_policy: libc::SCHED_DEADLINE as u32,
        // Reclaim bandwidth that no deadline task has reserved. Children do not inherit the policy.
        sched_flags: (libc::SCHED_FLAG_RECLAIM | libc::SCHED_FLAG_RESET_ON_FORK) as u64,
        sched_runtime: RUNTIME.as_nanos(),
        sched_deadline: PERIOD.as_nanos(),
        sched_period: PERIOD.as_nanos(),
        ..sched_other()
    };
    let is_deadline = set(&deadline);
    if !is_deadline {
        // Since Linux 6.12 a thread that wakes up preempts one with a longer slice at once (EEVDF,
        // PREEMPT_SHORT). Otherwise it waits for the end of that slice, some milliseconds, whatever
        // its nice value. Older kernels ignore the slice. An unprivileged user gets the short slice
        // only.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        let nice = rustix::process::getpriority_process(None).unwrap_or(0);
        set(&libc::sched_attr {
            sched_nice: nice,
            sched_runtime: SLICE.as_nanos(),
            ..sched_other()
        });
    }
    is_deadline || rustix::process::getpriority_process(None).is_ok_and(|nice| nice < 0)
}

/// The attributes of SCHED_OTHER.
fn sched_other() -> libc::sched_attr {
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

/// Applies attributes to the calling thread. Returns whether the kernel accepted them.
#[allow(unsafe_code, reason = "there is no safe form of sched_setattr(2)")]
fn set(attributes: &libc::sched_attr) -> bool {
    // SAFETY: the kernel reads `size` bytes, which is the size of the structure.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) == 0 }
}

/// The run delay of a thread: how long it was runnable and waited for a processor, from
/// `/proc/.../schedstat` (`Documentation/scheduler/sched-stats.rst`).
#[derive(Debug, Default)]
pub struct RunDelay {
    file: Option<File>,
    total_ns: u64,
}

impl RunDelay {
    /// Starts measuring the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let mut run_delay =
            Self { file: File::open("/proc/thread-self/schedstat").ok(), total_ns: 0 };
        run_delay.take();
        run_delay
    }

    /// The run delay since the last call. `None` where the kernel does not report it.
    pub fn take(&mut self) -> Option<Duration> {
        let mut text = [0; 64];
        let read = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or("");
        let total: u64 = text.split(' ').nth(1)?.parse().ok()?;
        let since = total.saturating_sub(self.total_ns);
        self.total_ns = total;
        Some(Duration::from_nanos(since))
    }
}
