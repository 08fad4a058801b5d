//! Metrics in the text format of Prometheus.

use std::fmt::{Display, Write};

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

    pub(super) fn labelled(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        label: &str,
        values: [(&str, u64); 2],
    ) {
        self.head(name, help, kind);
        for (is, value) in values {
            self.line(name, &format!("{{{label}=\"{is}\"}}"), value);
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
