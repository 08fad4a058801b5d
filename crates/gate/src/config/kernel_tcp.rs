//! The TCP settings of a leg, which are those of a scenario: what a socket of the running kernel can be set to, and why
//! the rest is refused.
//!
//! `bentpipe.live.kernel_tcp` has the same for labs; `tests/test_gateway_shared.py` compares both.

use std::sync::LazyLock;

use toml::{Table, Value};

use super::quantity::{DURATION, Quantity, SIZE};
use super::reader::{Fields, Mistakes, above_zero, boolean, integer, quantity, word};
use super::wording::shown_text;
use crate::daemon::Leg;

/// setsockopt(2) takes an `int`, and the kernel doubles it (socket(7), `SO_SNDBUF`).
const SOCKET_BUFFER_BYTES_MAX: u64 = i32::MAX as u64 / 2;
const NUMBER_MAX: i64 = u32::MAX as i64;
/// The names of the kernel that a scenario has others for.
const CONGESTION_CONTROLS: [(&str, &str); 1] = [("newreno", "reno")];

/// What a field holds.
#[derive(Clone, Copy)]
enum Type {
    Size,
    Duration,
    PositiveDuration,
    Number,
    Switch,
    Word(&'static [&'static str]),
}

/// Who may differ in a setting. The kernel has those of a host for all its connections, by sysctls of `net.ipv4`; those
/// of a route are attributes of ip-route(8); those of the kernel cannot be changed.
#[derive(Clone, Copy)]
enum Scope {
    Connection,
    Host(&'static str),
    Route(&'static str),
    Kernel,
}

/// The fields, in the order of `bentpipe.scenario.tcp`.
const FIELDS: [(&str, Type, Scope); 26] = [
    ("mss", Type::Size, Scope::Route("advmss")),
    ("initial_window", Type::Number, Scope::Route("initcwnd")),
    (
        "congestion_control",
        Type::Word(&["reno", "newreno", "cubic", "bbr", "hybla", "vegas", "westwood"]),
        Scope::Connection,
    ),
    ("sack", Type::Switch, Scope::Host("tcp_sack")),
    ("timestamps", Type::Switch, Scope::Host("tcp_timestamps")),
    ("window_scaling", Type::Switch, Scope::Host("tcp_window_scaling")),
    ("send_buffer", Type::Size, Scope::Connection),
    ("receive_buffer", Type::Size, Scope::Connection),
    ("receive_buffer_initial", Type::Size, Scope::Host("tcp_rmem")),
    ("receive_buffer_counts", Type::Word(&["window", "memory"]), Scope::Connection),
    ("delayed_ack_segments", Type::Number, Scope::Kernel),
    ("delayed_ack_timeout", Type::Duration, Scope::Kernel),
    ("quick_ack_segments", Type::Number, Scope::Kernel),
    ("rto_initial", Type::PositiveDuration, Scope::Kernel),
    ("rto_min", Type::PositiveDuration, Scope::Route("rto_min")),
    ("rto_min_bounds", Type::Word(&["timeout", "variance"]), Scope::Kernel),
    ("rto_max", Type::PositiveDuration, Scope::Kernel),
    ("clock_granularity", Type::PositiveDuration, Scope::Kernel),
    ("slow_start_segments_per_ack", Type::Number, Scope::Kernel),
    ("avoidance_counting", Type::Word(&["bytes", "acks"]), Scope::Kernel),
    ("limited_transmit", Type::Switch, Scope::Kernel),
    ("rack_tlp", Type::Switch, Scope::Host("tcp_recovery and tcp_early_retrans")),
    ("prr", Type::Switch, Scope::Kernel),
    ("hystart", Type::Switch, Scope::Kernel),
    ("ecn", Type::Switch, Scope::Host("tcp_ecn")),
    ("stack", Type::Word(&["rfc", "linux"]), Scope::Kernel),
];

/// What the kernel does: the profile `linux` of scenarios.
static KERNEL: LazyLock<Tcp> = LazyLock::new(|| {
    let profiles = include_str!("../../../../python/bentpipe/scenario/profiles.toml");
    let profiles: Table = profiles.parse().unwrap_or_default();
    let linux = profiles.get("linux").and_then(Value::as_table).cloned().unwrap_or_default();
    let mistakes = Mistakes::default();
    Tcp::read(&Fields::new(&linux, String::new(), &mistakes, &names()))
});

/// A value that was written.
#[derive(Clone, Debug)]
enum Setting {
    Quantity(Quantity),
    Number(i64),
    Switch(bool),
    Word(&'static str),
}

impl PartialEq for Setting {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Quantity(one), Self::Quantity(other)) => one.value == other.value,
            (Self::Number(one), Self::Number(other)) => one == other,
            (Self::Switch(one), Self::Switch(other)) => one == other,
            (Self::Word(one), Self::Word(other)) => one == other,
            _ => false,
        }
    }
}

