//! Child processes that cannot outlive this one.
//!
//! Each runs under `setpriv --pdeathsig KILL`: the kernel kills it when its parent ends, be it by a panic, Ctrl-C or
//! SIGKILL. The kernel means the parent *thread*, and test threads come and go: all children are therefore started by
//! one thread that lives as long as the process.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::ready::poll;

/// How many lines of a log are shown when its process fails.
const LOG_LINES: usize = 30;

/// A running child with a log file. Dropping kills it and waits until it is gone.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Mutex<Child>,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; standard output and error go to `log`, which is appended to. Arguments, environment changes and
    /// working folder of `command` are kept; its standard streams are not.
    ///
    /// # Panics
    /// If `log` cannot be written or there is no `setpriv` (package util-linux). A program that is missing shows in the
    /// log and in [`Self::wait_until`].
    #[must_use]
    pub fn start(name: &str, command: &Command, log: &Path) -> Self {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap_or_else(|error| panic!("the log {} of {name}: {error}", log.display()));
        let errors = output.try_clone().expect("a second handle of the log");
        let mut wrapped = end_with_parent(command);
        wrapped.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = spawn(wrapped).unwrap_or_else(|error| panic!("setpriv, which runs {name}: {error}"));
        let pid = Pid::from_child(&child);
        Self { name: name.to_owned(), child: Mutex::new(child), pid, log: log.to_owned() }
    }

    /// Its process id. `setpriv` replaces itself by the program, so this is the program.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// What it ended with, or `None` while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("the state of our own child")
    }

    /// Sends a signal: see also [`Self::frozen`].
    pub fn signal(&self, signal: Signal) {
        // The lock keeps others from reaping it meanwhile, so that the id cannot be somebody else's.
        let mut child = self.child();
        if matches!(child.try_wait(), Ok(None)) {
            kill_process(self.pid, signal).unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.name));
        }
    }

    /// Freezes it until what this returns is dropped, so that a failed test leaves nothing frozen.
    #[must_use]
    pub fn frozen(&self) -> Frozen<'_> {
        self.signal(Signal::STOP);
        Frozen(self)
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&self) {
        let mut child = self.child();
        // Err: it has ended by itself already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it still runs after `deadline`.
    pub fn wait(&self, deadline: Duration) -> ExitStatus {
        let mut status = None;
        let ended = poll(deadline, || {
            status = self.ended();
            status.is_some()
        });
        assert!(ended, "{} did not end within {deadline:?}; {}", self.name, self.log_end());
        status.expect("it has ended")
    }

    /// Waits for a condition that this process is to bring about.
    ///
    /// # Panics
    /// If it ends first or `deadline` passes: with what was awaited and the end of the log.
    pub fn wait_until(&self, awaited: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
        let done = poll(deadline, || {
            if let Some(status) = self.ended() {
                panic!("{} ended ({status}) before {awaited}; {}", self.name, self.log_end());
            }
            condition()
        });
        assert!(done, "{}: no {awaited} within {deadline:?}; {}", self.name, self.log_end());
    }

    /// The end of what it wrote, for a failure's message.
    #[must_use]
    pub fn log_end(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let end = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n");
        format!("its log {} ends:\n{end}", self.log.display())
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process that is frozen; see [`Process::frozen`].
#[derive(Debug)]
pub struct Frozen<'p>(&'p Process);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Runs a short-lived program to its end with `input` as its standard input.
///
/// # Panics
/// If there is no such program.
pub fn run(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{}: {error} (`make servers` installs what the tests run)", command.get_program().display())
    });
    let mut stdin = child.stdin.take().expect("it is piped");
    std::thread::scope(|scope| {
        // Beside the reading of its output, or both could wait for each other with full pipes. Err: it ended early, and
        // its status tells.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output().expect("the output of our own child")
    })
}

/// `command` under `setpriv`. Its own process group, so that Ctrl-C ends us and the kernel ends it, in this order.
fn end_with_parent(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args()).process_group(0);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

type Request = (Command, Sender<io::Result<Child>>);

/// Starts `command` from the one thread that lives as long as this process.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = channel::<Request>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    // Err: the asking thread is gone; dropping a `Child` leaves the process to its pdeathsig.
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("a thread");
        requests
    });
    let (answer, result) = channel();
    spawner.send((command, answer)).expect("the spawner lives as long as the process");
    result.recv().expect("the spawner answers every request")
}
