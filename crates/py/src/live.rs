//! Labs for Python.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, IntoRawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bentpipe_core::packet::Address;
use bentpipe_core::time::{Duration, Instant};
use bentpipe_core::trace::DropCause;
use bentpipe_live::LabError;
use bentpipe_live::addresses::ipv4;
use bentpipe_live::changes::LinkChange;
use bentpipe_live::emulator::Function;
use bentpipe_live::lab::{self, Config, Report};
use bentpipe_live::measure::OfferedLoad;
use bentpipe_live::ports::SideTraffic;
use bentpipe_live::verdict::{Fault, Window};
use bentpipe_live::{channels, measure, serve, uplink};
use bentpipe_sim::Side;
use bentpipe_sys::diag::Connection;
use bentpipe_sys::netns::{self, Namespace};
use bentpipe_sys::program::{self, Invocation};
use bentpipe_sys::shared_pid_namespace::{self, NamespaceFds};
use bentpipe_sys::{SystemError, sysctl, user_namespace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};

use crate::{MachineError, ProgramError, parse, plan_error, value_error};

/// A lab: a world and an island with a link between them. It ends with the object or the process.
#[pyclass(frozen)]
pub(crate) struct Lab(lab::Lab);

#[pymethods]
impl Lab {
    /// Brings a lab up. `plans` are the hops from the world to the island, as JSON; `settings` the
    /// sysctls of the world and of the island, `host_settings` those of single hosts; the first
    /// TCP connection to each of `control_ports` bypasses the link; the others as in `Config`.
    #[new]
    #[pyo3(signature = (
        plans, seed, *, mtu = 1_500, settings = None, control_ports = None, capture = None,
        super_packets = false, gateways = false, host_settings = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        plans: Vec<String>,
        seed: u64,
        mtu: u16,
        settings: Option<[Vec<(String, String)>; 2]>,
        control_ports: Option<(u16, u16)>,
        capture: Option<PathBuf>,
        super_packets: bool,
        gateways: bool,
        host_settings: Option<BTreeMap<String, Vec<(String, String)>>>,
    ) -> PyResult<Self> {
        let plans = plans.iter().map(|plan| parse(plan)).collect::<PyResult<_>>()?;
        let (settings, host_settings) =
            (settings.unwrap_or_default(), host_settings.unwrap_or_default());
        let capture = capture.map(File::create_new).transpose()?.map(Arc::new);
        let common =
            Config { seed, mtu, settings, host_settings, control_ports, ..Config::of(plans) };
        let config = Config { capture, super_packets, gateways, ..common };
        py.detach(|| lab::Lab::up(config)).map(Self).map_err(raise)
    }

    /// Moves packets until `stop` is called. Other Python threads run meanwhile.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.run()).map_err(raise)
    }

    /// Ends `run`.
    fn stop(&self) {
        self.0.stop();
    }

    /// The names of the hosts, by address.
    fn hosts(&self) -> Vec<&str> {
        self.0.hosts().iter().map(|host| host.name.as_str()).collect()
    }

    /// Starts a program on a host and returns its PID. `output` is a file descriptor for standard
    /// output and standard error; with it, input is /dev/null, and Ctrl-C does not reach it.
    #[pyo3(signature = (host, arguments, *, environment = Vec::new(), output = None))]
    fn spawn(
        &self,
        py: Python<'_>,
        host: &str,
        arguments: Vec<String>,
        environment: Vec<(String, String)>,
        output: Option<i32>,
    ) -> PyResult<i32> {
        let namespace = Arc::clone(self.0.namespace(self.address_of(host)?));
        let output = output.map(program::duplicate).transpose()?;
        let invocation = Invocation { arguments, environment, output };
        py.detach(|| program::spawn(&namespace, invocation)).map_err(raise)
    }

    /// Serves HTTP on port 80 of a host: `/bytes/N` is N bytes.
    fn serve(&self, host: &str) -> PyResult<()> {
        serve::start(self.0.namespace(self.address_of(host)?)).map_err(raise)
    }

    /// Opens the servers of a plan's channels, given by their settings as JSON.
    fn start_channels(
        &self,
        py: Python<'_>,
        plan: &str,
        seed: u64,
        settings: &str,
    ) -> PyResult<Channels> {
        let (plan, all) = (parse(plan)?, serde_json::from_str(settings).map_err(value_error)?);
        let started = py.detach(|| channels::Channels::start(&self.0, &plan, seed, all));
        started.map(|started| Channels(Mutex::new(Some(started)))).map_err(raise)
    }

    /// Whether a TCP server is listening on a port of a host.
    fn is_listening(&self, host: &str, port: u16) -> PyResult<bool> {
        let namespace = self.0.namespace(self.address_of(host)?);
        let found =
            namespace.run(|| Ok::<_, LabError>(netns::is_listening(port))).map_err(raise)?;
        Ok(found?)
    }

    /// The value of a sysctl on a host.
    fn setting(&self, host: &str, name: &str) -> PyResult<String> {
        let namespace = self.0.namespace(self.address_of(host)?);
        let value = namespace.run(|| Ok::<_, LabError>(sysctl::get(name))).map_err(raise)?;
        Ok(value?)
    }

    /// The IPv4 address of a host.
    fn address(&self, host: &str) -> PyResult<String> {
        Ok(ipv4(self.address_of(host)?).to_string())
    }

    /// The TCP connections of a host; none if its kernel does not report them.
    fn connections<'py>(&self, py: Python<'py>, host: &str) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let found = self.0.connections(self.address_of(host)?);
        found.iter().map(|each| connection(py, each)).collect()
    }

    /// The time in ns since the lab was brought up.
    fn now_ns(&self) -> u64 {
        self.0.now().as_nanos()
    }

    /// Applies changes to the running link, a list as JSON, all at the same time or none; returns
    /// that time in ns.
    fn apply_changes(&self, py: Python<'_>, changes: &str) -> PyResult<u64> {
        let changes = LinkChange::parse_list(changes).map_err(|error| plan_error(&error))?;
        py.detach(|| self.0.apply(changes)).map(Instant::as_nanos).map_err(raise)
    }

    /// File descriptors of a host's namespaces, with which another process can call `spawn_in`. The
    /// caller must close them.
    fn namespace_fds(&self, host: &str, pids: &SharedPidNamespace) -> PyResult<[i32; 3]> {
        let namespace = self.0.namespace(self.address_of(host)?);
        let NamespaceFds { namespace: [net, mounts], pids } = NamespaceFds::of(namespace, &pids.0)?;
        Ok([net, mounts, pids].map(IntoRawFd::into_raw_fd))
    }

    /// Prepares the lab for a NAT that connects it to the Internet; returns a file descriptor of
    /// the world's network namespace, which the caller must close.
    fn enable_internet(&self, py: Python<'_>) -> PyResult<i32> {
        py.detach(|| uplink::enable_internet(&self.0)).map_err(raise)?;
        let [net, _] = self.0.namespace(Side::World).try_clone_fds()?;
        Ok(net.into_raw_fd())
    }

    /// The latest report, at most a tenth of a second old.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        report(py, &self.0.report())
    }
}

