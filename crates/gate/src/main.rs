//! `bentpipe-gate`: the daemon of a gateway. Its plan is written by `bentpipe gateway up`.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;

use bentpipe_gate::daemon::{Plan, up, work};

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("worker") => worker(),
        None => daemon(),
        Some(_) => {
            eprintln!("bentpipe-gate: takes no argument, and a plan as JSON on its standard input");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-gate: {error}");
            ExitCode::from(3)
        }
    }
}

fn daemon() -> io::Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let plan: Plan = serde_json::from_str(&text)?;
    match up(&plan)? {
        bentpipe_gate::daemon::Ended::BySignal => Ok(()),
        bentpipe_gate::daemon::Ended::WithoutWorker => {
            Err(io::Error::other("the worker is gone; new connections pass without the gateway"))
        }
    }
}

/// Standard input and output are the channels to the privileged part.
fn worker() -> io::Result<()> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let supply = io::stdout().as_fd().try_clone_to_owned()?;
    work(control, supply)
}
