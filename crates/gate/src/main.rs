//! `bentpipe-gate`: the functions of a gateway on a real router, and the commands for its operator.

use std::process::ExitCode;

fn main() -> ExitCode {
    bentpipe_gate::commands::run()
}