impl Lab {
    /// The address of a host by its name. `island` is the host of the first terminal.
    fn address_of(&self, name: &str) -> PyResult<Address> {
        self.0
            .address_of(name)
            .ok_or_else(|| PyValueError::new_err(format!("the lab has no host {name}")))
    }
}

/// Running channels. They end with the object.
#[pyclass(frozen)]
pub(crate) struct Channels(Mutex<Option<channels::Channels>>);

#[pymethods]
impl Channels {
    /// Starts the clients of a run that began at this time of the monotonic clock, in ns.
    fn begin(&self, origin_ns: u64) {
        self.0
            .lock()
            .iter()
            .for_each(|running| running.iter().for_each(|all| all.begin(origin_ns)));
    }

    /// Ends all channels; returns their reports as JSON, without any the second time.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let running = self.0.lock().ok().and_then(|mut running| running.take());
        let reports = py.detach(|| running.map_or(Ok(Vec::new()), channels::Channels::finish));
        Ok(serde_json::to_string(&reports.map_err(raise)?).expect("numbers"))
    }
}

/// A PID namespace for programs that other processes start in a lab. They are killed when the
/// object or the process ends.
#[pyclass(frozen)]
pub(crate) struct SharedPidNamespace(shared_pid_namespace::SharedPidNamespace);

