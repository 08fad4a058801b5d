//! The command line, with its help and what a shell completes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};

use super::failure::called;
use super::folder::{base_folder, gateway_names};

const SUFFIX: &str = ".toml";
const COLUMNS: usize = 80;
const TEMPLATE: &str = "{usage-heading} {usage}\n\n{about-with-newline}\n{all-args}{after-help}\n";
pub(super) const CODES: &str = "Exit codes:
  0    it is done
  2    wrong arguments, a wrong configuration, or no such gateway
  3    the gateway cannot work here, is up already, or has ended by itself
  130  Ctrl-C during status --watch";
const CONFIGURATION: &str = "A configuration of a PEP, sat.toml:
    name = \"sat\"
    lan.interfaces = [\"lan0\"]   # to the hosts
    link.interfaces = [\"sat0\"]  # to the link";

/// Run the functions of a gateway on a real router.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Check whether a gateway would work here. Changes nothing.
    ///
    /// Needs root. These are the checks of `up`. Each line begins with `ok`, with `NO` for what keeps the gateway from
    /// starting, or with `-` for what is worth a change; the latter two have the command that fixes them. The exit code is 3
    /// after a `NO`. The kernel may load modules that it has.
    Check(CheckArguments),
    /// Start a gateway that runs until `down`. Processes of its own keep it.
    ///
    /// Needs root. Returns when the gateway carries traffic. It refuses to start where it would break connections, and says
    /// what to change. Connections that are open already pass unsplit.
    Up(UpArguments),
    /// End a gateway and remove its rules, also those that a killed one has left.
    ///
    /// Connections that a PEP has split are reset; new ones pass without it. The device of a tunnel is removed; packets for its
    /// networks take the router's other routes again, in clear text.
    Down(Name),
    /// Print the status of a gateway: connections of a PEP, peers of a tunnel.
    Status(StatusArguments),
    /// Print a unit for systemd that keeps a gateway, with few privileges.
    ///
    /// It has the paths of this program and of the configuration: install both first. Write it to
    /// /etc/systemd/system/bentpipe-NAME.service, and run systemctl enable --now bentpipe-NAME.
    Unit(Config),
    /// Write a private key for a tunnel to a new file, and print its public key.
    ///
    /// Only the owner of the file may read it. Write the public key into the configurations of the peers (`public_key`).
    Keygen(KeygenArguments),
    /// Read the configuration of a gateway again, and change the running one.
    ///
    /// A PEP can change which connections it leaves out: those that are open go on as they are. A tunnel can change redundancy,
    /// titration and the choice of packets, without a lost packet. Other changes are refused.
    Reload(Name),
    /// Plans of a daemon, as JSON on standard input, for programs.
    #[command(hide = true)]
    Plan {
        #[command(subcommand)]
        verb: PlanVerb,
    },
    /// A process of the daemon.
    #[command(hide = true)]
    Worker,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Config {
    /// The configuration of the gateway (TOML).
    #[arg(value_name = "CONFIG", add = ArgValueCompleter::new(complete_configs))]
    pub(super) config: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Name {
    /// The name of the gateway, or its configuration; by default the only one that is up.
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete_names))]
    pub(super) name: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    pub(super) config: Config,
    /// Print JSON on stdout.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct UpArguments {
    #[command(flatten)]
    pub(super) config: Config,
    /// Stay in the foreground until SIGTERM or Ctrl-C, and log on stderr, as services do.
    #[arg(long)]
    pub(super) foreground: bool,
}

#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    pub(super) name: Name,
    /// Print JSON on stdout.
    #[arg(long)]
    pub(super) json: bool,
    /// Show the status and the present rates until the gateway ends, or Ctrl-C: twice a second on a terminal, else
    /// every 10 s.
    #[arg(long)]
    pub(super) watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct KeygenArguments {
    /// The file for the private key; it must not exist.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) file: PathBuf,
    /// Print JSON on stdout.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum PlanVerb {
    /// Run a daemon.
    Run {
        /// In a session of its own.
        #[arg(long)]
        background: bool,
    },
    /// Open what a daemon opens, and end.
    Check,
    /// Remove what a daemon has left that was killed.
    Remove,
    /// Print the plan of a configuration, or its mistakes, as JSON.
    Read(Config),
    /// Print public keys whose private keys nobody has, a line for each name.
    Placeholders {
        /// The names of peers.
        names: Vec<String>,
    },
}

