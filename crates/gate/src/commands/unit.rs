//! The unit of a gateway for systemd.

use std::fmt::Write as _;
use std::path::Path;

use super::failure::{Done, Failure};
use super::stop::closed_networks;
use crate::config::Config;
use crate::daemon::{PepPlan, Plan};

const UNIT: &str = include_str!("gateway.service");
/// `PrivateDevices=` would hide it.
const TUN_DEVICE: &str = "DevicePolicy=closed\nDeviceAllow=/dev/net/tun rw\n";
const TUN_MODULE: &str = " modprobe@tun.service";

/// The text of the unit; `path` is the file of the configuration, and `program` this one.
///
/// # Errors
/// A path cannot be written into a unit.
pub(super) fn text(config: &Config, plan: &Plan, path: &Path, program: &Path) -> Done<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (program, file) = (quoted(program)?, quoted(&absolute)?);
    let has_tunnel = plan.tunnel.is_some();
    let module = if has_tunnel { TUN_MODULE } else { "" };
    let closed = closed_networks(&serde_json::to_value(plan).unwrap_or_default());
    let after_kill = if closed.is_empty() {
        format!(
            "# After it was killed, so that no rule is left. Otherwise nothing is left, and this fails.\n\
             ExecStopPost=-{program} down {file}\n"
        )
    } else {
        format!(
            "# After it was killed, packets for its tunnel are refused until it is up again, or until\n\
             # {program} down, which needs the files of this folder.\nRuntimeDirectoryPreserve=yes\n"
        )
    };
    let mut limits = String::new();
    if let Some(pep) = &plan.pep {
        // The limit of each process: enough for one worker with all connections.
        let files = PepPlan { workers: 1, ..pep.clone() }.descriptors();
        let _ = writeln!(limits, "LimitNOFILE={files}");
    }
    let devices = if has_tunnel { TUN_DEVICE } else { "PrivateDevices=yes\n" };
    let functions = config.functions().join(", ");
    let mut unit = UNIT.to_owned();
    for (field, text) in [
        ("{name}", config.name.as_str()),
        ("{functions}", &functions),
        ("{after}", module),
        ("{wants}", module),
        ("{reload}", &format!("ExecReload={program} reload {file}\n")),
        ("{after_kill}", &after_kill),
        ("{limits}", &limits),
        ("{devices}", devices),
        // Those that may have braces are last.
        ("{program}", &program),
        ("{config}", &file),
    ] {
        unit = unit.replace(field, text);
    }
    Ok(unit)
}

/// A path as a word of a command line in a unit (systemd.service(5)).
fn quoted(path: &Path) -> Done<String> {
    let text = path.to_string_lossy();
    if path.to_str().is_none() || text.chars().any(|it| it.is_control() || it == '"' || it == '\\')
    {
        let text = text.escape_debug();
        return Err(Failure::Input(format!(
            "{text}: a unit cannot name such a path; move the file"
        )));
    }
    let text = text.replace('%', "%%").replace('$', "$$");
    Ok(if text.contains(' ') { format!("\"{text}\"") } else { text })
}