#[pymethods]
impl SharedPidNamespace {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        py.detach(shared_pid_namespace::SharedPidNamespace::new).map(Self).map_err(raise)
    }
}

/// Starts a program in a lab of another process, by the file descriptors of its
/// `Lab.namespace_fds`, and returns its PID.
#[pyfunction]
pub(crate) fn spawn_in(
    py: Python<'_>,
    namespace_fds: [i32; 3],
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
) -> PyResult<i32> {
    let [net, mounts, pids] = namespace_fds.map(program::duplicate);
    let (namespace, pids) = (Namespace::from_fds([net?, mounts?]), pids?);
    let invocation = Invocation { arguments, environment, output: None };
    py.detach(|| shared_pid_namespace::spawn_in(namespace, pids, invocation)).map_err(raise)
}

/// Moves the process, of one thread, into a user namespace, given by a file descriptor.
#[pyfunction]
pub(crate) fn join_user_namespace(descriptor: i32) -> PyResult<()> {
    user_namespace::join(program::duplicate(descriptor)?.as_fd()).map_err(raise)
}

/// Measures this machine for about five times `seconds`: the goodput of one TCP flow, also with
/// super-packets, the rate of small packets, and the accuracy of delay and rate.
#[pyfunction]
#[pyo3(name = "measure")]
pub(crate) fn measured<'py>(py: Python<'py>, seconds: f64) -> PyResult<Bound<'py, PyDict>> {
    let time = Duration::from_nanos((seconds.clamp(0.1, 1e3) * 1e9) as u64);
    let wide = |super_packets| lab::Lab::up(measure::unlimited_link(super_packets));
    let delay = Duration::from_millis(20);
    let (tcp, super_packets, small, delays) = py
        .detach(|| {
            let tcp = measure::tcp_bits_per_second(&wide(false)?, Side::World, time)?;
            let super_packets = measure::tcp_bits_per_second(&wide(true)?, Side::World, time)?;
            let small = measure::small_packets_per_second(&wide(false)?, Side::World, time)?;
            let loads = [OfferedLoad::sparse(delay), OfferedLoad::full(20_000_000, delay)];
            let delays = loads.into_iter().map(|load| measure::delay_errors(load, time));
            Ok::<_, LabError>((tcp, super_packets, small, delays.collect::<Result<Vec<_>, _>>()?))
        })
        .map_err(raise)?;
    let result = PyDict::new(py);
    result.set_item("tcp_bits_per_second", tcp)?;
    result.set_item("tcp_super_packets_bits_per_second", super_packets)?;
    result.set_item("small_packets_per_second", small)?;
    for (name, errors) in ["sparse", "full"].into_iter().zip(delays) {
        let row = errors.fields().into_py_dict(py)?;
        row.set_item("rate_error", errors.rate_error)?;
        row.set_item("invalid", errors.invalid)?;
        result.set_item(name, row)?;
    }
    Ok(result)
}

/// Moves the process into a new user namespace, as the same user. It must be single-threaded.
#[pyfunction]
pub(crate) fn create_user_namespace() -> PyResult<()> {
    user_namespace::create().map_err(raise)
}

fn raise(error: impl Into<LabError>) -> PyErr {
    let error = error.into();
    match (error.to_string(), error) {
        (_, LabError::Plan(error)) => plan_error(&error),
        (text, LabError::System(SystemError::Machine { .. })) => MachineError::new_err(text),
        (text, LabError::System(SystemError::Program { error, .. })) => {
            ProgramError::new_err((error.raw_os_error(), text))
        }
    }
}

