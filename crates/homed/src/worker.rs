//! The process that becomes the user: reads one order and one request from its socket, and writes one answer.
//!
//! A fork of the [`spawner`](crate::spawner) for one request. If the request asks for it and the settings allow it, the
//! worker makes a missing home as root. Then it gives up root for good, checks that it did, and only then opens the
//! home. No part of a request is ever in its arguments or environment, and nothing of another request is in its memory.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bursar_protocol::{
    AUTHORIZED_KEYS, Answer, HomeError, HomeTarget, Inspection, MAX_KEYS, MAX_REQUEST_BYTES, PROTOCOL_VERSION, Request,
    Response, SshKey, USUAL_REQUEST_BYTES, Work,
};
use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::fs::{Gid, Mode, Uid};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::bounds::Bounds;
use crate::delivery::{self, name_of};
use crate::exchange::{Patience, exchange};
use crate::files::{Home, is_mount_point, mount_of};
use crate::{authorized_keys, ensure, mounts};

/// The first line that a worker reads. It comes from the server; the second line is the request as the client sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerHeader {
    /// The limits for requests. The worker checks the request against them again.
    pub(super) bounds: Bounds,
    /// The time for the name of a backup, `20260131T235959Z` in UTC. The worker does not read the clock.
    pub(super) date: String,
    /// How long the worker may wait for other programs. The server waits longer, so that the worker can report the
    /// timeout itself.
    pub(super) patience: Duration,
    /// The most processor time that the worker may use, in seconds, so that one user's file does not slow all others.
    pub(super) cpu_seconds: u64,
}

/// The answer of this process. Two threads may try to give it; only the first succeeds.
#[derive(Clone, Debug)]
struct Reply {
    socket: Arc<UnixStream>,
    given: Arc<AtomicBool>,
}

impl Reply {
    /// Writes the answer, unless one was given already. Returns `false` if it could not be written.
    fn give(&self, answer: Result<Answer, HomeError>) -> bool {
        if self.given.swap(true, Ordering::SeqCst) {
            return true;
        }
        (&*self.socket).write_all(&Response::new(answer).to_line()).is_ok()
    }
}

/// Reads order and request, does the work, and writes the answer. The exit code says only whether the answer was
/// written.
///
/// `parent` is the spawner. This process has one thread, so a call that changes the uid of its thread changes the
/// process.
pub(super) fn run(socket: UnixStream, parent: Pid) -> ExitCode {
    let reply = Reply { socket: Arc::new(socket), given: Arc::default() };
    let written = reply.give(read_and_obey(&reply, parent));
    // The socket stays open until the process is gone, because the server takes the end of the stream for the end of
    // the process.
    std::mem::forget(Arc::clone(&reply.socket));
    if written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read_and_obey(reply: &Reply, parent: Pid) -> Result<Answer, HomeError> {
    end_with(parent)?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bad = |detail: String| HomeError::BadRequest { detail };
    let most = 2 * MAX_REQUEST_BYTES;
    let mut input = Zeroizing::new(Vec::with_capacity(USUAL_REQUEST_BYTES));
    let read = (&*reply.socket).take(most as u64).read_to_end(&mut input);
    read.map_err(|error| bad(format!("the server's socket: {error}")))?;
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let order: WorkerHeader = serde_json::from_slice(lines.next().unwrap_or_default())
        .map_err(|error| bad(format!("order: {}", place(&error))))?;
    let request: Request = serde_json::from_slice(lines.next().unwrap_or_default())
        .map_err(|error| bad(format!("request: {}", place(&error))))?;
    drop(input);
    obey(&order, &request, parent, reply)
}

/// From here on, the kernel kills this process when its parent ends. If the parent has ended before, this fails,
/// because the next server may already use the home.
fn end_with(parent: Pid) -> Result<(), HomeError> {
    let unavailable = |detail: String| HomeError::Unavailable { detail };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| unavailable(format!("pdeathsig: {errno}")))?;
    if rustix::process::getppid() == Some(parent) {
        return Ok(());
    }
    Err(unavailable("the server that asked is gone".to_owned()))
}

