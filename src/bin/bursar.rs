//! The administrators' command.

use std::process::ExitCode;

fn main() -> ExitCode {
    // `init` and `webhook install` hold keys.
    if let Err(error) = bursar::privilege::keep_memory_private() {
        eprintln!("bursar: cannot keep the program's memory to itself: {error}");
        return ExitCode::FAILURE;
    }
    bursar::cli::main()
}
