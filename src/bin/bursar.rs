//! The administrators' command.

use std::process::ExitCode;

fn main() -> ExitCode {
    bursar::cli::main()
}