fn report<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let directions = PyDict::new(py);
    for (name, counters) in &report.directions {
        let direction = counters.fields().into_py_dict(py)?;
        let (dropped, dropped_bytes) = (PyDict::new(py), PyDict::new(py));
        for cause in DropCause::ALL {
            let count = counters.dropped[cause as usize];
            if count.packets > 0 {
                dropped.set_item(cause.name(), count.packets)?;
                dropped_bytes.set_item(cause.name(), count.bytes)?;
            }
        }
        direction.set_item("dropped_packets", dropped)?;
        direction.set_item("dropped_bytes", dropped_bytes)?;
        directions.set_item(name, direction)?;
    }
    let result = PyDict::new(py);
    result.set_item("at_ns", report.at.as_nanos())?;
    result.set_item("directions", directions)?;
    result.set_item("classes", report.classes.clone())?;
    result.set_item("functions", functions(py, &report.functions)?)?;
    let (ports, control_ports) = (PyDict::new(py), PyDict::new(py));
    for (port, flows) in report.ports.iter() {
        let [world, island] = &flows.traffic;
        let sides = [("world", traffic(py, world)?), ("island", traffic(py, island)?)];
        control_ports.set_item(port, flows.control_port(port))?;
        ports.set_item(port, sides.into_py_dict(py)?)?;
    }
    result.set_item("ports", ports)?;
    result.set_item("control_ports", control_ports)?;
    result.set_item("lateness", report.punctuality.lateness.fields().into_py_dict(py)?)?;
    result.set_item("wait", report.punctuality.wait.fields().into_py_dict(py)?)?;
    for (name, count) in report.punctuality.fields() {
        result.set_item(name, count)?;
    }
    result.set_item("kernel_dropped_packets", report.kernel_dropped)?;
    result.set_item("store_full_packets", report.store_full)?;
    let captured = report.captured.map(|captured| {
        let result = [("packets", captured.packets), ("missing_packets", captured.missing)]
            .into_py_dict(py)?;
        result.set_item("error_number", captured.error_number)?;
        Ok::<_, PyErr>(result)
    });
    result.set_item("capture", captured.transpose()?)?;
    let windows: PyResult<Vec<_>> = report.windows.iter().map(|each| window(py, each)).collect();
    result.set_item("windows", windows?)?;
    result.set_item("window_count", report.window_count)?;
    result.set_item("invalid_windows", report.invalid_windows)?;
    result.set_item("slowdown_percent", 100.0 * report.slowdown)?;
    result.set_item("fault", report.fault.map(Fault::name))?;
    result.set_item("invalid", &report.invalid)?;
    Ok(result)
}

fn window<'py>(py: Python<'py>, window: &Window) -> PyResult<Bound<'py, PyDict>> {
    let result = window.fields().into_py_dict(py)?;
    result.set_item("slowdown_percent", 100.0 * window.slowdown)?;
    result.set_item("fault", window.fault.map(Fault::name))?;
    result.set_item("invalid", &window.invalid)?;
    Ok(result)
}

fn functions<'py>(py: Python<'py>, found: &[Function]) -> PyResult<Bound<'py, PyDict>> {
    let functions = PyDict::new(py);
    for Function { name, gateway, processor, statistics } in found {
        let function = PyDict::new(py);
        function.set_item("gateway", gateway)?;
        let processor = processor.as_ref().map(|values| values.clone().into_py_dict(py));
        function.set_item("processor", processor.transpose()?)?;
        function.set_item("statistics", statistics.clone().into_py_dict(py)?)?;
        functions.set_item(name, function)?;
    }
    Ok(functions)
}

fn connection<'py>(py: Python<'py>, found: &Connection) -> PyResult<Bound<'py, PyDict>> {
    let result = found.fields().into_py_dict(py)?;
    result.set_item("total_rto", found.total_rto)?;
    Ok(result)
}

fn traffic<'py>(py: Python<'py>, traffic: &SideTraffic) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    for (name, tally) in [("offered", &traffic.offered), ("delivered", &traffic.delivered)] {
        result.set_item(name, tally.fields().into_py_dict(py)?)?;
    }
    for (name, value) in traffic.delay_fields() {
        result.set_item(name, value)?;
    }
    let dropped = DropCause::ALL.map(|cause| (cause.name(), traffic.dropped[cause as usize]));
    result.set_item("dropped_packets", dropped.into_py_dict(py)?)?;
    Ok(result)
}
