//! The process that becomes the user: one order and one request over its socket, one answer back.
//!
//! A copy of the [`spawner`](crate::spawner), forked for one request. It makes a missing home as root if that was asked and
//! allowed, then gives up root for good, makes sure that it did, and only then opens the home. Nothing of a request is ever
//! in its arguments or environment, and nothing of another request in its memory.

use std::io::{Read as _, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bursar_protocol::{
    AUTHORIZED_KEYS, Answer, EntryNames, HomeError, Inspection, KubeconfigEntries, MAX_KEYS, MAX_REQUEST_BYTES,
    PROTOCOL_VERSION, Request, Response, SshKey, TOKEN, TOKEN_FILES, TokenFiles, USUAL_REQUEST_BYTES, UserProof, Work,
    Written, claims, folder,
};
use rustix::fs::{Gid, Mode, Uid};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::bounds::Bounds;
use crate::document::DocumentError;
use crate::files::{Existing, Home};
use crate::kubeconfig::{self, KubeconfigError};
use crate::{authorized_keys, ensure};

/// The first line, from the server; the second is the request as the client sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    /// What the request is held against once more.
    pub(super) bounds: Bounds,
    /// UTC, `20260131T235959Z`: the name of a backup. The worker has no clock.
    pub(super) date: String,
}

/// Reads order and request, obeys, and writes the answer. The exit code says only whether an answer was written.
///
/// `parent` is the spawner. Its copy has one thread, so that "this thread" is the process.
pub(super) fn run(mut socket: UnixStream, parent: Pid) -> ExitCode {
    let answer = Response::new(read_and_obey(&mut socket, parent)).to_line();
    let written = socket.write_all(&answer);
    // Open until the process is gone: that is how the server knows.
    let _ = socket.into_raw_fd();
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read_and_obey(socket: &mut UnixStream, parent: Pid) -> Result<Answer, HomeError> {
    end_with(parent)?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bad = |detail: String| HomeError::BadRequest { detail };
    let most = 2 * MAX_REQUEST_BYTES;
    let mut input = Zeroizing::new(Vec::with_capacity(USUAL_REQUEST_BYTES));
    let read = socket.take(most as u64).read_to_end(&mut input);
    read.map_err(|error| bad(format!("the server's socket: {error}")))?;
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let order: Order = serde_json::from_slice(lines.next().unwrap_or_default())
        .map_err(|error| bad(format!("order: {}", place(&error))))?;
    let request: Request = serde_json::from_slice(lines.next().unwrap_or_default())
        .map_err(|error| bad(format!("request: {}", place(&error))))?;
    drop(input);
    obey(&order, &request, parent)
}

/// The kernel kills us with our parent from here on. A parent that ended before does not: the next server may be at work.
fn end_with(parent: Pid) -> Result<(), HomeError> {
    let unavailable = |detail: String| HomeError::Unavailable { detail };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| unavailable(format!("pdeathsig: {errno}")))?;
    if rustix::process::getppid() == Some(parent) {
        return Ok(());
    }
    Err(unavailable("the server that asked is gone".to_owned()))
}

/// Where JSON is wrong, and of what kind, never what it said: it may be a key.
pub(super) fn place(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Io => "cannot be read",
        serde_json::error::Category::Syntax => "is not JSON",
        serde_json::error::Category::Data => "is not of the list of requests",
        serde_json::error::Category::Eof => "ends too early",
    };
    format!("{what} at column {}", error.column())
}

