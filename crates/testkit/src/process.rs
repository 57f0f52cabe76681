//! Child processes that end with this process.
//!
//! Each runs under `setpriv --pdeathsig KILL`: the kernel kills it when its parent ends, even by a panic, Ctrl-C or
//! SIGKILL. For the kernel, the parent is a *thread*, and test threads end early. Therefore one thread that lives as
//! long as the process starts all children.

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

/// The number of log lines that are shown if a process fails.
const LOG_LINES: usize = 30;

/// A running child process with a log file. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Mutex<Child>,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, and appends its standard output and error to `log`. Arguments, environment and working folder
    /// of `command` are kept; its standard streams are not.
    #[must_use]
    pub fn start(name: &str, command: &Command, log: &Path) -> Self {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap_or_else(|error| panic!("the log {} of {name}: {error}", log.display()));
        let errors = output.try_clone().expect("the handle of the log can be cloned");
        let mut wrapped = end_with_parent(command);
        wrapped.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = spawn(wrapped).unwrap_or_else(|error| panic!("setpriv, which runs {name}: {error}"));
        let pid = Pid::from_child(&child);
        Self { name: name.to_owned(), child: Mutex::new(child), pid, log: log.to_owned() }
    }

    /// The process id. `setpriv` executes the program in its own process, so this is the program's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The exit status; `None` while the process runs.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("the state of our own child is known")
    }

    /// Sends a signal. See also [`Self::frozen`].
    pub fn signal(&self, signal: Signal) {
        // The lock keeps other threads from reaping the child, so that the id cannot be reused for another process.
        let mut child = self.child();
        if matches!(child.try_wait(), Ok(None)) {
            kill_process(self.pid, signal).unwrap_or_else(|error| panic!("{signal:?} to {}: {error}", self.name));
        }
    }

    /// Stops the process (SIGSTOP) until the result is dropped, so that a failed test leaves no frozen process.
    #[must_use]
    pub fn frozen(&self) -> Frozen<'_> {
        self.signal(Signal::STOP);
        Frozen(self)
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill(&self) {
        let mut child = self.child();
        // Fails only if the process has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Waits until the process ends without being killed.
    pub fn wait(&self, deadline: Duration) -> ExitStatus {
        let mut status = None;
        let ended = poll(deadline, || {
            status = self.ended();
            status.is_some()
        });
        assert!(ended, "{} did not end within {deadline:?}; {}", self.name, self.log_end());
        status.expect("the process has ended")
    }

    /// Waits for a condition that depends on this process.
    pub fn wait_until(&self, awaited: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
        let done = poll(deadline, || {
            if let Some(status) = self.ended() {
                panic!("{} ended ({status}) before {awaited}; {}", self.name, self.log_end());
            }
            condition()
        });
        assert!(done, "{}: no {awaited} within {deadline:?}; {}", self.name, self.log_end());
    }

    /// The end of the log, for failure messages.
    #[must_use]
    pub fn log_end(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let end = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n");
        format!("its log {} ends:\n{end}", self.log.display())
    }

    /// The path of the log.
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

/// A process that is frozen until this value is dropped; see [`Process::frozen`].
#[derive(Debug)]
pub struct Frozen<'p>(&'p Process);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Runs a short-lived program to its end, with `input` as its standard input.
pub fn run(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{}: {error} (`make servers` installs what the tests run)", command.get_program().display())
    });
    let mut stdin = child.stdin.take().expect("standard input is piped");
    std::thread::scope(|scope| {
        // In a thread, because writing input and reading output in turn could block on full pipes. Writing fails if the
        // program ended early; its status then shows why.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output().expect("the output of our own child is readable")
    })
}

/// Wraps `command` in `setpriv`, in its own process group. Ctrl-C then ends this process first, and the kernel ends the
/// child.
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

/// Starts `command` from the thread that lives as long as this process.
fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = channel::<Request>();
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    // Sending fails if the requesting thread has ended. The child then runs until this process ends.
                    let _ = answer.send(command.spawn());
                }
            })
            .expect("the system starts a thread");
        requests
    });
    let (answer, result) = channel();
    spawner.send((command, answer)).expect("the spawner lives as long as the process");
    result.recv().expect("the spawner answers every request")
}