/// Returns where JSON is wrong and the kind of fault, but never the text, which may be a private key.
pub(super) fn place(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Io => "cannot be read",
        serde_json::error::Category::Syntax => "is not JSON",
        serde_json::error::Category::Data => "is not a known request",
        serde_json::error::Category::Eof => "ends too early",
    };
    format!("{what} at column {}", error.column())
}

fn obey(order: &WorkerHeader, request: &Request, parent: Pid, reply: &Reply) -> Result<Answer, HomeError> {
    if request.version != PROTOCOL_VERSION {
        return Err(HomeError::BadRequest { detail: format!("version {} is not known", request.version) });
    }
    check(&request.work).map_err(|detail| HomeError::BadRequest { detail })?;
    if matches!(&request.work, Work::SshKeys { keys } if !keys.is_empty()) && !order.bounds.ssh_keys {
        return Err(HomeError::SshKeysNotAllowed);
    }
    let target = &request.target;
    let prefix = order.bounds.admit(target)?;
    if request.work.is_about_the_kubeconfig() {
        order.bounds.admit_file(target)?;
    }
    // This check comes before the home is touched, because a user's own file system may never answer.
    mounts::refuse_users_own(prefix, target)?;
    if request.work == Work::TestCreate {
        return ensure::test_create(prefix, target).map(|()| Answer::Writable);
    }
    let created = match &request.work {
        Work::EnsureHome { create: true, .. } | Work::MakeDirectory { .. } => {
            refuse_stand_in(&order.bounds, target)?;
            ensure::make_home(prefix, target, matches!(request.work, Work::EnsureHome { .. }))?
        }
        _ => false,
    };
    become_user(target.uid, target.gid, &target.groups)?;
    // When a process becomes another user, the kernel clears the process's parent-death signal.
    end_with(parent)?;
    let file = target.kubeconfig.as_path();
    let cpu = CpuLimit::set(order.cpu_seconds, reply, target.home.join(file))?;
    if let (Work::MakeDirectory { shared: true }, false) = (&request.work, created)
        && ensure::is_the_groups(&prefix.path, target)?
    {
        return Ok(Answer::HomeReady { created });
    }
    let home = Home::open(&prefix.path, target)
        .map_err(|error| gone_or_not_mounted(error, &request.work, target, &order.bounds))?;
    refuse_stand_in(&order.bounds, target)?;
    let patience = Patience::of(order.patience);
    let place = delivery::Place { home: &home, file, patience, date: &order.date, cpu: &cpu };
    match &request.work {
        Work::EnsureHome { create, skeleton } => {
            if let (true, true, true, Some(from)) = (*create, prefix.allow_create, *skeleton, &order.bounds.skeleton) {
                ensure::copy_skeleton(from, &target.home, home.directory(), created)?;
            }
            Ok(Answer::HomeReady { created })
        }
        Work::MakeDirectory { shared } => {
            if *shared {
                ensure::give_group_on(&target.home, home.directory())?;
            }
            Ok(Answer::HomeReady { created })
        }
        // Such a request was answered above, before a home is opened.
        Work::TestCreate => Ok(Answer::Writable),
        Work::Inspect { names } => {
            let found = place.inspect(names)?;
            Ok(Answer::Inspected(Inspection { mount: home.mount(), ..found }))
        }
        Work::TestWrite { replace_unparsable } => place.test_write(None, *replace_unparsable),
        Work::TestDelivery { planned, replace_unparsable } => {
            place.test_write(Some((planned, order.bounds.take_over.as_slice())), *replace_unparsable)
        }
        Work::WriteKubeconfig { entries, replace_unparsable } => {
            place.write(entries, &order.bounds.take_over, *replace_unparsable).map(Answer::Written)
        }
        Work::RemoveKubeconfig { names } => place.remove(names),
        Work::RestoreKubeconfig => place.restore(),
        Work::SshKeys { keys } => ssh_keys(&home, keys, patience),
    }
}

