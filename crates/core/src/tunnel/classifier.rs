//! Which packets are coded: by size, by class and by the age of their flow.
//!
//! Acknowledgements and other small packets need a whole repair symbol each, so they may stay uncoded:
//! a cumulative acknowledgement replaces a lost one. The first packets of a flow may stay uncoded, too:
//! most flows of a heavy-tailed load end there.

use super::flow_table::{FlowKey, FlowTable};
use crate::engine::Count;
use crate::time::{Duration, Instant};

/// A set of traffic classes, or of DSCP values (RFC 2474): numbers below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet(u64);

impl ClassSet {
    /// All classes.
    pub const ALL: Self = Self(u64::MAX);

    /// The set of these classes; numbers from 64 are left out.
    #[must_use]
    pub fn of(classes: &[u8]) -> Self {
        Self(classes.iter().map(|&class| Self::bit(class)).fold(0, |set, bit| set | bit))
    }

    /// Whether the class is in the set.
    #[must_use]
    pub fn contains(self, class: u8) -> bool {
        self.0 & Self::bit(class) != 0
    }

    fn bit(class: u8) -> u64 {
        1u64.checked_shl(class.into()).unwrap_or(0)
    }
}

/// When a flow is old enough to be coded. Zero codes it from its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YoungFlow {
    /// Until it has had this many packets.
    Packets(u64),
    /// Until it has had this many bytes.
    Bytes(u64),
}

/// The settings of a classifier.
#[derive(Clone, Copy, Debug)]
pub struct ClassifierConfig {
    /// The size of the smallest packet that is coded, in IP bytes.
    pub packet_bytes_min: u32,
    /// The classes that are coded.
    pub classes: ClassSet,
    /// The flows that are not coded yet.
    pub young_flow: YoungFlow,
    /// The most flows whose age is known. Beyond it the one without packets for the longest time is
    /// forgotten; it is young again.
    pub flows_max: usize,
    /// A flow without packets for this long is forgotten.
    pub idle_timeout: Duration,
}

/// Whether a packet is coded, and if not, why. The first reason that applies, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It becomes part of a source symbol.
    Coded,
    /// Its class is not coded.
    OtherClass,
    /// It is too small.
    Small,
    /// Its flow is too young.
    Young,
}