fn obey(order: &Order, request: &Request, parent: Pid) -> Result<Answer, HomeError> {
    if request.version != PROTOCOL_VERSION {
        return Err(HomeError::BadRequest { detail: format!("version {} is not known", request.version) });
    }
    match &request.work {
        Work::Inspect { names } | Work::RemoveKubeconfig { names } => names.check(),
        Work::WriteKubeconfig { entries, .. } => entries.check(),
        Work::SshKeys { keys } if keys.len() > MAX_KEYS => Err(format!("more than {MAX_KEYS} keys")),
        Work::TestWrite { .. }
        | Work::EnsureHome { .. }
        | Work::TestCreate
        | Work::MakeDirectory { .. }
        | Work::SshKeys { .. } => Ok(()),
    }
    .map_err(|detail| HomeError::BadRequest { detail })?;
    if matches!(&request.work, Work::SshKeys { keys } if !keys.is_empty()) && !order.bounds.ssh_keys {
        return Err(HomeError::SshKeysNotAllowed);
    }
    let target = &request.target;
    let prefix = order.bounds.admit(target)?;
    if request.work == Work::TestCreate {
        return ensure::test_create(prefix, target).map(|()| Answer::Writable);
    }
    let created = match &request.work {
        Work::EnsureHome { create: true, .. } | Work::MakeDirectory { .. } => ensure::make_home(prefix, target)?,
        _ => false,
    };
    become_user(target.uid, target.gid, &target.groups)?;
    // Whoever becomes another user loses that signal.
    end_with(parent)?;
    if let (Work::MakeDirectory { shared: true }, false) = (&request.work, created)
        && ensure::is_the_groups(&prefix.path, target)?
    {
        return Ok(Answer::HomeReady { created });
    }
    let home = Home::open(&prefix.path, target)?;
    let file = target.kubeconfig.as_path();
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
        // Answered above: there is no home to open.
        Work::TestCreate => Ok(Answer::Writable),
        Work::Inspect { names } => inspect(&home, file, names).map(Answer::Inspected),
        Work::TestWrite { replace_unparsable } => test_write(&home, file, *replace_unparsable),
        Work::WriteKubeconfig { entries, replace_unparsable } => {
            let date = replace_unparsable.then_some(order.date.as_str());
            write(&home, file, entries, &order.bounds.take_over, date).map(Answer::Written)
        }
        Work::RemoveKubeconfig { names } => remove(&home, file, names),
        Work::SshKeys { keys } => ssh_keys(&home, keys),
    }
}

/// Becomes the user for good: groups, gid, uid, no way back, no new privileges, no core file. Without root it can only be
/// who it is.
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

/// The reason for a text that cannot be merged into.
fn unusable(path: PathBuf, error: &KubeconfigError) -> HomeError {
    match error {
        KubeconfigError::Foreign(entry) => HomeError::ForeignEntry { path, entry: entry.clone() },
        KubeconfigError::Document(DocumentError::TooDeep | DocumentError::TooMuch) => {
            HomeError::TooComplex { path, detail: error.to_string() }
        }
        _ => HomeError::NotYaml { path, detail: error.to_string() },
    }
}

fn text(existing: &Existing) -> Result<&str, KubeconfigError> {
    Ok(std::str::from_utf8(&existing.content).map_err(|error| DocumentError::NotUtf8(error.valid_up_to()))?)
}

fn name_of(file: &Path) -> &Path {
    file.file_name().map_or(file, Path::new)
}

fn inspect(home: &Home, file: &Path, names: &EntryNames) -> Result<Inspection, HomeError> {
    let Some(directory) = home.directory_of(file)? else { return Ok(Inspection::default()) };
    let Some(existing) = directory.read(name_of(file))? else { return Ok(Inspection::default()) };
    let found = text(&existing).ok().and_then(|text| kubeconfig::inspect(text, names).ok()).unwrap_or_default();
    let token_id = token_id(home, file, &names.user)?;
    Ok(Inspection { exists: true, owner: Some(existing.owner), mode: Some(existing.mode), token_id, ..found })
}

/// A file in the folder beside the kubeconfig that is our user's.
fn beside(file: &Path, user: &str, name: &str) -> Option<PathBuf> {
    Some(file.parent()?.join(folder(user)?).join(name))
}

fn token_id(home: &Home, file: &Path, user: &str) -> Result<Option<String>, HomeError> {
    let Some(path) = beside(file, user, TOKEN) else { return Ok(None) };
    let Some(directory) = home.directory_of(&path)? else { return Ok(None) };
    let Some(existing) = directory.read(name_of(&path))? else { return Ok(None) };
    Ok(std::str::from_utf8(&existing.content).ok().and_then(claims).map(|claims| claims.id))
}

/// Before the kubeconfig that points to it. `true` if anything was changed.
fn write_token(home: &Home, file: &Path, user: &str, files: &TokenFiles) -> Result<bool, HomeError> {
    let mut changed = false;
    for name in TOKEN_FILES {
        let Some(path) = beside(file, user, name) else { continue };
        let directory = home.make_directory_of(&path)?;
        changed |= directory.keep_at(name_of(&path), files.content(name).as_bytes())?;
    }
    Ok(changed)
}

fn remove_token(home: &Home, file: &Path, user: &str) -> Result<bool, HomeError> {
    let mut changed = false;
    for name in TOKEN_FILES {
        let Some(path) = beside(file, user, name) else { continue };
        let Some(directory) = home.directory_of(&path)? else { return Ok(changed) };
        changed |= directory.remove(name_of(&path))?;
    }
    if let (Some(above), Some(folder)) = (home.directory_of(file)?, folder(user)) {
        above.remove_directory(Path::new(folder))?;
    }
    Ok(changed)
}