impl Setting {
    fn shown(&self) -> String {
        match self {
            Self::Quantity(quantity) => shown_text(&quantity.text),
            Self::Number(number) => number.to_string(),
            Self::Switch(value) => value.to_string(),
            Self::Word(word) => shown_text(word),
        }
    }

    /// As an argument of ip-route(8).
    fn of_route(&self, field: &str) -> String {
        match self {
            Self::Quantity(quantity) if field == "mss" => quantity.value.to_string(),
            Self::Quantity(quantity) => quantity.text.replace(' ', ""),
            other => other.shown(),
        }
    }
}

fn fields() -> impl Iterator<Item = &'static (&'static str, Type, Scope)> {
    FIELDS.iter()
}

/// The names of all fields.
pub(super) fn names() -> Vec<&'static str> {
    fields().map(|(name, ..)| *name).collect()
}

/// The settings of a leg that are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Tcp(Vec<(&'static str, Setting)>);

impl Tcp {
    pub(super) fn read(table: &Fields<'_>) -> Self {
        let read = |&(name, kind, _): &(&'static str, Type, Scope)| {
            let setting = match kind {
                Type::Size => table.read(name, above_zero(&SIZE)).map(Setting::Quantity),
                Type::Duration => table.read(name, quantity(&DURATION)).map(Setting::Quantity),
                Type::PositiveDuration => {
                    table.read(name, above_zero(&DURATION)).map(Setting::Quantity)
                }
                Type::Number => table.read(name, integer(0, NUMBER_MAX)).map(Setting::Number),
                Type::Switch => table.read(name, boolean).map(Setting::Switch),
                Type::Word(words) => table.read(name, word(words)).map(Setting::Word),
            };
            Some((name, setting?))
        };
        Self(fields().filter_map(read).collect())
    }

    fn get(&self, name: &str) -> Option<&Setting> {
        self.0.iter().find(|(field, _)| *field == name).map(|(_, setting)| setting)
    }

    fn word(&self, name: &str) -> Option<&'static str> {
        match self.get(name) {
            Some(Setting::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn bytes(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Setting::Quantity(quantity)) => Some(quantity.value),
            _ => None,
        }
    }

    /// The settings of sockets; `None` is what the machine has.
    pub(super) fn leg(&self, not_sent_bytes: Option<u32>) -> Leg {
        let kernels = |name: &'static str| {
            CONGESTION_CONTROLS.iter().find(|(own, _)| *own == name).map_or(name, |(_, own)| *own)
        };
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Leg {
            congestion_control: self
                .word("congestion_control")
                .map(|name| kernels(name).to_owned()),
            // The kernel doubles the size for its own overhead, as the model of the simulator expects.
            send_buffer_bytes: self.bytes("send_buffer").map(size),
            receive_buffer_bytes: self.receive_buffer_bytes().map(size),
            not_sent_bytes,
        }
    }

    /// The size to set, which the kernel doubles; `None` to let the kernel tune it.
    fn receive_buffer_bytes(&self) -> Option<u64> {
        self.get("receive_buffer").or(self.get("receive_buffer_counts"))?;
        let bytes = self.bytes("receive_buffer").or(KERNEL.bytes("receive_buffer"))?;
        let counts = self.word("receive_buffer_counts").or(KERNEL.word("receive_buffer_counts"));
        Some(if counts == Some("window") { bytes } else { (bytes / 2).max(1) })
    }

    /// The fields that a socket cannot have, and why.
    pub(super) fn refused(&self) -> Vec<(&'static str, String)> {
        let refused = |(name, kind, scope): &(&'static str, Type, Scope)| {
            let read = self.get(name)?;
            let own_buffer = self.receive_buffer_bytes().is_some();
            let kernels = match *name {
                "receive_buffer_initial" if own_buffer => {
                    self.get("receive_buffer").or(KERNEL.get("receive_buffer"))
                }
                _ => KERNEL.get(name),
            };
            // Only cubic has it.
            let control = self.word("congestion_control").unwrap_or("cubic");
            if Some(read) == kernels || (*name == "hystart" && control != "cubic") {
                return None;
            }
            let reason = match (scope, kind, read) {
                (Scope::Connection, Type::Size, Setting::Quantity(size)) => {
                    if size.value <= SOCKET_BUFFER_BYTES_MAX {
                        return None;
                    }
                    format!("must be at most {SOCKET_BUFFER_BYTES_MAX} B (socket(7))")
                }
                (Scope::Connection, ..) => return None,
                _ => reason(name, *scope, read, kernels),
            };
            Some((*name, format!("read {}; {reason}", read.shown())))
        };
        fields().filter_map(refused).collect()
    }
}