impl Treatment {
    /// All treatments, in order.
    pub const ALL: [Self; 4] = [Self::Coded, Self::OtherClass, Self::Small, Self::Young];
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowAge {
    packets: u64,
    bytes: u64,
    /// Coded packets, modulo 2^32.
    coded: u32,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Classifier {
    config: ClassifierConfig,
    flows: FlowTable<FlowAge>,
    counts: [Count; Treatment::ALL.len()],
}

impl Classifier {
    /// A classifier that knows no flow.
    #[must_use]
    pub fn new(config: ClassifierConfig) -> Self {
        let flows = FlowTable::new(config.flows_max, config.idle_timeout);
        Self { config, flows, counts: Default::default() }
    }

    /// Changes the settings; the ages of flows are kept.
    pub fn reconfigure(&mut self, config: ClassifierConfig) {
        self.flows.resize(config.flows_max, config.idle_timeout);
        self.config = config;
    }

    /// Classifies a packet that arrives now and counts it. All packets of a flow count for its age.
    pub fn classify(
        &mut self,
        now: Instant,
        flow: FlowKey,
        class: u8,
        packet_bytes: u32,
    ) -> Treatment {
        while self.flows.pop_idle(now).is_some() {}
        self.flows.make_room(flow);
        let age = self.flows.touch(now, flow);
        let is_young = match self.config.young_flow {
            YoungFlow::Packets(packets) => age.packets < packets,
            YoungFlow::Bytes(bytes) => age.bytes < bytes,
        };
        age.packets += 1;
        age.bytes += u64::from(packet_bytes);
        let treatment = if !self.config.classes.contains(class) {
            Treatment::OtherClass
        } else if packet_bytes < self.config.packet_bytes_min {
            Treatment::Small
        } else if is_young {
            Treatment::Young
        } else {
            Treatment::Coded
        };
        self.counts[treatment as usize].add(packet_bytes);
        treatment
    }

    /// The number of a packet of this flow that was just classified as coded, among the coded ones of its flow: 0, 1, and
    /// so on. It begins anew for a flow that was forgotten.
    pub fn sequence(&mut self, flow: FlowKey) -> u32 {
        let Some(age) = self.flows.get_mut(flow) else { return 0 };
        let sequence = age.coded;
        age.coded = sequence.wrapping_add(1);
        sequence
    }

    /// Packets classified so.
    #[must_use]
    pub fn count(&self, treatment: Treatment) -> Count {
        self.counts[treatment as usize]
    }

    /// The flows whose age is known.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: ClassifierConfig = ClassifierConfig {
        packet_bytes_min: 100,
        classes: ClassSet::ALL,
        young_flow: YoungFlow::Packets(2),
        flows_max: 3,
        idle_timeout: Duration::from_secs(60),
    };

    fn secs(secs: u64) -> Instant {
        Instant::START + Duration::from_secs(secs)
    }

    /// Given the first 2 packets of a flow young, expect coding from the third; another flow and a
    /// small packet change nothing.
    #[test]
    fn a_flow_is_coded_after_its_first_packets() {
        let mut classifier = Classifier::new(CONFIG);
        let mut classify = |flow, bytes| classifier.classify(secs(0), flow, 0, bytes);
        assert_eq!(classify(1, 1_500), Treatment::Young);
        assert_eq!(classify(2, 1_500), Treatment::Young);
        assert_eq!(classify(1, 40), Treatment::Small);
        assert_eq!(classify(1, 100), Treatment::Coded, "the small one counted for its age");
        assert_eq!(classify(1, 99), Treatment::Small);
    }

    #[test]
    fn the_age_of_a_flow_in_bytes() {
        let young_flow = YoungFlow::Bytes(3_000);
        let mut classifier = Classifier::new(ClassifierConfig { young_flow, ..CONFIG });
        let treatments = [1_500; 3].map(|bytes| classifier.classify(secs(0), 1, 0, bytes));
        assert_eq!(treatments, [Treatment::Young, Treatment::Young, Treatment::Coded]);
    }

    #[test]
    fn classes_outside_the_set_stay_uncoded() {
        let classes = ClassSet::of(&[0, 46, 200]);
        let young_flow = YoungFlow::Packets(0);
        let mut classifier = Classifier::new(ClassifierConfig { classes, young_flow, ..CONFIG });
        let mut classify = |class| classifier.classify(secs(0), 1, class, 1_500);
        assert_eq!(classify(46), Treatment::Coded);
        assert_eq!(classify(10), Treatment::OtherClass);
        assert_eq!([64, 200, 255].map(classify), [Treatment::OtherClass; 3], "no such DSCP");
    }

    /// Given an old flow, expect it to be young again after 60 s without packets, and after three
    /// other flows of a table of three.
    #[test]
    fn a_forgotten_flow_is_young_again() {
        let mut classifier = Classifier::new(CONFIG);
        let mut classify = |at, flow| classifier.classify(secs(at), flow, 0, 1_500);
        (0..2).for_each(|at| assert_eq!(classify(at, 1), Treatment::Young));
        assert_eq!(classify(60, 1), Treatment::Coded);
        assert_eq!(classify(120, 1), Treatment::Young, "idle since 60 s");
        classify(121, 1);
        assert_eq!([2, 3, 4].map(|flow| classify(122, flow)), [Treatment::Young; 3]);
        assert_eq!(classify(123, 1), Treatment::Young, "evicted");
        assert_eq!(classifier.flows(), 3);
    }

    /// Given three old flows and a new limit of two, expect the two with the latest packets to stay old.
    #[test]
    fn the_ages_of_flows_outlast_new_settings() {
        let mut classifier = Classifier::new(CONFIG);
        for number in 0..9 {
            classifier.classify(secs(number), number % 3, 0, 1_500);
        }
        classifier.reconfigure(ClassifierConfig {
            flows_max: 2,
            packet_bytes_min: 2_000,
            ..CONFIG
        });
        assert_eq!(classifier.flows(), 2);
        assert_eq!(classifier.classify(secs(9), 2, 0, 1_500), Treatment::Small);
        let treatments = [2, 1, 0].map(|flow| classifier.classify(secs(9), flow, 0, 2_000));
        assert_eq!(treatments, [Treatment::Coded, Treatment::Coded, Treatment::Young]);
    }

    proptest! {
        /// Given any packets, expect each to be counted once and the table to stay bounded.
        #[test]
        fn every_packet_is_counted_once(
            packets in prop::collection::vec((0u64..9, 0u8..80, 0u32..2_000, 0u64..90), 0..200),
        ) {
            let mut classifier =
                Classifier::new(ClassifierConfig { classes: ClassSet::of(&[0, 7]), ..CONFIG });
            let (mut now, mut all) = (Instant::START, Count::default());
            for (flow, class, bytes, gap) in packets {
                now += Duration::from_secs(gap);
                let treatment = classifier.classify(now, flow, class, bytes);
                all.add(bytes);
                let may_be_coded = bytes >= 100 && [0, 7].contains(&class);
                prop_assert!(treatment != Treatment::Coded || may_be_coded);
                prop_assert!(classifier.flows() <= CONFIG.flows_max);
            }
            let counts = Treatment::ALL.map(|treatment| classifier.count(treatment));
            prop_assert_eq!(counts.iter().map(|count| count.packets).sum::<u64>(), all.packets);
            prop_assert_eq!(counts.iter().map(|count| count.bytes).sum::<u64>(), all.bytes);
        }
    }
}
