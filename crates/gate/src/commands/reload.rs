//! New settings for a running daemon.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde_json::Value;

use super::deadline::Deadline;
use super::failure::{Done, FIX, Failure, called};
use super::folder::{GatewayFolder, Record};
use crate::config::Config;
use crate::config::wording::reason;
use crate::daemon::{Plan, Reply};

const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
const REPLY_BYTES_MAX: usize = 64 * 1024;
const CHANGEABLE: &str = "redundancy, redundancy_max, window, window_max, overflow_repairs, \
                          overflow_window, titration, delay, threshold, hold_time, hold_buffer, rate, classes, packet_size, uncoded_first and \
                          congestion_signal";
/// The fields of a configuration with other names than those of the plan.
const NAMES: [(&str, &str); 8] = [
    ("tunnel.listen_address", "tunnel.listen"),
    ("tunnel.listen_port", "tunnel.listen"),
    ("tunnel.settings.delivery.hold_time_ns", "tunnel.order_hold_time"),
    ("tunnel.settings.delivery.pace_bps", "tunnel.order_pace"),
    ("tunnel.settings.delivery", "tunnel.order"),
    ("tunnel.settings.memory_symbols", "tunnel.memory"),
    ("tunnel.settings.queue.capacity_bytes", "tunnel.queue"),
    ("tunnel.settings.queue", "tunnel"),
];

/// Passes the settings of a plan to the running daemon of the same name. Threads that are not written are those of the running
/// daemon.
///
/// # Errors
/// The plan differs in what a running daemon cannot change, and nothing is changed; or the daemon does not answer, or
/// fails.
pub(super) fn reload(config: &Config, plan: &Plan) -> Done {
    let folder = GatewayFolder::new(&config.name);
    let record = folder.record().filter(|_| folder.is_up()).ok_or_else(|| {
        Failure::Machine(format!(
            "gateway {} is not up{FIX}start it with {} up",
            config.name,
            called()
        ))
    })?;
    let control = folder.files().control;
    let again = format!("to fix it: {} down {}, then up", called(), config.name);
    if !control.exists() {
        return Err(Failure::Machine(format!(
            "{}: gateway {} has no such socket: its version cannot change; {again}",
            control.display(),
            config.name
        )));
    }
    let mut plan = plan.clone();
    let threads = record.plan.pointer("/pep/threads").and_then(Value::as_u64);
    if let (Some(pep), Some(threads), false) = (&mut plan.pep, threads, config.has_threads()) {
        pep.threads = usize::try_from(threads).unwrap_or(pep.threads);
    }
    let plan = serde_json::to_value(&plan).map_err(|error| Failure::Machine(error.to_string()))?;
    let reply = ask_daemon(&control, &plan)?;
    if let Some(failure) = refusal(&reply, config, &record.config, &again) {
        return Err(failure);
    }
    let described = serde_json::to_value(config.description()).unwrap_or_default();
    folder.write_record(&Record { plan, described, ..record })
}

/// Why a daemon has not changed its settings.
fn refusal(reply: &Reply, config: &Config, path: &str, again: &str) -> Option<Failure> {
    let name = &config.name;
    match reply {
        Reply::Changed => None,
        Reply::Differs(fields) => {
            let mut names: Vec<String> = Vec::new();
            for name in fields.iter().map(|field| config_name(field)) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            Some(Failure::Input(format!(
                "{path}: a running gateway cannot change {}; nothing was changed. It can change except and \
                 only of its PEP, and {CHANGEABLE} of its tunnel; {again}",
                names.join(", ")
            )))
        }
        Reply::Failed(why) => Some(Failure::Machine(format!(
            "gateway {name}: {why}{FIX}see {} status {name}, and try again",
            called()
        ))),
        // The configuration was checked, so it is a daemon of another version.
        Reply::Refused(why) => {
            Some(Failure::Machine(format!("gateway {name}: its version differs: {why}; {again}")))
        }
    }
}

/// Sends a plan to the socket of a daemon; returns its reply.
///
/// The daemon waits 100 ms for the plan of a client. A busy machine may not run this process for as long; then it asks again. A
/// daemon that has the plan already changes nothing.
///
/// # Errors
/// The daemon does not answer.
fn ask_daemon(path: &Path, plan: &Value) -> Done<Reply> {
    let message = plan.to_string();
    let end = Deadline::after(REPLY_TIMEOUT);
    let mut reply = exchange(path, message.as_bytes());
    while let Err(error) = &reply {
        let is_closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        if !is_closed || end.is_past() {
            break;
        }
        reply = exchange(path, message.as_bytes());
    }
    reply.and_then(|reply| Ok(serde_json::from_slice(&reply)?)).map_err(|error| {
        Failure::Machine(format!(
            "{}: the daemon does not answer: {}{FIX}try again, as the user who has started the gateway",
            path.display(),
            reason(&error)
        ))
    })
}