fn reason(name: &str, scope: Scope, read: &Setting, kernels: Option<&Setting>) -> String {
    match scope {
        _ if name == "receive_buffer_initial" => {
            "a socket with a buffer of its own does not tune it: leave it out".to_owned()
        }
        Scope::Host(sysctls) => format!(
            "the kernel has one for all connections: leave it out, and set net.ipv4.{sysctls} by sysctl"
        ),
        Scope::Route(attribute) => format!(
            "the kernel has one for each route: leave it out, and run ip route change DESTINATION ... \
             {attribute} {}",
            read.of_route(name)
        ),
        Scope::Connection | Scope::Kernel => {
            let kernels = kernels.map_or_else(String::new, Setting::shown);
            format!("the kernel's is {kernels} and cannot be set for a connection: leave it out")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> Tcp {
        let table: Table = text.parse().expect("TOML");
        let mistakes = Mistakes::default();
        let tcp = Tcp::read(&Fields::new(&table, String::new(), &mistakes, &names()));
        assert_eq!(mistakes.count(), 0, "{text}");
        tcp
    }

    #[test]
    fn the_profile_of_the_kernel_has_all_settings() {
        for name in names() {
            assert!(KERNEL.get(name).is_some(), "{name}");
        }
    }

    /// Given sizes as a scenario means them, expect those that the kernel doubles: it takes half of a buffer for overhead,
    /// and a size that counts memory is halved, so that the kernel has it as written.
    #[test]
    fn settings_of_a_leg_are_those_of_its_sockets() {
        let lan = tcp("congestion_control = 'newreno'\nreceive_buffer = '1 MB'").leg(Some(16_384));
        assert_eq!(lan.congestion_control.as_deref(), Some("reno"));
        assert_eq!((lan.send_buffer_bytes, lan.receive_buffer_bytes), (None, Some(500_000)));
        assert_eq!(lan.not_sent_bytes, Some(16_384));
        let text = "congestion_control = 'hybla'\nsend_buffer = '2 MB'\nreceive_buffer = '1 MB'\n\
                    receive_buffer_counts = 'window'";
        let link = tcp(text).leg(None);
        assert_eq!(link.congestion_control.as_deref(), Some("hybla"));
        assert_eq!(
            (link.send_buffer_bytes, link.receive_buffer_bytes),
            (Some(2_000_000), Some(1_000_000))
        );
        assert_eq!(Tcp::default().leg(None), Leg::default());
    }

    #[test]
    fn what_the_kernel_does_not_have_is_refused() {
        for (written, message) in [
            (
                "sack = false",
                "read false; the kernel has one for all connections: leave it out, and set \
                 net.ipv4.tcp_sack by sysctl",
            ),
            (
                "rack_tlp = false",
                "read false; the kernel has one for all connections: leave it out, and set \
                 net.ipv4.tcp_recovery and tcp_early_retrans by sysctl",
            ),
            (
                "initial_window = 30",
                "read 30; the kernel has one for each route: leave it out, and run ip route change \
                 DESTINATION ... initcwnd 30",
            ),
            (
                "mss = '1400 B'",
                "read \"1400 B\"; the kernel has one for each route: leave it out, and run ip route \
                 change DESTINATION ... advmss 1400",
            ),
            (
                "rto_min = '300 ms'",
                "read \"300 ms\"; the kernel has one for each route: leave it out, and run ip route \
                 change DESTINATION ... rto_min 300ms",
            ),
            (
                "delayed_ack_segments = 4",
                "read 4; the kernel's is 2 and cannot be set for a connection: leave it out",
            ),
            (
                "receive_buffer_initial = '64 KiB'",
                "read \"64 KiB\"; a socket with a buffer of its own does not tune it: leave it out",
            ),
            (
                "receive_buffer = '1 MB'\nreceive_buffer_initial = '128 KiB'",
                "read \"128 KiB\"; a socket with a buffer of its own does not tune it: leave it out",
            ),
            ("send_buffer = '2 GB'", "read \"2 GB\"; must be at most 1073741823 B (socket(7))"),
        ] {
            let refused = tcp(written).refused();
            let [(_, found)] = &refused[..] else { panic!("{written}: {refused:?}") };
            assert_eq!(found, message);
        }
    }

    #[test]
    fn what_the_kernel_does_anyway_may_be_written() {
        for text in [
            "sack = true\ninitial_window = 10\nhystart = true\nrto_min = '0.2 s'",
            "congestion_control = 'reno'\nhystart = false",
        ] {
            assert!(tcp(text).refused().is_empty(), "{text}");
        }
    }

    /// Given each field with a value that is not the kernel's, expect it at a socket, or refused.
    #[test]
    fn every_setting_of_a_leg_is_either_one_of_the_socket_or_refused() {
        for (name, kind, _) in fields() {
            let written = match kind {
                Type::Size => format!("{name} = '1001 B'"),
                Type::Duration | Type::PositiveDuration => format!("{name} = '77 ms'"),
                Type::Number => format!("{name} = 3"),
                Type::Switch => format!("{name} = {}", *name == "ecn"),
                Type::Word(words) => {
                    let kernels = KERNEL.word(name);
                    let other = words.iter().find(|word| kernels != Some(**word));
                    format!("{name} = '{}'", other.expect("another word"))
                }
            };
            let tcp = tcp(&written);
            let is_refused = tcp.refused().iter().any(|(field, _)| field == name);
            assert_ne!(is_refused, tcp.leg(None) != Leg::default(), "{written}");
        }
    }
}