fn test_write(home: &Home, file: &Path, replace_unparsable: bool) -> Result<Answer, HomeError> {
    let directory = home.make_directory_of(file)?;
    if let Some(existing) = directory.read(name_of(file))?
        && !replace_unparsable
    {
        let path = directory.path_of(name_of(file));
        let nobody = EntryNames::default();
        // Removing nothing asks the same of a text as adding does.
        text(&existing).and_then(|text| kubeconfig::remove(text, &nobody)).map_err(|error| unusable(path, &error))?;
    }
    directory.test_write()?;
    Ok(Answer::Writable)
}

fn write(
    home: &Home,
    file: &Path,
    entries: &KubeconfigEntries,
    taken: &[String],
    replace_unparsable: Option<&str>,
) -> Result<Written, HomeError> {
    let written = match &entries.user.proof {
        UserProof::Token(files) => write_token(home, file, &entries.user.name, files)?,
        UserProof::Certificate { .. } | UserProof::Login(_) => false,
    };
    let directory = home.make_directory_of(file)?;
    let name = name_of(file);
    let path = directory.path_of(name);
    let existing = directory.read(name)?;
    let names = entries.names();
    let merged = match &existing {
        None => kubeconfig::merge("", entries, taken),
        Some(existing) => text(existing).and_then(|text| kubeconfig::merge(text, entries, taken)),
    };
    let mut backup = None;
    let content = match (merged, replace_unparsable) {
        (Ok(content), _) => content,
        (Err(error), Some(date)) if !matches!(error, KubeconfigError::Foreign(_)) => {
            let kept = format!("{}.bursar-backup-{date}", name.display());
            directory.keep_as(name, Path::new(&kept))?;
            backup = Some(kept);
            kubeconfig::merge("", entries, taken).map_err(|error| unusable(path.clone(), &error))?
        }
        (Err(error), _) => return Err(unusable(path, &error)),
    };
    let changed = match (&content, &existing) {
        (Some(content), _) => {
            directory.replace(name, content.as_bytes())?;
            true
        }
        (None, Some(existing)) => directory.make_private(name, existing)?,
        (None, None) => false,
    };
    let now = match (&content, &existing) {
        (Some(content), _) => content.as_str(),
        (None, Some(existing)) => text(existing).unwrap_or_default(),
        (None, None) => "",
    };
    let digest = kubeconfig::entries_digest(now, &names).map_err(|error| unusable(path, &error))?;
    let entries_digest =
        digest.ok_or_else(|| HomeError::BadRequest { detail: "the entries name each other wrongly".into() })?;
    Ok(Written { changed: changed || written, entries_digest, backup })
}

fn remove(home: &Home, file: &Path, names: &EntryNames) -> Result<Answer, HomeError> {
    let gone = remove_token(home, file, &names.user)?;
    let nothing = Ok(Answer::Removed { changed: gone });
    let name = name_of(file);
    let Some(directory) = home.directory_of(file)? else { return nothing };
    let Some(existing) = directory.read(name)? else { return nothing };
    let path = directory.path_of(name);
    let removed = text(&existing).and_then(|text| kubeconfig::remove(text, names));
    match removed.map_err(|error| unusable(path, &error))? {
        None => nothing,
        Some(content) => {
            directory.replace(name, content.as_bytes())?;
            Ok(Answer::Removed { changed: true })
        }
    }
}

fn ssh_keys(home: &Home, keys: &[String]) -> Result<Answer, HomeError> {
    let keys = keys.iter().map(|line| SshKey::parse(line).map_err(|why| format!("a key {why}")));
    let keys = keys.collect::<Result<Vec<_>, _>>().map_err(|detail| HomeError::BadRequest { detail })?;
    let (file, nothing) = (Path::new(AUTHORIZED_KEYS), Ok(Answer::SshKeys { changed: false }));
    let directory = match home.directory_of(file)? {
        Some(directory) => directory,
        None if keys.is_empty() => return nothing,
        None => home.make_directory_of(file)?,
    };
    let name = name_of(file);
    let existing = directory.read(name)?;
    let content = existing.as_ref().map_or(&[][..], |existing| &existing.content);
    let path = || directory.path_of(name);
    let merged =
        authorized_keys::merge(content, &keys).map_err(|detail| HomeError::BrokenBlock { path: path(), detail })?;
    match merged {
        None => nothing,
        Some(merged) => directory.replace(name, &merged).map(|()| Answer::SshKeys { changed: true }),
    }
}
