//! The counts of a daemon: each is declared once, with what its JSON, its metric and the status of a gateway say of it.

/// One count of a report.
pub struct Count<T> {
    /// Its field, which is its name in JSON.
    pub field: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Its type in Prometheus.
    pub kind: &'static str,
    /// The end of its metric's name, with a label where several counts are one metric.
    pub metric: &'static str,
    /// How many of it are one of the metric's unit.
    pub divisor: f64,
    /// Its words in the status of a gateway, if it is a line there.
    pub status: Option<&'static str>,
    /// Its value.
    pub value: fn(&T) -> u64,
    /// Where its value is.
    pub place: fn(&mut T) -> &mut u64,
}

/// A report that has counts.
pub trait Counts: Sized + 'static {
    /// All of them.
    const COUNTS: &'static [Count<Self>];

    /// Adds those of another report.
    fn add_counts(&mut self, other: &Self) {
        for count in Self::COUNTS {
            let sum = (count.place)(self);
            *sum = sum.saturating_add((count.value)(other));
        }
    }

    /// Adds what never falls, from a report of an earlier process.
    fn add_counters(&mut self, other: &Self) {
        for count in Self::COUNTS.iter().filter(|count| count.kind == "counter") {
            let sum = (count.place)(self);
            *sum = sum.saturating_add((count.value)(other));
        }
    }

    /// Sets what is of the present alone to 0, when the process has ended.
    fn clear_gauges(&mut self) {
        for count in Self::COUNTS.iter().filter(|count| count.kind == "gauge") {
            *(count.place)(self) = 0;
        }
    }
}

/// Declares a report: first the fields that are no counts, then the counts as `field: "help" kind "metric"`, with
/// `/ divisor` and `as "words of the status"` where they have them.
macro_rules! report {
    (
        $(#[$of_report:meta])*
        pub struct $name:ident {
            $($(#[$of_field:meta])* pub $plain:ident: $type:ty,)*
        }
        counts {
            $($field:ident: $help:literal $kind:ident $metric:literal $(/ $divisor:literal)? $(as $status:literal)?,)*
        }
    ) => {
        $(#[$of_report])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$of_field])* pub $plain: $type,)*
            $(#[doc = $help] pub $field: u64,)*
        }

        impl $crate::counts::Counts for $name {
            const COUNTS: &'static [$crate::counts::Count<Self>] = &[$($crate::counts::Count {
                field: stringify!($field),
                help: $help,
                kind: stringify!($kind),
                metric: $metric,
                divisor: $crate::counts::or!(1.0, $($divisor)?),
                status: $crate::counts::or!(None, $(Some($status))?),
                value: |report| report.$field,
                place: |report| &mut report.$field,
            },)*];
        }
    };
}

/// The second value, or else the first one.
macro_rules! or {
    ($default:expr, ) => {
        $default
    };
    ($default:expr, $value:expr) => {
        $value
    };
}

pub(crate) use {or, report};

#[cfg(test)]
#[expect(unreachable_pub, reason = "reports are public")]
mod tests {
    use super::*;

    report! {
        /// Counts of a test.
        pub struct Example {
            /// No count.
            pub name: String,
        }
        counts {
            packets: "Packets." counter "packets_total" as "packets",
            cpu_ns: "Time." counter "cpu_seconds_total" / 1e9,
        }
    }

    /// Given a report, expect its counts in JSON by their fields, with what was declared of them.
    #[test]
    fn a_count_is_declared_once() {
        let report = Example { name: "hub".to_owned(), packets: 3, cpu_ns: 4 };
        let json = serde_json::to_value(&report).expect("a report");
        let [packets, cpu] = Example::COUNTS else { panic!("two counts") };
        for (count, value) in [(packets, 3), (cpu, 4)] {
            assert_eq!((json[count.field].as_u64(), (count.value)(&report)), (Some(value), value));
        }
        let declared = |count: &Count<Example>| (count.metric, count.divisor, count.status);
        assert_eq!(declared(packets), ("packets_total", 1.0, Some("packets")));
        assert_eq!(declared(cpu), ("cpu_seconds_total", 1e9, None));
    }

    #[test]
    fn sums_saturate() {
        let mut sum = Example { name: "a".to_owned(), packets: 1, cpu_ns: u64::MAX };
        sum.add_counts(&Example { name: "b".to_owned(), packets: 2, cpu_ns: 1 });
        assert_eq!(sum, Example { name: "a".to_owned(), packets: 3, cpu_ns: u64::MAX });
    }
}