/// Refuses a folder that only stands in for the home, because the file system that had the home is not mounted. If our
/// entries were removed from that folder, those in the real home would be forgotten.
fn refuse_stand_in(bounds: &Bounds, target: &HomeTarget) -> Result<(), HomeError> {
    match &target.mount {
        Some(mount) if !bounds.is_former(target) && !is_mount_point(mount) => {
            Err(HomeError::MissingPrefix { prefix: mount.clone() })
        }
        _ => Ok(()),
    }
}

/// Converts the error of a missing home. For a removal, a missing home counts as a home without our entries, but if its
/// export is not mounted, the removal fails.
fn gone_or_not_mounted(error: HomeError, work: &Work, target: &HomeTarget, bounds: &Bounds) -> HomeError {
    let is_removal = match work {
        Work::RemoveKubeconfig { .. } => true,
        Work::SshKeys { keys } => keys.is_empty(),
        _ => false,
    };
    match error {
        HomeError::MissingHome { .. } | HomeError::MissingPrefix { .. } if is_removal && bounds.is_former(target) => {
            HomeError::MissingHome { home: target.home.clone(), uid: target.uid, gid: target.gid }
        }
        HomeError::MissingHome { .. } if is_removal => {
            not_mounted(target).map_or(error, |prefix| HomeError::MissingPrefix { prefix })
        }
        error => error,
    }
}

/// Returns the place at which an export seems not to be mounted, so that a missing home does not count as gone. If the
/// mount of the home is recorded, it decides alone: the folder may be empty, or gone too, because this was its last
/// home. Otherwise an empty folder counts as a mount point without its mount.
fn not_mounted(target: &HomeTarget) -> Option<PathBuf> {
    let folder = target.home.parent()?;
    if let Some(mount) = &target.mount {
        // If each home is a mount of its own, a home that is gone cannot be distinguished from a home that is not
        // mounted. An empty file system may be the mount point of an export that the server does not have mounted.
        let is_empty = std::fs::read_dir(mount).is_ok_and(|mut entries| entries.next().is_none());
        return (is_empty || folder.ancestors().find_map(mount_of).as_ref() != Some(mount)).then(|| mount.clone());
    }
    let has_homes = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    (!has_homes).then(|| folder.to_owned())
}

/// Checks the values of a request. Returns what is wrong with it.
fn check(work: &Work) -> Result<(), String> {
    match work {
        Work::Inspect { names } | Work::RemoveKubeconfig { names } => names.check(),
        Work::WriteKubeconfig { entries, .. } => entries.check(),
        Work::TestDelivery { planned, .. } => planned.with_nothing().check(),
        Work::SshKeys { keys } if keys.len() > MAX_KEYS => Err(format!("more than {MAX_KEYS} keys")),
        Work::TestWrite { .. }
        | Work::EnsureHome { .. }
        | Work::TestCreate
        | Work::MakeDirectory { .. }
        | Work::RestoreKubeconfig
        | Work::SshKeys { .. } => Ok(()),
    }
}

/// Processor time between the limit, which the worker reports, and the kill.
const CPU_GRACE_SECONDS: u64 = 2;

/// The limit on the processor time of this process. The kernel ends the process silently, and the server could not tell
/// why. Therefore, if the file is large, a second thread waits for the kernel's warning (SIGXCPU) and reports it.
#[derive(Debug)]
pub(super) struct CpuLimit {
    seconds: u64,
    reply: Reply,
    path: PathBuf,
    watched: Cell<bool>,
}

/// The size in bytes from which [`CpuLimit`] watches the parsing of a file. A smaller file cannot take seconds, because
/// the merge is linear.
const LARGE: usize = 64 * 1024;

impl CpuLimit {
    fn set(seconds: u64, reply: &Reply, path: PathBuf) -> Result<Self, HomeError> {
        let limit = Rlimit { current: Some(seconds), maximum: Some(seconds + CPU_GRACE_SECONDS) };
        rustix::process::setrlimit(Resource::Cpu, limit).map_err(|errno| no_limit(&errno.to_string()))?;
        Ok(Self { seconds, reply: reply.clone(), path, watched: Cell::new(false) })
    }

