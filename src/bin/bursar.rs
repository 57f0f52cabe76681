//! The administrators' command.

use std::process::ExitCode;

fn main() -> ExitCode {
    // `init` and `webhook install` hold keys in memory.
    if let Err(error) = bursar::privilege::keep_memory_private() {
        eprintln!("bursar: cannot hide the program's memory from other processes: {error}");
        return ExitCode::FAILURE;
    }
    bursar::cli::main()
}
