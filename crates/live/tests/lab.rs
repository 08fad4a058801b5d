//! Labs with real kernels on both sides. They need the right to make namespaces, and are skipped with
//! a message without it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bentpipe_core::time::Duration;
use bentpipe_core::units::{BitRate, Probability};
use bentpipe_live::LabError;
use bentpipe_live::emulator::replay;
use bentpipe_live::lab::{Config, Lab};
use bentpipe_live::measure::{
    Load, Seen, Stream, delay_errors, errors_ns, measure, plain_link, while_running,
};
use bentpipe_live::orders::Order;
use bentpipe_sim::plan::{Limit, Queue};
use bentpipe_sim::{Plan, Side};
use bentpipe_sys::clock::Clock;
use bentpipe_sys::program::{Invocation, spawn};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::allowed;

/// A lab, or none where the machine does not allow one.
fn lab(plans: Vec<Plan>) -> Option<Arc<Lab>> {
    allowed(Lab::up(Config { tap: true, ..Config::of(plans) })).map(Arc::new)
}

const MS: Duration = Duration::from_millis(1);

fn seen(lab: &Arc<Lab>, stream: Stream) -> Vec<Seen> {
    while_running(&**lab, || measure(&**lab, stream, Clock::start())).expect("a measurement")
}

/// Given 1,000 packets of 1,500 bytes over three hops of 20 ms, expect all of them in order, none
/// before the three transmissions and delays are over, and the arrivals replayed to give the same
/// events.
#[test]
fn packets_come_when_the_model_says_and_a_replay_is_the_run() {
    let plans = vec![plain_link(50_000_000, Duration::from_millis(20), 0.0); 3];
    let Some(lab) = lab(plans.clone()) else { return };
    let interval = MS;
    let stream = Stream { from: Side::World, packet_bytes: 1_500, interval, packets: 1_000 };
    let seen = seen(&lab, stream);
    assert!(seen.iter().map(|packet| packet.sequence).eq(0..1_000));
    let hops = [(50_000_000, Duration::from_millis(20)); 3];
    let errors = errors_ns(&seen, 1_500 * 8, &hops);
    // The stamps of two clocks differ by less than a microsecond.
    assert!(errors.iter().all(|&error| error > -1_000), "{:?}", errors.iter().min());

    let report = lab.report();
    assert_eq!(report.directions[4].1.delivered.packets, 1_000, "the third forward direction");
    let end = report.at + Duration::from_secs(10);
    let mut emulator = Arc::into_inner(lab).expect("nobody else has it").into_emulator();
    emulator.run_until(end);
    let (mut record, hash) = emulator.tapped().expect("it was asked for");
    assert!(record.arrivals.len() >= 1_000);
    assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
    record.arrivals.remove(0);
    assert_ne!(replay(&plans, 1, &record, end).expect("a replay"), hash);
}

/// Given 480 Mbit/s to a link of 400 Mbit/s with room for three packets, and counters that are read ten
/// times a second, expect some packets dropped, and the arrivals replayed to give the same events.
#[test]
fn a_full_link_with_a_short_queue_can_be_replayed() {
    let mut plan = plain_link(400_000_000, MS, 0.0);
    plan.directions[0].queue = Queue::DropTail { limit: Limit::Packets(3) };
    let plans = vec![plan];
    let Some(lab) = lab(plans.clone()) else { return };
    let interval = Duration::from_micros(25);
    let stream = Stream { from: Side::World, packet_bytes: 1_500, interval, packets: 20_000 };
    let seen = seen(&lab, stream);
    assert!(seen.len() < 20_000, "the queue was full at times");
    let end = lab.report().at + Duration::from_secs(10);
    let mut emulator = Arc::into_inner(lab).expect("nobody else has it").into_emulator();
    emulator.run_until(end);
    let (record, hash) = emulator.tapped().expect("it was asked for");
    assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
}

/// Given 2,000 packets in a second over a link that is made slow, lossy, near and silent meanwhile, and
/// orders that cannot be followed, expect all that were sent and not lost to come in order, and the
/// record replayed to give the same events.
#[test]
fn a_link_that_is_changed_while_it_runs_can_be_replayed() {
    let plans = vec![plain_link(50_000_000, Duration::from_millis(20), 0.0); 2];
    let Some(lab) = lab(plans.clone()) else { return };
    let first = Order::to(0, Side::World);
    let orders = [
        vec![Order { rate: Some(BitRate(8_000_000)), ..first }],
        vec![Order { bit_error_rate: Probability::new(1e-5), ..first }],
        vec![
            Order { delay: Some(MS), ..Order::to(1, Side::World) },
            Order { outage: Some(Duration::from_millis(100)), ..first },
        ],
        vec![Order {
            rate: Some(BitRate(100_000_000)),
            bit_error_rate: Probability::new(0.0),
            ..first
        }],
    ];
    let stream = Stream {
        from: Side::World,
        packet_bytes: 1_000,
        interval: Duration::from_micros(500),
        packets: 2_000,
    };
    let ordering = Arc::clone(&lab);
    let given = thread::spawn(move || {
        let mut moments = Vec::new();
        for order in orders {
            thread::sleep(std::time::Duration::from_millis(200));
            moments.push(ordering.order(order).expect("it runs"));
            let bad = [Order::to(2, Side::World), Order { rate: Some(BitRate(0)), ..first }];
            for bad in bad {
                let good = Order { rate: Some(BitRate(1)), ..first };
                assert!(matches!(ordering.order(vec![good, bad]), Err(LabError::Plan(_))));
            }
        }
        moments
    });
    let seen = seen(&lab, stream);
    let moments = given.join().expect("all orders were followed");
    assert!(moments.is_sorted());
    assert!(seen.is_sorted_by_key(|packet| packet.sequence), "none overtakes another");
    assert!((1_000..2_000).contains(&seen.len()), "{} of 2,000: a few are lost", seen.len());

    let end = lab.report().at + Duration::from_secs(10);
    let mut emulator = Arc::into_inner(lab).expect("nobody else has it").into_emulator();
    emulator.run_until(end);
    let (mut record, hash) = emulator.tapped().expect("it was asked for");
    assert_eq!(record.orders.len(), 5);
    assert_eq!(replay(&plans, 1, &record, end).expect("a replay"), hash);
    record.orders.remove(1);
    assert_ne!(replay(&plans, 1, &record, end).expect("a replay"), hash);
}