    /// Must be called before a file of this size is parsed.
    pub(super) fn heed(&self, bytes: usize) -> Result<(), HomeError> {
        if bytes < LARGE || self.watched.replace(true) {
            return Ok(());
        }
        let mut signals = SigSet::empty();
        signals.add(NixSignal::SIGXCPU);
        // The signal must be blocked before the thread starts: the thread waits for it, and it must not kill any
        // thread.
        signals.thread_block().map_err(|errno| no_limit(&errno.to_string()))?;
        let (reply, path, seconds) = (self.reply.clone(), self.path.clone(), self.seconds);
        let wait = move || {
            if signals.wait().is_ok() {
                let detail = format!("it takes more than {seconds} s of processor time");
                reply.give(Err(HomeError::TooComplex { path, detail }));
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().stack_size(64 * 1024).spawn(wait);
        thread.map(drop).map_err(|error| no_limit(&error.to_string()))
    }
}

fn no_limit(detail: &str) -> HomeError {
    HomeError::Unavailable { detail: format!("processor time: {detail}") }
}

/// Becomes the user for good, with these groups, and without core files or a way to new privileges. If the process is
/// not root, it must already be the user.
fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), HomeError> {
    let failed = |what: &str| HomeError::Unavailable { detail: format!("cannot become uid {uid}: {what}") };
    let call = |what: &'static str| move |errno: rustix::io::Errno| failed(&format!("{what}: {errno}"));
    let user = Uid::from_raw(uid);
    let group = Gid::from_raw(gid);
    if rustix::process::geteuid().is_root() {
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        rustix::thread::set_thread_groups(&groups).map_err(call("setgroups"))?;
        rustix::thread::set_thread_res_gid(group, group, group).map_err(call("setresgid"))?;
        rustix::thread::set_thread_res_uid(user, user, user).map_err(call("setresuid"))?;
    } else if rustix::process::geteuid() != user {
        return Err(failed("bursar-homed does not run as root"));
    }
    rustix::thread::set_no_new_privs(true).map_err(call("no_new_privs"))?;
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(call("setrlimit"))?;
    // Another process of that user must not read a key in our memory. The kernel prevents this when the ids change, but
    // without root they do not change.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(call("dumpable"))?;

    let capabilities = rustix::thread::capabilities(None).map_err(call("capget"))?;
    let root = Uid::ROOT;
    if rustix::process::getuid() != user
        || rustix::process::geteuid() != user
        || !(capabilities.effective.is_empty() && capabilities.permitted.is_empty())
        || rustix::thread::set_thread_res_uid(None::<Uid>, root, None::<Uid>).is_ok()
        || rustix::thread::set_thread_res_gid(None::<Gid>, Gid::ROOT, None::<Gid>).is_ok()
    {
        return Err(failed("it could still become root again"));
    }
    Ok(())
}

fn ssh_keys(home: &Home, keys: &[String], patience: Patience) -> Result<Answer, HomeError> {
    let keys = keys.iter().map(|line| SshKey::parse(line).map_err(|why| format!("a key {why}")));
    let keys = keys.collect::<Result<Vec<_>, _>>().map_err(|detail| HomeError::BadRequest { detail })?;
    let file = Path::new(AUTHORIZED_KEYS);
    let directory = match home.directory_of(file)? {
        Some(directory) => directory,
        None if keys.is_empty() => return Ok(Answer::SshKeys { changed: false, mount: None }),
        None => home.make_directory_of(file)?,
    };
    let name = name_of(file);
    let written = exchange(
        &directory,
        name,
        patience,
        |existing| {
            let content = existing.map_or(&[][..], |existing| &existing.content);
            let merged = authorized_keys::merge(content, &keys)
                .map_err(|detail| HomeError::BrokenBlock { path: directory.path_of(name), detail })?;
            let is_changed = merged.is_some();
            Ok((merged.map(Zeroizing::new), is_changed))
        },
        |_| Ok(()),
        Ok,
    )?;
    Ok(Answer::SshKeys { changed: written.value, mount: home.mount() })
}
