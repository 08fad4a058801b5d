//! The commands of an operator: `up`, `down`, `status`, `check`, `reload`, `keygen` and `unit`.

mod arguments;
mod checks;
mod deadline;
mod failure;
mod folder;
mod machine;
mod plans;
mod processes;
mod reload;
mod screen;
mod start;
mod status;
mod stop;
mod unit;

use std::io::ErrorKind;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

use bentpipe_sys::clock::Clock;
use clap::error::{ContextKind, ContextValue, ErrorKind as ArgumentError};
use clap_complete::CompleteEnv;
use rustix::process::geteuid;
use serde_json::{Value, json};

use self::arguments::{
    CheckArguments, KeygenArguments, StatusArguments, UpArguments, Verb, command, parse, verbs,
};
use self::checks::{Check, Options, examine, summary};
use self::failure::{Done, FIX, called, note, note_name, print, print_json};
use self::folder::{GatewayFolder, Record, base_folder, gateway_names};
use self::machine::{Host, Machine};
use self::start::{Starting, first_counters};
use self::status::{Rates, Status, now_unix_s, totals_lines};
use self::stop::closed_networks;
use crate::config::Config;
use crate::config::wording::choice;
use crate::daemon::Plan;
use crate::tunnel::{OsRandom, keygen};

pub use self::failure::Failure;

const SUFFIX: &str = ".toml";
/// Those that are no commands of a user.
const OF_PROGRAMS: [&str; 2] = ["worker", "plan"];
const NO_VALUE: &str = "has no value; write one (an unset variable is empty), or leave it out";

