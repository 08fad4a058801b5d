//! The extension module `bentpipe._core`: takes a plan as a string and returns columns as bytes.

mod live;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bentpipe_core::rng::Rng;
use bentpipe_core::tcp::config::CongestionName;
use bentpipe_core::trace::{DropCause, EventKind};
use bentpipe_sim::plan::Draw;
use bentpipe_sim::record::packed::{self, RawColumn};
use bentpipe_sim::record::{self, ColumnSchema, Table, TableSchema};
use bentpipe_sim::{MemoryEstimate, Outcome, Plan, Simulation, workload};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{IntoPyDict as _, PyDict, PyTuple};

/// Defines exceptions by name, base class and documentation.
macro_rules! exceptions {
    ($($name:ident($base:ty): $doc:literal;)*) => {
        $(pyo3::create_exception!(bentpipe._core, $name, $base, $doc);)*
    };
}

exceptions! {
    PlanError(PyValueError):
        "The plan is invalid: `path` leads to the field, `reason` says what is wrong.";
    RunError(PyRuntimeError): "The run violated an invariant of the simulator.";
    MemoryLimitError(PyRuntimeError):
        "The plan's hosts and links alone exceed the memory limit; the argument is their bytes.";
    MachineError(PyOSError):
        "The machine lacks a feature or denies a permission; the message has the fix.";
    ProgramError(PyOSError): "A program could not be started; errno is the kernel's reason.";
}

/// Reads the progress of a run from another thread, and cancels it.
#[pyclass(frozen)]
#[derive(Default)]
struct Monitor(Arc<Shared>);

#[derive(Default)]
struct Shared {
    cancelled: AtomicBool,
    /// The bits of an `f64` from 0 to 1.
    fraction: AtomicU64,
}

#[pymethods]
impl Monitor {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Requests that the run stops. It returns what it has recorded.
    fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// The progress of the run, from 0 to 1.
    #[getter]
    fn fraction(&self) -> f64 {
        f64::from_bits(self.0.fraction.load(Ordering::Relaxed))
    }
}

/// The version of bentpipe.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The names of the enumerations in plans and columns, by number.
#[pyfunction]
fn names(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let names = PyDict::new(py);
    names.set_item("congestion_controls", CongestionName::ALL.map(|(name, _)| name))?;
    names.set_item("drop_causes", DropCause::ALL.map(DropCause::name))?;
    names.set_item("event_kinds", EventKind::NAMES)?;
    Ok(names)
}

/// A column of a result table: name, type, unit, meaning, and whether values can be missing.
type ColumnRow = (Cow<'static, str>, &'static str, &'static str, Cow<'static, str>, bool);

/// The result tables in the order in which a run writes them: name, what a row describes, columns.
#[pyfunction]
fn table_schema() -> Vec<(&'static str, &'static str, Vec<ColumnRow>)> {
    let column = |it: ColumnSchema| (it.name, it.dtype.name(), it.unit, it.meaning, it.nullable);
    let table = |it: TableSchema| (it.name, it.row, it.columns.into_iter().map(column).collect());
    record::table_schema().into_iter().map(table).collect()
}

/// The causes for which a direction of the link drops packets, with their meanings.
#[pyfunction]
fn drop_causes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    record::drop_causes().map(|(cause, meaning)| (cause.name(), meaning)).into_py_dict(py)
}

/// Checks a plan without running it.
#[pyfunction]
fn validate(plan_json: &str) -> PyResult<()> {
    parse(plan_json).map(drop)
}

/// The expected memory of a run, in bytes, by use.
#[pyfunction]
fn memory_estimate<'py>(py: Python<'py>, plan_json: &str) -> PyResult<Bound<'py, PyDict>> {
    MemoryEstimate::of(&parse(plan_json)?).by_use().into_py_dict(py)
}

/// Plays media of four durations in ns: in all, of a segment, buffer, start-up; see [`workload::replay`].
#[pyfunction]
fn video_playback(media: [u64; 4], arrivals_ns: Vec<u64>, end_ns: u64) -> [workload::Moment; 6] {
    workload::replay(media, arrivals_ns, end_ns)
}

/// The random stream of a name in the run with a seed.
#[pyclass]
struct Stream(Rng);

#[pymethods]
impl Stream {
    #[new]
    fn new(seed: u64, name: &str) -> Self {
        Self(Rng::stream(seed, name))
    }

    /// 64 uniform bits.
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform integer from 0 to `bound` - 1; `bound` must be positive.
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// The next number of a distribution of a plan, as JSON.
    fn draw(&mut self, distribution: &str) -> PyResult<u64> {
        let distribution: Draw = serde_json::from_str(distribution).map_err(value_error)?;
        Ok(distribution.draw(&mut self.0))
    }
}

/// Runs a plan once, with the interpreter lock released. `capture` is the capture file. A run that
/// exceeds `memory_limit`, in bytes, ends early.
#[pyfunction]
#[pyo3(signature = (plan_json, seed, monitor = None, capture = None, memory_limit = None))]
fn run<'py>(
    py: Python<'py>,
    plan_json: &str,
    seed: u64,
    monitor: Option<Py<Monitor>>,
    capture: Option<PathBuf>,
    memory_limit: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let plan = py.detach(|| parse(plan_json))?;
    let fixed = MemoryEstimate::of(&plan).fixed;
    if memory_limit.is_some_and(|limit| fixed > limit) {
        return Err(MemoryLimitError::new_err(fixed));
    }
    let capture = capture.map(File::create).transpose()?;
    let names = PyDict::new(py);
    names.set_item("directions", plan.direction_names())?;
    names.set_item("places", plan.place_names())?;
    let shared = monitor.map_or_else(Arc::default, |monitor| Arc::clone(&monitor.get().0));
    let (outcome, interrupted) = py
        .detach(|| run_watched(&plan, seed, &shared, capture, memory_limit))?
        .map_err(|error| RunError::new_err(error.to_string()))?;
    names.set_item("statistics", &outcome.statistics)?;
    let result = result(py, outcome, interrupted)?;
    result.set_item("names", names)?;
    Ok(result)
}

