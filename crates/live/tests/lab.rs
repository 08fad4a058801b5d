//! Labs with real kernels on both sides. Skipped with a message where namespaces are not permitted.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bentpipe_core::time::Duration;
use bentpipe_core::trace::DropCause;
use bentpipe_core::units::{BitRate, Probability};
use bentpipe_live::changes::LinkChange;
use bentpipe_live::emulator::replay;
use bentpipe_live::lab::{Config, Lab};
use bentpipe_live::lateness::Limits;
use bentpipe_live::measure::{
    OfferedLoad, Sample, Stream, delay_errors_of, errors_ns, measure, while_running,
};
use bentpipe_live::{LabError, plain_link};
use bentpipe_sim::plan::{Limit, Queue};
use bentpipe_sim::{Plan, Side};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::program::{Invocation, spawn};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::allowed;

/// A lab, or `None` where the machine does not allow one.
fn lab(plans: Vec<Plan>) -> Option<Arc<Lab>> {
    allowed(Lab::up(Config { tap: true, ..Config::of(plans) })).map(Arc::new)
}

const MS: Duration = Duration::from_millis(1);

fn seen(lab: &Arc<Lab>, stream: Stream) -> Vec<Sample> {
    while_running(&**lab, || measure(&**lab, stream, Clock::start())).expect("a measurement")
}

/// Given 1,000 packets of 1,500 bytes over three hops of 20 ms, expect all of them in order, none
/// before the sum of transmissions and delays, and a replay of the record to give the same events.
#[test]
fn packets_are_never_early_and_a_run_can_be_replayed() {
    let plans = vec![plain_link(50_000_000, Duration::from_millis(20), 0.0); 3];
    let Some(lab) = lab(plans.clone()) else { return };
    let interval = MS;
    let stream = Stream { from: Side::World, packet_bytes: 1_500, interval, packets: 1_000 };
    let samples = seen(&lab, stream);
    assert!(samples.iter().map(|packet| packet.sequence).eq(0..1_000));
    let hops = [(50_000_000, Duration::from_millis(20)); 3];
    let errors = errors_ns(&samples, 1_500 * 8, &hops);
    // The timestamps of two clocks differ by less than a microsecond.
    assert!(errors.iter().all(|&error| error > -1_000), "{:?}", errors.iter().min());

    let report = lab.report();
    assert_eq!(report.directions[4].1.delivered.packets, 1_000, "the third forward direction");
    let end = report.at + Duration::from_secs(10);
    let mut emulator = Arc::into_inner(lab).expect("the last reference").into_emulator();
    emulator.run_until(end);
    let (mut record, hash) = emulator.into_record().expect("a record");
    assert!(record.arrivals.len() >= 1_000);
    assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
    record.arrivals.remove(0);
    assert_ne!(replay(&plans, 1, &record, end).expect("a replay"), hash);
}

/// Given 480 Mbit/s to a link of 400 Mbit/s with a queue of three packets, and counters that are
/// read ten times per second, expect drops, and a replay of the record to give the same events.
#[test]
fn a_full_link_with_a_short_queue_can_be_replayed() {
    let mut plan = plain_link(400_000_000, MS, 0.0);
    plan.directions[0].queue = Queue::DropTail { limit: Limit::Packets(3) };
    let plans = vec![plan];
    let Some(lab) = lab(plans.clone()) else { return };
    let interval = Duration::from_micros(25);
    let stream = Stream { from: Side::World, packet_bytes: 1_500, interval, packets: 20_000 };
    let samples = seen(&lab, stream);
    assert!(samples.len() < 20_000, "the queue overflowed");
    let end = lab.report().at + Duration::from_secs(10);
    let mut emulator = Arc::into_inner(lab).expect("the last reference").into_emulator();
    emulator.run_until(end);
    let (record, hash) = emulator.into_record().expect("a record");
    assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
}

/// Given 2,000 packets in a second over a link with changes of rate, errors, delay and an outage
/// meanwhile, and impossible changes, expect all packets that were not lost in order, and a replay
/// of the record to give the same events.
#[test]
fn a_run_with_changes_can_be_replayed() {
    let plans = vec![plain_link(50_000_000, Duration::from_millis(20), 0.0); 2];
    let Some(lab) = lab(plans.clone()) else { return };
    let first = || LinkChange::none(0, Side::World);
    let changes = [
        vec![LinkChange { rate: Some(BitRate(8_000_000)), ..first() }],
        vec![LinkChange { bit_error_rate: Probability::new(1e-5), ..first() }],
        vec![
            LinkChange { delay: Some(MS), ..LinkChange::none(1, Side::World) },
            LinkChange { outage: Some(Duration::from_millis(100)), ..first() },
        ],
        vec![LinkChange {
            rate: Some(BitRate(100_000_000)),
            bit_error_rate: Probability::new(0.0),
            ..first()
        }],
    ];
    let stream = Stream {
        from: Side::World,
        packet_bytes: 1_000,
        interval: Duration::from_micros(500),
        packets: 2_000,
    };
    let changing = Arc::clone(&lab);
    let changer = thread::spawn(move || {
        let mut times = Vec::new();
        for change in changes {
            thread::sleep(std::time::Duration::from_millis(200));
            times.push(changing.apply(change).expect("a running link"));
            let bad = [
                LinkChange::none(2, Side::World),
                LinkChange { rate: Some(BitRate(0)), ..first() },
            ];
            for bad in bad {
                let good = LinkChange { rate: Some(BitRate(1)), ..first() };
                assert!(matches!(changing.apply(vec![good, bad]), Err(LabError::Plan(_))));
            }
        }
        times
    });
    let samples = seen(&lab, stream);
    let times = changer.join().expect("all changes were applied");
    assert!(times.is_sorted());
    assert!(samples.is_sorted_by_key(|packet| packet.sequence), "no packet overtakes another");
    assert!((1_000..2_000).contains(&samples.len()), "{} of 2,000: a few are lost", samples.len());

    let end = lab.report().at + Duration::from_secs(10);
    let mut emulator = Arc::into_inner(lab).expect("the last reference").into_emulator();
    emulator.run_until(end);
    let (mut record, hash) = emulator.into_record().expect("a record");
    assert_eq!(record.changes.len(), 5);
    assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
    record.changes.remove(1);
    assert_ne!(replay(&plans, 1, &record, end).expect("a replay"), hash);
}