/// Given bit errors that lose p = 1 - (1 - 2e-5)^800 of packets of 100 bytes, 1.59 %, expect the
/// share lost within the 99 % interval of a binomial of 20,000.
#[test]
fn as_many_packets_are_lost_as_bits_are_wrong() {
    let Some(lab) = lab(vec![plain_link(100_000_000, MS, 2e-5)]) else { return };
    let interval = Duration::from_micros(50);
    let stream = Stream { from: Side::Island, packet_bytes: 100, interval, packets: 20_000 };
    let lost = 20_000 - seen(&lab, stream).len();
    let chance = 1.0 - (1.0_f64 - 2e-5).powi(800);
    let deviation = (20_000.0 * chance * (1.0 - chance)).sqrt();
    let off = (lost as f64 - 20_000.0 * chance) / deviation;
    assert!(off.abs() < 2.576, "{lost} lost, {off:.2} standard deviations off");
}

/// Given others that want the processors as much as the link does, expect runs whose delays are off to
/// say so: of those outside |median| <= 60 us and p99 <= 300 us, at least 19 in 20.
#[test]
fn a_run_without_a_processor_knows_it() {
    if lab(vec![plain_link(1_000_000, MS, 0.0)]).is_none() {
        return;
    }
    // A thread that may not run on every processor gets no deadline (sched(7)), with which nobody could
    // disturb the link.
    let all = sched_getaffinity(None).expect("a thread");
    let mut first = CpuSet::new();
    first.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).expect("a processor"));
    sched_setaffinity(None, &first).expect("one of ours");
    let (mut outside, mut known) = (0, 0);
    // Fewer runs could not tell 19 in 20 from all.
    for burners in [0, 2].into_iter().chain([4; 20]) {
        let over = AtomicBool::new(false);
        let errors = thread::scope(|scope| {
            for _ in 0..burners {
                scope.spawn(|| burn(&over, &all));
            }
            let load = Load {
                rate_bps: 100_000_000,
                delay: Duration::from_millis(20),
                hops: 1,
                packet_bytes: 100,
                interval: Duration::from_micros(100),
            };
            let errors = delay_errors(load, Duration::from_millis(300));
            over.store(true, Ordering::Relaxed);
            errors.expect("a measurement")
        });
        assert!(errors.min_ns > -1_000, "{errors:?}");
        if errors.p50_ns > 60_000 || errors.p99_ns > 300_000 {
            outside += 1;
            known += u32::from(errors.invalid.is_some());
        }
    }
    assert!(known * 20 >= outside * 19, "{known} of {outside} runs knew");
    assert!(outside >= 3, "only {outside} runs were disturbed: nothing was tried");
}

/// Uses a processor, with as much right to it as the link's thread has.
fn burn(over: &AtomicBool, on: &CpuSet) {
    sched_setaffinity(None, on).expect("all that there are");
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
    while !over.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[test]
fn a_program_ends_with_its_code_and_one_that_is_missing_is_named() {
    let Some(lab) = lab(vec![plain_link(1_000_000, MS, 0.0)]) else { return };
    let run = |arguments: &[&str]| {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        spawn(lab.namespace(Side::Island), Invocation { arguments, ..Invocation::default() })
    };
    let code = |process: i32| {
        use rustix::process::{Pid, WaitOptions, waitpid};
        let pid = Pid::from_raw(process).expect("a process");
        waitpid(Some(pid), WaitOptions::empty()).expect("ours").expect("ended").1.exit_status()
    };
    assert_eq!(code(run(&["sh", "-c", "exit 7"]).expect("a shell")), Some(7));
    assert_eq!(code(run(&["sh", "-c", "kill -TERM $$"]).expect("a shell")), Some(128 + 15));
    let error = run(&["no-such-program"]).expect_err("there is none");
    assert!(error.to_string().starts_with("no-such-program: No such file"), "{error}");
}

/// What is not for real time is refused before anything is made.
#[test]
fn a_lab_needs_a_link() {
    let error = Lab::up(Config::of(Vec::new())).err().expect("no link");
    assert!(matches!(error, LabError::Plan(_)), "{error}");
}
