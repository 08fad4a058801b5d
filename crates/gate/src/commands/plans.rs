//! Commands for programs, with a plan as JSON on standard input: those that start a daemon, and the Python package.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;

use serde_json::json;

use super::arguments::PlanVerb;
use super::failure::{Failure, PROGRAM, print, print_json};
use super::folder::GatewayFolder;
use crate::config::{Config, Problem, placeholder_key};
use crate::daemon::{Ended, Leftovers, Plan, check, up, work};

/// Runs one of them.
pub(super) fn run(verb: PlanVerb) -> ExitCode {
    report(match verb {
        PlanVerb::Run { background } => {
            let session = if background { rustix::process::setsid().map(drop) } else { Ok(()) };
            session.map_err(io::Error::from).and_then(|()| daemon(&Plan::parse(&given()?)?))
        }
        PlanVerb::Check => given().and_then(|text| check(&Plan::parse(&text)?)),
        PlanVerb::Remove => given().and_then(|text| Leftovers::parse(&text)?.remove()),
        PlanVerb::Read(path) => {
            print_json(&match Config::read(&path.config) {
                Ok(config) => {
                    let files = GatewayFolder::new(&config.name).files();
                    json!({"plan": config.plan(&path.config, &files)})
                }
                Err(problems) => {
                    let problem = |Problem { line, field, message }: &Problem| json!({"line": line, "field": field, "message": message});
                    json!({"problems": problems.problems.iter().map(problem).collect::<Vec<_>>()})
                }
            });
            Ok(())
        }
        PlanVerb::Placeholders { names } => {
            for name in names {
                print(&placeholder_key(&name).to_string());
            }
            Ok(())
        }
    })
}

/// Runs a worker: standard input and output are the channels to the privileged part.
pub(super) fn worker() -> ExitCode {
    let run = || {
        let control = io::stdin().as_fd().try_clone_to_owned()?;
        let supply = io::stdout().as_fd().try_clone_to_owned()?;
        work(control, supply)
    };
    report(run())
}

/// The last line of a daemon that fails is its error, which others read.
fn report(done: io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{PROGRAM}: error: {error}");
            ExitCode::from(Failure::of(&error).exit_code())
        }
    }
}

/// The plan on standard input.
fn given() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

fn daemon(plan: &Plan) -> io::Result<()> {
    match up(plan)? {
        Ended::BySignal => Ok(()),
        Ended::WithoutWorker => {
            let pep = plan.pep.as_ref().map(|_| "new connections pass without the gateway");
            let tunnel = plan.tunnel.as_ref().map(|_| "routes are as before");
            let words: Vec<_> =
                ["a worker did not start"].into_iter().chain(pep).chain(tunnel).collect();
            Err(io::Error::other(words.join("; ")))
        }
    }
}