/// The command line, with the name by which the user has called the program.
pub(super) fn command() -> clap::Command {
    let name = called();
    let help = |lines: &[&str]| {
        let heading = if lines.len() > 1 { "Examples:" } else { "Example:" };
        let lines = lines.iter().map(|line| format!("\n    {name} {line}"));
        format!("  {heading}{}", lines.collect::<String>())
    };
    let mut command = Arguments::command()
        .name(super::failure::PROGRAM)
        .bin_name(name)
        .about("Run the functions of a gateway on a real router.")
        .max_term_width(COLUMNS)
        .help_template(TEMPLATE)
        .after_help(format!(
            "{CODES}\n\n{CONFIGURATION}\n\n{}",
            help(&["up sat.toml", "status", "down"])
        ));
    for (verb, lines) in [
        ("check", &["check sat.toml"][..]),
        ("up", &["up sat.toml", "up sat.toml --foreground"]),
        ("down", &["down", "down sat"]),
        ("status", &["status", "status sat --watch"]),
        ("unit", &["unit /etc/bentpipe/sat.toml > bentpipe-sat.service"]),
        ("keygen", &["keygen /etc/bentpipe/key"]),
        ("reload", &["reload", "reload sat"]),
    ] {
        command =
            command.mut_subcommand(verb, |it| it.help_template(TEMPLATE).after_help(help(lines)));
    }
    command
}

/// The arguments of this process.
pub(super) fn parse() -> Result<Arguments, clap::Error> {
    Arguments::from_arg_matches(&command().try_get_matches()?)
}

/// The names of the verbs that the help shows.
pub(super) fn verbs() -> Vec<String> {
    let command = command();
    let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    shown.map(|verb| verb.get_name().to_owned()).collect()
}

fn complete_names() -> Vec<CompletionCandidate> {
    gateway_names(&base_folder()).into_iter().map(CompletionCandidate::new).collect()
}

/// The configuration files and folders that a text may become.
fn complete_configs(text: &OsStr) -> Vec<CompletionCandidate> {
    let text = text.to_string_lossy();
    let (folder, begin) = text.rfind('/').map_or(("", &*text), |slash| text.split_at(slash + 1));
    let place = if folder.is_empty() { Path::new(".") } else { Path::new(folder) };
    let mut found = Vec::new();
    for entry in place.read_dir().into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(begin) || (name.starts_with('.') && begin.is_empty()) {
            continue;
        }
        if entry.path().is_dir() {
            found.push(format!("{folder}{name}/"));
        } else if name.ends_with(SUFFIX) {
            found.push(format!("{folder}{name}"));
        }
    }
    found.sort();
    found.into_iter().map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
        let names = ["check", "up", "down", "status", "unit", "keygen", "reload"];
        assert_eq!(verbs(), names);
        for name in names {
            let mut command = command();
            let help = command.find_subcommand_mut(name).expect("a verb").render_long_help();
            assert!(help.to_string().contains(&format!("bentpipe-gate {name}")), "{help}");
        }
    }

    /// Given files and folders, expect configurations and folders, and hidden ones only if their dot is written.
    #[test]
    fn configurations_and_folders_are_completed() {
        let folder = std::env::temp_dir().join(format!("bp-complete-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sub")).expect("a folder");
        for name in ["sat.toml", "sat.yaml", ".hidden.toml"] {
            std::fs::write(folder.join(name), "").expect("a file");
        }
        let complete = |begin: &str| {
            let text = format!("{}/{begin}", folder.display());
            let found = complete_configs(OsStr::new(&text)).into_iter();
            let names = found.map(|it| it.get_value().to_string_lossy().into_owned());
            names.map(|name| name.replace(&*folder.to_string_lossy(), "")).collect::<Vec<_>>()
        };
        assert_eq!(complete("s"), ["/sat.toml", "/sub/"]);
        assert_eq!(complete("."), ["/.hidden.toml"]);
        assert_eq!(complete(""), ["/sat.toml", "/sub/"]);
        std::fs::remove_dir_all(folder).expect("it is removed");
    }
}
