//! `bentpipe-gate`: the daemon of a gateway. Its plan is written by `bentpipe gateway up`.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;

use bentpipe_gate::daemon::{Ended, Plan, check, remove, up, work};

/// Bad input, and a machine that lacks something.
const BAD_INPUT: u8 = 2;
const LACKING: u8 = 3;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["worker"] => worker(),
        [] => with_plan(daemon),
        ["check"] => with_plan(check),
        ["remove"] => with_plan(remove),
        _ => {
            eprintln!(
                "usage: bentpipe-gate [check | remove], with a plan as JSON on its standard input; `check` opens what \
                 a daemon opens and ends, `remove` removes the rules of a daemon that did not end by itself"
            );
            return ExitCode::from(BAD_INPUT);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-gate: {error}");
            let is_input = error.kind() == io::ErrorKind::InvalidInput;
            ExitCode::from(if is_input { BAD_INPUT } else { LACKING })
        }
    }
}

fn with_plan(act: impl FnOnce(&Plan) -> io::Result<()>) -> io::Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    act(&Plan::parse(&text)?)
}

fn daemon(plan: &Plan) -> io::Result<()> {
    match up(plan)? {
        Ended::BySignal => Ok(()),
        Ended::WithoutWorker => {
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
