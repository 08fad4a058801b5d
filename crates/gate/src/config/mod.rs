//! The configuration of a gateway (TOML), with the names and the units of a scenario, and the plan of the daemon that it
//! becomes.
//!
//! All mistakes in a file are reported at once, each with the path of its field, what was read and what is allowed.

mod coding;
mod description;
mod fields;
mod kernel_tcp;
mod pep;
pub(crate) mod quantity;
mod reader;
mod tunnel;
pub(crate) mod wording;

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

pub(crate) use self::description::{Description, Ports, SelectionText};
use self::fields::{User, interface, loopback, name, user};
use self::pep::{Pep, Selection};
use self::reader::{Fields, Mistakes, integer, word};
pub(crate) use self::tunnel::{Peer, Tunnel};
use self::wording::{counted, nearest, reason, shown_text};
use crate::daemon::{PepPlan, Plan, SidePlan, TABLE_PREFIX};
use crate::transparent::marks;

pub use self::fields::placeholder_key;
pub use self::reader::{Problem, Problems};

pub(crate) const FIELDS: [&str; 10] =
    ["name", "functions", "lan", "link", "pep", "tunnel", "metrics", "user", "mark", "route_table"];
const FUNCTIONS: [&str; 2] = ["pep", "tunnel"];
/// Far more than a person writes.
const BYTES_MAX: usize = 256 * 1024;
const CONTENT: &str = "the configuration of a gateway (TOML)";
/// Of a folder; more take seconds to compare.
const FILES_MAX: usize = 10_000;
/// The daemon hands over its sockets in one message.
const INTERFACES_MAX: usize = 25;
const THREADS_MAX: usize = 4;
/// Marks and tables up to 255 are common in hand-written rules, and docker, cilium, tailscale and wg-quick use others than
/// these. The mark is a multiple of 128, for up to 64 workers.
const MARK: u32 = 25_088;
const ROUTE_TABLE: u32 = 25_113;
const MARK_MAX: i64 = u32::MAX as i64 - 255;

/// Where the daemon of a gateway has its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The counters.
    pub state: PathBuf,
    /// The socket for a reload.
    pub control: PathBuf,
    /// Those that are removed when a signal has ended the daemon.
    pub others: Vec<PathBuf>,
}

