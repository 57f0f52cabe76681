//! The demo: an LDAP server, a Kubernetes control plane and Bursar, started from nothing, with 12 sample people and 6
//! tools. `DEMO=once` checks what happened and stops; otherwise everything runs until Ctrl-C.
//!
//! The demo does what an administrator would do, with the commands of an administrator. So it is also the shortest test
//! of the whole system.

#![expect(clippy::disallowed_methods, reason = "waits for real servers, with deadlines, and measures them")]

mod site;
mod story;

use std::process::ExitCode;

use site::Site;

fn main() -> ExitCode {
    let once = std::env::var("DEMO").is_ok_and(|how| how == "once");
    let site = Site::start();
    match story::tell(&site) {
        Ok(()) if once => ExitCode::SUCCESS,
        Ok(()) => {
            story::what_to_try_next(&site);
            Site::wait_for_interrupt();
            ExitCode::SUCCESS
        }
        Err(failed) => {
            eprintln!("\ndemo: {failed}");
            eprintln!("{}", site.log_ends());
            ExitCode::FAILURE
        }
    }
}
