//! Metrics in the text format of Prometheus.

use std::fmt::{Display, Write};

use crate::counts::Counts;

/// Metrics whose names have a common beginning.
pub(super) struct Text {
    prefix: &'static str,
    pub(super) text: String,
}

impl Text {
    pub(super) fn new(prefix: &'static str) -> Self {
        Self { prefix, text: String::new() }
    }

    pub(super) fn one(&mut self, name: &str, help: &str, kind: &str, value: impl Display) {
        self.head(name, help, kind);
        self.line(name, "", value);
    }

    /// The counts of some reports, each with its label, or of one without.
    pub(super) fn counts<T: Counts>(&mut self, reports: &[(String, &T)]) {
        let mut before = "";
        for count in T::COUNTS {
            let (name, own_label) = match count.metric.find('{') {
                Some(at) => count.metric.split_at(at),
                None => (count.metric, ""),
            };
            if name != before {
                self.head(name, count.help, count.kind);
            }
            before = name;
            for (label, report) in reports {
                let value = (count.value)(report) as f64 / count.divisor;
                self.line(name, &format!("{own_label}{label}"), value);
            }
        }
    }

    pub(super) fn head(&mut self, name: &str, help: &str, kind: &str) {
        let prefix = self.prefix;
        let _ = writeln!(self.text, "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}");
    }

    pub(super) fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.text, "{}_{name}{labels} {value}", self.prefix);
    }
}
