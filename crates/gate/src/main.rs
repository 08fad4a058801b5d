//! `bentpipe-gate`: the daemon of a gateway. Its plan is written by `bentpipe gateway up`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use bentpipe_gate::daemon::{Ended, FailMode, Leftovers, Plan, check, up, work};
use bentpipe_gate::tunnel::{OsRandom, keygen};

/// Bad input, and a machine that lacks something.
const BAD_INPUT: u8 = 2;
const LACKING: u8 = 3;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["worker"] => worker(),
        [] => given().and_then(|text| daemon(&Plan::parse(&text)?)),
        ["check"] => given().and_then(|text| check(&Plan::parse(&text)?)),
        ["remove"] => given().and_then(|text| Leftovers::parse(&text)?.remove()),
        ["keygen", path] => write_key(path),
        _ => {
            eprintln!(
                "usage: bentpipe-gate [check | remove], with a plan as JSON on its standard input; `check` opens what \
                 a daemon opens and ends, `remove` removes what a daemon has left that was killed; or \
                 bentpipe-gate keygen FILE, which writes a private key and prints its public key"
            );
            return ExitCode::from(BAD_INPUT);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bentpipe-gate: error: {error}");
            let is_input = error.kind() == io::ErrorKind::InvalidInput;
            ExitCode::from(if is_input { BAD_INPUT } else { LACKING })
        }
    }
}

/// The plan on standard input.
fn given() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a private key, and prints its public key.
fn write_key(path: &str) -> io::Result<()> {
    let public = keygen(Path::new(path), &mut OsRandom::new()).map_err(|error| {
        let (why, fix) = match error.kind() {
            ErrorKind::AlreadyExists => {
                ("it exists, and is never overwritten".to_owned(), "another name, or remove it")
            }
            _ => (error.to_string(), "a file in a folder that exists and can be written"),
        };
        io::Error::new(ErrorKind::InvalidInput, format!("{path}: {why}; to fix it: {fix}"))
    })?;
    writeln!(io::stdout(), "{public}")
}

fn daemon(plan: &Plan) -> io::Result<()> {
    match up(plan)? {
        Ended::BySignal => Ok(()),
        Ended::WithoutWorker => {
            let pep = plan.pep.as_ref().map(|_| "new connections pass without the gateway");
            let tunnel = plan.tunnel.as_ref().map(|tunnel| match tunnel.fail {
                FailMode::Closed => "packets for the networks of the tunnel are refused",
                FailMode::Open => "packets for the networks of the tunnel leave in clear text",
            });
            let words: Vec<_> =
                ["the worker is gone"].into_iter().chain(pep).chain(tunnel).collect();
            Err(io::Error::other(words.join("; ")))
        }
    }
}

/// Standard input and output are the channels to the privileged part.
fn worker() -> io::Result<()> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    let supply = io::stdout().as_fd().try_clone_to_owned()?;
    work(control, supply)
}