fn parse(plan_json: &str) -> PyResult<Plan> {
    Plan::parse(plan_json).map_err(|error| plan_error(&error))
}

/// Gives Python the field and the reason separately.
fn plan_error(error: &bentpipe_sim::PlanError) -> PyErr {
    let path: Vec<_> = error.field.split('.').filter(|part| !part.is_empty()).collect();
    Python::attach(|py| {
        let raised = PlanError::new_err(error.to_string());
        let value = raised.value(py);
        PyTuple::new(py, path)
            .and_then(|path| value.setattr("path", path))
            .and_then(|()| value.setattr("reason", &error.problem))
            .map_or_else(|failed| failed, |()| raised)
    })
}

/// Returns the outcome, and whether the run was cancelled. The outer error is the capture file's.
fn run_watched(
    plan: &Plan,
    seed: u64,
    shared: &Shared,
    mut capture: Option<File>,
    memory_limit: Option<u64>,
) -> io::Result<Result<(Outcome, bool), bentpipe_sim::RunError>> {
    let mut simulation = Simulation::new(plan, seed).with_capacity();
    if capture.is_some() {
        simulation = simulation.with_capture(plan);
    }
    if let Some(bytes) = memory_limit {
        simulation = simulation.with_memory_limit(bytes);
    }
    let mut interrupted = false;
    while !interrupted {
        let has_more = simulation.advance();
        if let Some(file) = &mut capture {
            file.write_all(&simulation.take_captured())?;
        }
        if !has_more {
            break;
        }
        shared.fraction.store(simulation.fraction().to_bits(), Ordering::Relaxed);
        interrupted = shared.cancelled.load(Ordering::Relaxed);
    }
    Ok(simulation.finish().map(|outcome| (outcome, interrupted)))
}

fn result(py: Python<'_>, outcome: Outcome, interrupted: bool) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    result.set_item("completed", outcome.completed)?;
    result.set_item("interrupted", interrupted)?;
    result.set_item("end_ns", outcome.end.as_nanos())?;
    result.set_item("packet_hops", outcome.packet_hops)?;
    result.set_item("engine_calls", outcome.engine_calls)?;
    result.set_item("memory_exhausted", outcome.memory_exhausted)?;
    result.set_item("memory_bytes_max", outcome.memory_bytes_max)?;
    let raw = |table: Table| (table.name, table.columns.into_iter().map(RawColumn::from));
    result.set_item("tables", tables(py, outcome.tables.into_iter().map(raw))?)?;
    Ok(result)
}

/// Each column is freed after it was copied.
fn tables<C: IntoIterator<Item = RawColumn>>(
    py: Python<'_>,
    tables: impl IntoIterator<Item = (&'static str, C)>,
) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    for (name, columns) in tables {
        let column = |it: RawColumn| (it.name, (it.dtype.name(), it.data, it.present));
        found.set_item(name, columns.into_iter().map(column).into_py_dict(py)?)?;
    }
    Ok(found)
}

/// Runs a plan with some seeds in order, with the interpreter lock released. Returns the records up to the first run
/// that fails, is cancelled or exceeds the memory limit; the caller repeats that one with [`run`] for its error.
#[pyfunction]
fn run_packed(
    py: Python<'_>,
    plan_json: &str,
    seeds: Vec<u64>,
    monitor: &Monitor,
    memory_limit: u64,
) -> PyResult<Vec<Vec<u8>>> {
    let run = |plan: &_, seed| match run_watched(plan, seed, &monitor.0, None, Some(memory_limit)) {
        Ok(Ok((outcome, false))) if !outcome.memory_exhausted => Some(outcome.into_record()),
        _ => None,
    };
    py.detach(|| {
        let plan = parse(plan_json)?;
        let fits = MemoryEstimate::of(&plan).fixed <= memory_limit;
        Ok(seeds.iter().take_while(|_| fits).map_while(|&seed| run(&plan, seed)).collect())
    })
}

/// Returns the record of a run from the values and the validity of its columns.
#[pyfunction]
fn pack(
    completed: bool,
    end_ns: u64,
    packet_hops: u64,
    columns: Vec<(PyBackedBytes, Option<PyBackedBytes>)>,
) -> PyResult<Vec<u8>> {
    packed::pack_columns(completed, end_ns, packet_hops, &columns).map_err(value_error)
}

/// Returns the tables of many records, with the interpreter lock released.
#[pyfunction]
fn unpack(py: Python<'_>, records: Vec<PyBackedBytes>) -> PyResult<Bound<'_, PyDict>> {
    tables(py, py.detach(|| packed::unpack(&records)).map_err(value_error)?)
}

fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($error:ident)*; $($class:ty),*; $($function:path),*) => {
            $(module.add(stringify!($error), module.py().get_type::<$error>())?;)*
            $(module.add_class::<$class>()?;)*
            $(module.add_function(wrap_pyfunction!($function, module)?)?;)*
        };
    }
    add!(PlanError RunError MemoryLimitError MachineError ProgramError;
        Monitor, Stream, live::Lab, live::Channels, live::SharedPidNamespace;
        version, names, table_schema, drop_causes, validate, memory_estimate, video_playback, run,
        run_packed, pack, unpack, live::measured, live::create_user_namespace,
        live::join_user_namespace, live::spawn_in);
    Ok(())
}