fn exchange(path: &Path, message: &[u8]) -> io::Result<Vec<u8>> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let client = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&client, timeout, Some(REPLY_TIMEOUT))?;
    }
    connect(&client, &SocketAddrUnix::new(path)?)?;
    send(&client, message, SendFlags::NOSIGNAL)?;
    let mut reply = vec![0; REPLY_BYTES_MAX];
    let (length, _) = recv(&client, &mut reply[..], RecvFlags::empty())?;
    if length == 0 {
        // It has closed the connection without a reply.
        return Err(ErrorKind::ConnectionReset.into());
    }
    reply.truncate(length);
    Ok(reply)
}

/// The name in the configuration of a path in the plan.
fn config_name(path: &str) -> String {
    let known = NAMES.iter().find(|(plan, _)| *plan == path).map(|(_, name)| *name);
    let path =
        known.map_or_else(|| path.replace("tunnel.settings.queue.", "tunnel."), str::to_owned);
    let path = path.replace("tunnel.settings.", "tunnel.");
    let parts = path.split('.').map(|part| {
        let part = part.strip_suffix("_bytes").unwrap_or(part);
        part.strip_suffix("_ns").unwrap_or(part)
    });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::net::{accept, bind, listen};

    use super::*;

    const CONFIG: &str = "name = 'sat'\nlan.interfaces = ['lan0']\nlink.interfaces = ['sat0']\n";

    /// Given what a daemon says that it cannot change, expect the fields of the configuration.
    #[test]
    fn fields_have_the_names_of_the_configuration() {
        for (path, name) in [
            ("tunnel.listen_port", "tunnel.listen"),
            ("tunnel.settings.symbol_size_bytes", "tunnel.symbol_size"),
            ("tunnel.settings.feedback_interval_ns", "tunnel.feedback_interval"),
            ("tunnel.settings.delivery", "tunnel.order"),
            ("tunnel.settings.queue.packet_overhead_bytes", "tunnel.packet_overhead"),
            ("tunnel.settings.memory_symbols", "tunnel.memory"),
            ("tunnel.peers", "tunnel.peers"),
            ("pep.buffer_bytes", "pep.buffer"),
            ("pep.connect_limit_ns", "pep.connect_limit"),
            ("user", "user"),
        ] {
            assert_eq!(config_name(path), name);
        }
    }

    /// Given replies of a daemon, expect bad input only where the configuration is wrong.
    #[test]
    fn a_daemon_that_cannot_change_is_no_bad_input() {
        let config = Config::parse(CONFIG, "sat.toml").expect("a configuration");
        let refused = |reply| refusal(&reply, &config, "/sat.toml", "to fix it: down, then up");
        assert_eq!(refused(Reply::Changed), None);
        let failed = refused(Reply::Failed("nft is missing".to_owned())).expect("a failure");
        assert_eq!(failed.exit_code(), 3);
        assert!(failed.to_string().starts_with("gateway sat: nft is missing; to fix it: see "));
        let other = refused(Reply::Refused("unknown field `only`".to_owned())).expect("a failure");
        assert_eq!(other.exit_code(), 3);
        let text =
            "gateway sat: its version differs: unknown field `only`; to fix it: down, then up";
        assert_eq!(other.to_string(), text);
        let fields = ["pep.buffer_bytes", "user", "user"].map(str::to_owned).to_vec();
        let differs = refused(Reply::Differs(fields)).expect("a failure");
        assert_eq!(differs.exit_code(), 2);
        let text =
            "/sat.toml: a running gateway cannot change pep.buffer, user; nothing was changed.";
        assert!(differs.to_string().starts_with(text), "{differs}");
    }

    /// Given a daemon that ends two connections before it has the plan, expect the third's reply; given none that listens,
    /// expect one message.
    #[test]
    fn a_daemon_that_did_not_wait_long_enough_is_asked_again() {
        let path = std::env::temp_dir().join(format!("bp-reload-{}", std::process::id()));
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let server = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&server, &SocketAddrUnix::new(&path).expect("a path")).expect("bound");
        listen(&server, 4).expect("it listens");
        let plan = serde_json::json!({"name": "hub"});
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                for _ in 0..2 {
                    drop(accept(&server).expect("a client"));
                }
                let client = accept(&server).expect("a client");
                let mut message = [0; 4_096];
                let (length, _) =
                    recv(&client, &mut message[..], RecvFlags::empty()).expect("a plan");
                send(&client, b"\"changed\"", SendFlags::NOSIGNAL).expect("sent");
                message[..length].to_vec()
            });
            assert_eq!(ask_daemon(&path, &plan), Ok(Reply::Changed));
            let message = served.join().expect("it ends");
            assert_eq!(message, plan.to_string().as_bytes());
        });
        drop(server);
        let error = ask_daemon(&path, &plan).expect_err("nothing listens");
        assert!(error.to_string().contains("the daemon does not answer: Connection refused"));
        std::fs::remove_file(&path).expect("it is removed");
    }
}
