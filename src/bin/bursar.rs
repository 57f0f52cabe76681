//! The administrators' command.

use std::process::ExitCode;

fn main() -> ExitCode {
    // `init` and `webhook install` hold keys in memory.
    if let Err(error) = bursar::privilege::keep_memory_private() {
        eprintln!("bursar: cannot protect the program's memory: {error}");
        return ExitCode::FAILURE;
    }
    bursar::cli::main()
}