/// A gateway on a real router.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name.
    pub name: String,
    functions: Vec<&'static str>,
    lan: Vec<String>,
    link: Vec<String>,
    pep: Pep,
    pub(crate) tunnel: Option<Tunnel>,
    metrics: Option<String>,
    user: User,
    mark: u32,
    route_table: u32,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is not TOML, or is no configuration.
    pub fn read(path: &Path) -> Result<Self, Problems> {
        Self::parse(&text_of(path)?, &path.to_string_lossy())
    }

    /// Reads the text of a file; `source` is its name in messages.
    ///
    /// # Errors
    /// It is not TOML, or is no configuration.
    pub fn parse(text: &str, source: &str) -> Result<Self, Problems> {
        let table = table_of(text, source)?;
        if table.is_empty() {
            return Err(Problems::of_file(source, format!("is empty; expected {CONTENT}"), None));
        }
        let mistakes = Mistakes::default();
        let fields = Fields::new(&table, String::new(), &mistakes, &FIELDS);
        let config = Self::of(&fields);
        if let Some(config) = config.as_ref().filter(|_| fields.are_right()) {
            config.check(&fields);
        }
        if let Some(config) = config.as_ref().filter(|_| fields.are_right()) {
            for (field, text) in config.pep.refused() {
                fields.refuse(&format!("pep.{field}"), text);
            }
        }
        let coding = config.as_ref().and_then(|config| config.tunnel.as_ref());
        if fields.are_right()
            && let Some(text) = coding.and_then(|tunnel| tunnel.coding.wrong_redundancy())
        {
            fields.refuse("tunnel.redundancy", text);
        }
        drop(fields);
        mistakes.into_problems(source)?;
        config.ok_or_else(|| Problems::of_file(source, format!("is not {CONTENT}"), None))
    }

    fn of(fields: &Fields<'_>) -> Option<Self> {
        let name = fields.required("name", name);
        let functions = fields
            .list("functions", 1, usize::MAX, word(&FUNCTIONS))
            .unwrap_or_else(|| vec!["pep"]);
        let side = |name| {
            let table = fields.table(name, &["interfaces"])?;
            table.required_list("interfaces", interface)
        };
        let (lan, link) = (side("lan"), side("link"));
        let pep = fields.table("pep", &pep::FIELDS).as_ref().map(Pep::read).unwrap_or_default();
        let tunnel = fields.table("tunnel", &tunnel::FIELDS).as_ref().and_then(Tunnel::read);
        let metrics = fields
            .table("metrics", &["listen"])
            .and_then(|table| table.required("listen", loopback));
        let nobody = || user(&Value::from("nobody"));
        let user = fields.read("user", user).or_else(|| {
            let missing = |message| fields.refuse("user", message);
            if fields.has("user") { None } else { nobody().map_err(missing).ok() }
        });
        let mark = fields.read("mark", integer(2, MARK_MAX));
        let route_table = fields.read("route_table", integer(256, u32::MAX.into()));
        Some(Self {
            name: name?,
            functions,
            lan: lan.unwrap_or_default(),
            link: link.unwrap_or_default(),
            pep,
            tunnel,
            metrics,
            user: user?,
            mark: mark.map_or(MARK, |mark| mark as u32),
            route_table: route_table.map_or(ROUTE_TABLE, |table| table as u32),
        })
    }

    /// What single fields leave open; the first mistake is refused.
    fn check(&self, fields: &Fields<'_>) {
        if let Err(message) = self.check_functions(fields).and_then(|()| self.check_pep()) {
            fields.refuse_whole(message);
        }
    }

    fn check_functions(&self, fields: &Fields<'_>) -> Result<(), String> {
        for function in FUNCTIONS {
            let count = self.functions.iter().filter(|name| **name == function).count();
            if count > 1 {
                return Err(format!("read {function} twice in functions; each is allowed once"));
            }
            if count == 0 && fields.has(function) {
                return Err(format!("read settings of {function}, which is not in functions"));
            }
        }
        if self.functions.contains(&"tunnel") && self.tunnel.is_none() {
            return Err("read tunnel in functions and no [tunnel]; it has no defaults".to_owned());
        }
        for side in ["lan", "link"] {
            match (self.has_pep(), fields.has(side)) {
                (true, false) => {
                    return Err(format!(
                        "read pep in functions and no [{side}]; name its interfaces"
                    ));
                }
                (false, true) => {
                    return Err(format!(
                        "read [{side}] without pep in functions; only a PEP has sides"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_pep(&self) -> Result<(), String> {
        let listed: Vec<_> = self.interfaces().collect();
        let is_twice = |name: &&&str| listed.iter().filter(|other| other == name).count() > 1;
        if let Some(name) = listed.iter().find(is_twice) {
            return Err(format!("read the interface \"{name}\" twice; each is on one side"));
        }
        if listed.len() > INTERFACES_MAX {
            let count = listed.len();
            return Err(format!("read {count} interfaces; at most {INTERFACES_MAX} are allowed"));
        }
        let multiple = marks(self.pep.workers);
        if !self.mark.is_multiple_of(multiple) {
            return Err(format!(
                "read mark {}; must be a multiple of {multiple} for {}, which use the marks up to the next \
                 one, and two more",
                self.mark,
                counted(self.pep.workers as u64, "worker")
            ));
        }
        Ok(())
    }

    fn has_pep(&self) -> bool {
        self.functions.contains(&"pep")
    }

    /// The functions, in the order of the file.
    pub(crate) fn functions(&self) -> &[&'static str] {
        &self.functions
    }

    /// The interfaces of the PEP, on both sides.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.lan.iter().chain(&self.link).map(String::as_str)
    }

    /// Those by which connections are left out or selected.
    pub(crate) fn selecting_interfaces(&self) -> impl Iterator<Item = &str> {
        let lists = [&self.pep.except, &self.pep.only].into_iter().flatten();
        lists.flat_map(|selection| &selection.interfaces).map(String::as_str)
    }

    /// Those on the sides of the hosts and of the link.
    pub(crate) fn sides(&self) -> (&[String], &[String]) {
        (&self.lan, &self.link)
    }

    /// Whether the number of threads is written.
    pub(crate) fn has_threads(&self) -> bool {
        self.pep.threads.is_some()
    }

    /// What its status says of it, which outlives the file.
    pub(crate) fn description(&self) -> Description {
        let described = |selection: &Option<Selection>| {
            selection.as_ref().map(|selection| SelectionText {
                networks: selection.networks.iter().map(ToString::to_string).collect(),
                ports: selection.ports.iter().map(Ports::of).collect(),
                interfaces: selection.interfaces.clone(),
            })
        };
        let has_pep = self.has_pep();
        let tunnel = self.tunnel.as_ref();
        Description {
            name: self.name.clone(),
            functions: self.functions.iter().map(|name| (*name).to_owned()).collect(),
            lan: has_pep.then(|| self.lan.clone()),
            link: has_pep.then(|| self.link.clone()),
            connections: has_pep.then_some(self.pep.connections as u64),
            except: described(&self.pep.except).filter(|_| has_pep),
            only: described(&self.pep.only).filter(|_| has_pep),
            device: tunnel.map(|tunnel| tunnel.device.clone()),
            peers: tunnel.map(|t| t.peers.iter().map(|peer| peer.name.clone()).collect()),
        }
    }

    /// The plan of the daemon; `path` is the file of the configuration.
    #[must_use]
    pub fn plan(&self, path: &Path, files: &Files) -> Plan {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        Plan {
            name: format!("{TABLE_PREFIX}{}", self.name),
            state_file: text(&files.state),
            control_file: text(&files.control),
            files: files.others.iter().map(|file| text(file)).collect(),
            user: self.user.user,
            group: self.user.group,
            metrics_listen: self.metrics.clone(),
            pep: self.has_pep().then(|| self.pep_plan()),
            tunnel: self.tunnel.as_ref().map(|tunnel| tunnel.plan(folder)),
        }
    }

    fn pep_plan(&self) -> PepPlan {
        let pep = &self.pep;
        let connections = |selection: &Option<Selection>| {
            selection.as_ref().map(Selection::connections).unwrap_or_default()
        };
        let not_sent = pep.notsent_lowat.as_ref().and_then(|size| u32::try_from(size.value).ok());
        let side = |interfaces: &Vec<String>, tcp: &kernel_tcp::Tcp| SidePlan {
            interfaces: interfaces.clone(),
            tcp: tcp.leg(not_sent),
        };
        PepPlan {
            mark: self.mark,
            route_table: self.route_table,
            workers: pep.workers,
            threads: pep.threads.unwrap_or_else(|| {
                std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS_MAX))
            }),
            connections: pep.connections,
            buffer_bytes: usize::try_from(pep.buffer).unwrap_or(usize::MAX),
            early_accept: pep.early_accept,
            connect_limit_ns: pep.connect_limit,
            idle_limit_ns: Some(pep.idle_limit).filter(|limit| *limit > 0),
            keep_alive_ns: Some(pep.keep_alive).filter(|interval| *interval > 0),
            except: connections(&pep.except),
            only: connections(&pep.only),
            lan: side(&self.lan, &pep.lan_tcp),
            link: side(&self.link, &pep.link_tcp),
        }
    }
}

/// Reads TOML; a message has the line.
fn table_of(text: &str, source: &str) -> Result<Table, Problems> {
    text.parse().map_err(|error: toml::de::Error| {
        let message = error.message().trim_end_matches('\n').replace('\n', ": ");
        let line = error.span().map(|span| {
            let before = text.as_bytes().get(..span.start.min(text.len())).unwrap_or_default();
            before.iter().filter(|byte| **byte == b'\n').count() + 1
        });
        if message.contains("recursion") || message.contains("nest") {
            return Problems::of_file(source, "is nested too deeply", None);
        }
        // Of an integer that no type has.
        if message.contains("as i128") {
            return Problems::of_file(source, "has an integer beyond 64 bits", line);
        }
        let message = match error.span().and_then(|span| text.get(span)) {
            Some(key) if message == "duplicate key" => {
                format!("{message} {}; remove one", shown_text(key))
            }
            _ => message,
        };
        Problems::of_file(source, format!("TOML syntax: {message}"), line)
    })
}

/// The text of a file of a bounded size.
fn text_of(path: &Path) -> Result<String, Problems> {
    let source = path.to_string_lossy();
    let refused = |message: String| Problems::of_file(&source, message, None);
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    match read.map_err(|error| (error.kind(), error)) {
        Err((ErrorKind::NotFound, _)) => {
            let near = nearest_path(path)
                .map_or_else(String::new, |near| format!("; did you mean \"{}\"?", near.display()));
            return Err(refused(format!("no such file{near}")));
        }
        Err((ErrorKind::IsADirectory, _)) => {
            return Err(refused("is a directory; name a file".to_owned()));
        }
        Err((_, error)) => {
            let fix =
                if error.kind() == ErrorKind::PermissionDenied { "; run it as root" } else { "" };
            return Err(refused(format!("cannot be read: {}{fix}", reason(&error))));
        }
        Ok(_) => {}
    }
    if bytes.len() > BYTES_MAX {
        return Err(refused(format!("is larger than {BYTES_MAX} bytes; expected {CONTENT}")));
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| refused(format!("is not a text file; expected {CONTENT} in UTF-8")))
}

/// The existing path whose parts are spelt most like those of a missing one, if any.
fn nearest_path(path: &Path) -> Option<PathBuf> {
    let mut existing = PathBuf::new();
    for part in path.components() {
        let next = existing.join(part);
        if next.symlink_metadata().is_ok() {
            existing = next;
            continue;
        }
        let folder = if existing.as_os_str().is_empty() { Path::new(".") } else { &existing };
        let missing = Path::new(part.as_os_str());
        let files = folder.read_dir().ok()?.take(FILES_MAX).filter_map(Result::ok);
        let mut names: Vec<_> = files.map(|file| PathBuf::from(file.file_name())).collect();
        // Of two files with one stem, the one with the suffix is first.
        names.sort_by_key(|name| name.extension() != missing.extension());
        let stem = |name: &Path| Some(name.file_stem()?.to_string_lossy().into_owned());
        let stems: Vec<_> =
            names.iter().filter_map(|n| stem(n)).filter(|stem| !stem.starts_with('.')).collect();
        let near = nearest(&stem(missing)?, &stems)?;
        let name = names.iter().find(|name| stem(name).as_deref() == Some(near))?;
        existing = existing.join(name);
    }
    existing.exists().then_some(existing)
}

#[cfg(test)]
mod tests;