/// Given bit errors that lose p = 1 - (1 - 2e-5)^800 = 1.59 % of packets of 100 bytes, expect the
/// share lost on the link to be within the 99 % interval of a binomial distribution of what was sent
/// over it, and what arrived to be the rest. A busy machine may lose packets before and after the link.
#[test]
fn the_packet_loss_rate_matches_the_bit_error_rate() {
    let Some(lab) = lab(vec![plain_link(100_000_000, MS, 2e-5)]) else { return };
    let interval = Duration::from_micros(50);
    let stream = Stream { from: Side::Island, packet_bytes: 100, interval, packets: 20_000 };
    let arrived = seen(&lab, stream).len() as u64;
    let returns = lab.report().directions[1].1;
    let sent = returns.sent_packets as f64;
    assert!(sent >= 10_000.0, "{sent} of 20,000 reached the link: too few to tell");
    assert!(arrived <= returns.delivered.packets);
    let lost = returns.dropped[DropCause::BitError as usize].packets as f64;
    let loss_rate = 1.0 - (1.0_f64 - 2e-5).powi(800);
    let deviation = (sent * loss_rate * (1.0 - loss_rate)).sqrt();
    let deviations = (lost - sent * loss_rate) / deviation;
    assert!(deviations.abs() < 2.576, "{lost} of {sent} lost, {deviations:.2} deviations off");
}

/// Given threads that compete for the processors, expect runs with wrong delays to be invalid: of the
/// runs whose errors are beyond the limits, by more than the hosts may add, at least 19 in 20.
#[test]
#[ignore = "takes the processors from everything beside it: make test-real-time"]
fn a_run_without_enough_processor_time_is_invalid() {
    // Between the link's write and the receiving kernel's timestamp, and from the sender to the link.
    const HOSTS: Duration = Duration::from_micros(300);
    let delay = Duration::from_millis(20);
    let plans = || vec![plain_link(100_000_000, delay, 0.0)];
    if lab(plans()).is_none() {
        return;
    }
    // sched(7): a thread that may not run on every processor cannot use SCHED_DEADLINE, with which
    // nothing could disturb the link.
    let all = sched_getaffinity(None).expect("a thread");
    let mut first = CpuSet::new();
    first.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).expect("a processor"));
    sched_setaffinity(None, &first).expect("an allowed processor");
    let Limits { late, max, .. } = Limits::of_link(delay + delay, Duration::ZERO);
    let beyond =
        |error_ns: i64, limit: Duration| error_ns > (limit + HOSTS).as_nanos().cast_signed();
    let (mut inaccurate, mut undetected) = (0, Vec::new());
    // Fewer runs could not distinguish 19 in 20 from all.
    for burners in [0, 2].into_iter().chain([4; 20]) {
        let stop = AtomicBool::new(false);
        // Before the burners start: beside them it would take seconds to set up.
        let lab = Lab::up(Config::of(plans())).expect("another lab");
        let errors = thread::scope(|scope| {
            for _ in 0..burners {
                scope.spawn(|| burn(&stop, &all));
            }
            let load = OfferedLoad::sparse(delay);
            let errors = delay_errors_of(&lab, load, Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
            errors.expect("a measurement")
        });
        assert!(errors.min_ns > -1_000, "{errors:?}");
        if beyond(errors.p99_ns, late) || beyond(errors.max_ns, max) {
            inaccurate += 1;
            if errors.invalid.is_none() {
                undetected.push((errors, lab.report().punctuality.lateness.fields()));
            }
        }
    }
    assert!(undetected.len() * 20 <= inaccurate, "of {inaccurate} runs: {undetected:?}");
    assert!(inaccurate >= 3, "only {inaccurate} runs were disturbed");
}

/// Uses a processor at the same priority as the link's thread.
fn burn(stop: &AtomicBool, on: &CpuSet) {
    sched_setaffinity(None, on).expect("all processors");
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[test]
fn exit_codes_are_passed_on_and_a_missing_program_is_named() {
    let Some(lab) = lab(vec![plain_link(1_000_000, MS, 0.0)]) else { return };
    let run = |arguments: &[&str]| {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        spawn(lab.namespace(Side::Island), Invocation { arguments, ..Invocation::default() })
    };
    let code = |process: i32| {
        use rustix::process::{Pid, WaitOptions, waitpid};
        let pid = Pid::from_raw(process).expect("a process");
        waitpid(Some(pid), WaitOptions::empty()).expect("a child").expect("an exit").1.exit_status()
    };
    assert_eq!(code(run(&["sh", "-c", "exit 7"]).expect("a shell")), Some(7));
    assert_eq!(code(run(&["sh", "-c", "kill -TERM $$"]).expect("a shell")), Some(128 + 15));
    let error = run(&["no-such-program"]).expect_err("no such program");
    assert!(error.to_string().starts_with("no-such-program: No such file"), "{error}");
}

/// A plan that cannot run in real time is rejected before anything is created.
#[test]
fn a_lab_needs_a_link() {
    let error = Lab::up(Config::of(Vec::new())).err().expect("an error");
    assert!(matches!(error, LabError::Plan(_)), "{error}");
}