/// Runs the command of this process.
#[must_use]
pub fn run() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().take(2).collect();
    let word = |place: usize| arguments.get(place).and_then(|word| word.to_str());
    note_name(word(0).unwrap_or_default());
    if word(1).is_none_or(|verb| !OF_PROGRAMS.contains(&verb)) {
        CompleteEnv::with_factory(command).complete();
    }
    let verb = match parse() {
        Ok(arguments) => arguments.verb,
        Err(error) => return refuse(&error),
    };
    let done = match verb {
        Verb::Plan { verb } => return plans::run(verb),
        Verb::Worker => return plans::worker(),
        Verb::Check(arguments) => check(&arguments),
        Verb::Up(arguments) => up(&arguments),
        Verb::Down(name) => down(name.name.as_deref()),
        Verb::Status(arguments) => status(&arguments),
        Verb::Unit(config) => print_unit(&config.config),
        Verb::Keygen(arguments) => make_key(&arguments),
        Verb::Reload(name) => reload(name.name.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in failure.to_string().lines() {
                note(line);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Prints what is wrong with the arguments, or the help that was asked for.
fn refuse(error: &clap::Error) -> ExitCode {
    if let (ArgumentError::InvalidSubcommand, Some(ContextValue::String(read))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    {
        let read = toml::Value::from(read.as_str());
        note(&format!("command: {}", choice(&read, &verbs())));
        return ExitCode::from(2);
    }
    if error.use_stderr() && error.kind() != ArgumentError::DisplayHelpOnMissingArgumentOrSubcommand
    {
        note(error.render().to_string().trim_start_matches("error: ").trim_end());
        return ExitCode::from(2);
    }
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// A configuration and its plan.
fn read(path: &Path) -> Done<(Config, Plan)> {
    if path.as_os_str().is_empty() {
        return Err(Failure::Input(format!("CONFIG: {NO_VALUE}")));
    }
    let config = Config::read(path)?;
    let plan = config.plan(path, &GatewayFolder::new(&config.name).files());
    Ok((config, plan))
}

fn check(CheckArguments { config: path, json }: &CheckArguments) -> Done {
    let (config, plan) = read(&path.config)?;
    let folder = GatewayFolder::new(&config.name);
    let is_up = folder.is_up();
    let checks = examine(&Host, &config, &plan, Options { has_own: folder.exists(), is_up })?;
    if is_up {
        note(&format!("gateway {} is up; its rules conflict with no others", config.name));
    }
    let ok = checks.iter().all(Check::passes);
    if *json {
        print_json(&json!({"ok": ok, "checks": checks, "plan": plan}));
    } else {
        screen::print_checks(&checks);
    }
    if ok {
        return Ok(());
    }
    let (name, found) = (&config.name, summary(&checks));
    Err(Failure::Machine(format!("gateway {name} would not work here: {found}")))
}

fn up(UpArguments { config: path, foreground }: &UpArguments) -> Done {
    let path = &path.config;
    let (config, plan) = read(path)?;
    let folder = GatewayFolder::new(&config.name);
    let (name, text) = (&config.name, config.description().action());
    let starting = Starting { config: &config, plan: &plan, path, folder: &folder };
    if *foreground {
        note(&format!("gateway {name} {text}; press Ctrl-C to end it"));
        return Err(starting.become_daemon());
    }
    let process = starting.start()?;
    note(&format!("gateway {name} is up, kept by process {process}: it {text}"));
    if let Some(said) = folder.last_line() {
        note(&said);
    }
    let called = called();
    note(&format!("{called} status {name} shows what it does, {called} down {name} ends it"));
    Ok(())
}

fn down(name: Option<&str>) -> Done {
    let chosen = chosen(name)?;
    let counters = stop::stop(&GatewayFolder::new(&chosen))?;
    for line in counters.iter().flat_map(totals_lines) {
        note(&line);
    }
    note(&format!("gateway {chosen} has ended; nothing of it is left"));
    Ok(())
}

fn status(StatusArguments { name, json, watch }: &StatusArguments) -> Done {
    let chosen = chosen(name.name.as_deref())?;
    if !watch {
        let (status, record, processes) = status_of(&chosen)?;
        if *json {
            print_json(&status_json(&status, record, &processes));
        } else {
            print(&status.lines(now_unix_s()).join("\n"));
        }
        return Ok(());
    }
    if *json {
        let text = "--json: not with --watch; run status --json repeatedly";
        return Err(Failure::Input(text.to_owned()));
    }
    let (mut rates, clock) = (Rates::default(), Clock::start());
    screen::watch(|| {
        let (status, ..) = status_of(&chosen)?;
        let rates = rates.lines(&status.counters, clock.now().as_nanos() as f64 / 1e9);
        Ok([status.lines(now_unix_s()), rates].concat())
    })?;
    note(&format!("gateway {chosen} has ended"));
    Ok(())
}

/// The status of a gateway, its record and its processes.
///
/// # Errors
/// It has ended without `down`.
fn status_of(name: &str) -> Done<(Status, Record, Vec<i32>)> {
    let folder = GatewayFolder::new(name);
    // One that is being started has no record or counters yet.
    let counters = if folder.is_up() { first_counters(&folder, || !folder.is_up())? } else { None };
    let record = folder.record();
    if let (Some(counters), Some(record)) = (counters, record.clone()) {
        let described = serde_json::from_value(record.described.clone()).unwrap_or_default();
        let started_unix_s = record.started_unix_s;
        return Ok((Status { described, started_unix_s, counters }, record, folder.processes()));
    }
    let is_closed = record.is_some_and(|record| !closed_networks(&record.plan).is_empty());
    let effect = if is_closed {
        "packets for the networks of its tunnel are refused"
    } else {
        "connections pass without it"
    };
    let (ended, called) = (end_text(name), called());
    Err(Failure::Machine(format!(
        "{ended}; {effect}{FIX}{called} down {name} removes what is left, {called} up starts it again"
    )))
}

fn status_json(status: &Status, record: Record, processes: &[i32]) -> Value {
    let mut data = record.described;
    if let Some(fields) = data.as_object_mut() {
        fields.insert("config".to_owned(), record.config.into());
        fields.insert("processes".to_owned(), processes.into());
        fields.insert("started_unix_s".to_owned(), record.started_unix_s.into());
        fields.insert("counters".to_owned(), status.counters.clone());
    }
    data
}

fn print_unit(path: &Path) -> Done {
    let (config, plan) = read(path)?;
    let text = unit::text(&config, &plan, path, &Host.daemon()?)?;
    print(text.trim_end());
    Ok(())
}

fn make_key(KeygenArguments { file, json }: &KeygenArguments) -> Done {
    let public = keygen(file, &mut OsRandom::new()).map_err(|error| {
        let (why, fix) = match error.kind() {
            ErrorKind::AlreadyExists => {
                ("it exists, and is never overwritten".to_owned(), "another name, or remove it")
            }
            _ => (error.to_string(), "a file in a folder that exists and can be written"),
        };
        Failure::Input(format!("{}: {why}{FIX}{fix}", file.display()))
    })?;
    if *json {
        print_json(&json!({"private_key": file, "public_key": public.to_string()}));
    } else {
        print(&public.to_string());
    }
    Ok(())
}

fn reload(name: Option<&str>) -> Done {
    let chosen = chosen(name)?;
    let record = GatewayFolder::new(&chosen).record();
    let record = record.ok_or_else(|| Failure::Machine(end_text(&chosen)))?;
    let path = PathBuf::from(&record.config);
    let real = |path: &Path| path.canonicalize().or_else(|_| absolute(path)).ok();
    if let Some(name) = name.filter(|name| *name != chosen && real(Path::new(name)) != real(&path))
    {
        return Err(Failure::Input(format!(
            "{name}: gateway {chosen} has {}{FIX}change that file, or {} down {chosen}, then up",
            record.config,
            called()
        )));
    }
    let (config, plan) = read(&path)?;
    if config.name != chosen {
        let read = format!("{}: name: read {}", record.config, config.name);
        return Err(Failure::Input(format!("{read}; the gateway is {chosen}")));
    }
    reload::reload(&config, &plan)?;
    note(&format!("gateway {chosen} has the settings of {}", record.config));
    Ok(())
}

/// The name of a gateway that was started and not ended.
///
/// Without a name it is the only one that is up, or else the only one of which something is left; a note names the others of
/// which something is left.
///
/// # Errors
/// There is none, or none of that name, or several without a name.
fn chosen(name: Option<&str>) -> Done<String> {
    let names = gateway_names(&base_folder());
    let name = match name {
        Some("") => return Err(Failure::Input(format!("NAME: {NO_VALUE}"))),
        Some(path) if path.ends_with(SUFFIX) || path.contains('/') => {
            Some(Config::read(Path::new(path))?.name)
        }
        name => name.map(str::to_owned),
    };
    if names.is_empty() {
        // Their folder is private.
        let others = if geteuid().is_root() { "" } else { "; to see those of root, use sudo" };
        let called = called();
        return Err(Failure::Input(format!(
            "no gateway is up; start one with {called} up CONFIG{others}"
        )));
    }
    match name {
        None => {
            for line in notes_on_ended(&names) {
                note(&line);
            }
            only(&names)
        }
        Some(name) if names.contains(&name) => Ok(name),
        Some(name) => {
            let read = toml::Value::from(name);
            Err(Failure::Input(format!("gateway: {}", choice(&read, &names))))
        }
    }
}

/// What is said of the gateways that have ended without `down` if there are others.
fn notes_on_ended(names: &[String]) -> Vec<String> {
    let ended = names.iter().filter(|name| names.len() > 1 && !GatewayFolder::new(name).is_up());
    let text = |name| format!("{}; {} down {name} removes what is left", end_text(name), called());
    ended.map(|name| text(name)).collect()
}

fn only(names: &[String]) -> Done<String> {
    let (up, ended): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| GatewayFolder::new(name).is_up());
    let (candidates, how_many) =
        if up.is_empty() { (ended, "none is up") } else { (up, "several are up") };
    if let [only] = candidates[..] {
        return Ok(only.clone());
    }
    let names: Vec<_> = candidates.iter().map(|name| name.as_str()).collect();
    Err(Failure::Input(format!("gateway: {how_many}; name one of {}", names.join(", "))))
}

/// Why a gateway is not up that was not ended by `down`.
fn end_text(name: &str) -> String {
    format!("gateway {name} has ended: {}", GatewayFolder::new(name).why_ended())
}

#[cfg(test)]
mod man_page;
#[cfg(test)]
mod tests;
