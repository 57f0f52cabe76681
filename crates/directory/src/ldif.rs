//! Reads entries from LDIF files (RFC 2849), as `slapcat`, `ldapsearch -LLL` and people write them.
//!
//! Only content records are supported. A change record, a value in another file (`<`) or an invalid line makes the read
//! partial; the problem names the file and the line. The entries before that line are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bursar_core::errors::chain;
use bursar_core::snapshot::dn::Dn;
use bursar_core::snapshot::freshness::Stamp;

use crate::entry::assemble::{KINDS, RawRead, RawTree};
use crate::entry::filter::Filter;
use crate::entry::raw::RawEntry;
use crate::ldap::freshness::{STAMPS, newest_changes, witnesses};
use crate::source::{LdifConfig, SourceConfig};
use crate::sync::kept::ServerHistory;

/// Why not all entries of a file could be read.
#[derive(Debug, thiserror::Error)]
pub enum LdifError {
    #[error("{}: cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A folder without LDIF files is a wrong path, not an empty directory.
    #[error("{} contains no *.ldif file", path.display())]
    EmptyFolder { path: PathBuf },
    /// Another program writes, adds or removes the file.
    #[error("{} changed during the read; write a new file and rename it over the old one", path.display())]
    Written { path: PathBuf },
    /// A line that is not valid LDIF.
    #[error("line {line}: {why}")]
    Malformed {
        /// The number of the line, from 1.
        line: usize,
        why: String,
    },
}

/// Reads all files, and selects the entries of each tree. If files that a server wrote are older than files that were
/// read before, none of their entries is used.
pub async fn read(config: &LdifConfig, source: &SourceConfig, history: &ServerHistory) -> RawRead {
    let mut raw = RawRead::default();
    let mut entries = Vec::new();
    let mut versions = Versions::new();
    for path in &config.paths {
        match files(path).await {
            Ok(files) => {
                for file in files {
                    if let Some(version) = read_file(&file, &mut entries, &mut raw.problems).await {
                        versions.insert(file, version);
                    }
                }
            }
            Err(error) => raw.problems.push(chain(&error)),
        }
    }
    // An entry that moved to another file meanwhile may have been in neither file when it was read.
    if raw.problems.is_empty()
        && let Err(error) = unchanged(&config.paths, &versions).await
    {
        raw.problems.push(chain(&error));
    }
    raw.server = config.paths.first().map(|path| path.display().to_string());
    let mut seen = BTreeSet::new();
    let stamped = |mut entry: RawEntry| {
        entry.stamp = STAMPS.iter().flat_map(|name| entry.texts(name)).filter_map(Stamp::parse).max();
        (Dn::parse(&entry.dn), Arc::new(entry))
    };
    let entries: Vec<(Dn, Arc<RawEntry>)> = entries.into_iter().map(stamped).collect();
    for (dn, entry) in &entries {
        if !seen.insert(dn) {
            raw.problems.push(format!("{} occurs twice", entry.dn));
        }
    }
    let whole = raw.problems.is_empty();
    for kind in KINDS {
        let Some(tree) = source.tree(kind) else { continue };
        let base = Dn::parse(&tree.base);
        let beneath: Vec<_> = entries.iter().filter(|(dn, _)| dn.is_within(&base)).collect();
        if whole && beneath.is_empty() {
            raw.problems.push(format!("no such base: {}", tree.base));
        }
        let Some(filter) = Filter::parse(&tree.filter) else {
            raw.problems.push(format!("{kind}s: filter {} cannot be used on files", tree.filter));
            raw.trees.insert(kind, RawTree::default());
            continue;
        };
        let entries =
            beneath.into_iter().filter(|(_, entry)| filter.matches(entry)).map(|(_, entry)| Arc::clone(entry));
        raw.trees.insert(kind, RawTree { entries: entries.collect(), whole });
    }
    raw.marks.changes = entries.iter().flat_map(|(dn, entry)| newest_changes(entry, dn)).collect();
    raw.marks.entries = witnesses(source, raw.trees.values().flat_map(|tree| &tree.entries), history);
    match history.marks.behind(&raw.marks) {
        Some(behind) if !history.marks.is_slow_clock(&raw.marks, history.now) => {
            let server = raw.server.take().unwrap_or_default();
            RawRead { problems: raw.problems, behind: vec![(server, behind)], ..RawRead::default() }
        }
        _ => raw,
    }
}

/// Returns `path`, or the `*.ldif` files in it sorted by name.
async fn files(path: &Path) -> Result<Vec<PathBuf>, LdifError> {
    let failed = |source| LdifError::Read { path: path.to_path_buf(), source };
    if !tokio::fs::metadata(path).await.map_err(failed)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut folder = tokio::fs::read_dir(path).await.map_err(failed)?;
    let mut files = Vec::new();
    while let Some(item) = folder.next_entry().await.map_err(failed)? {
        if item.path().extension().is_some_and(|extension| extension.eq_ignore_ascii_case("ldif")) {
            files.push(item.path());
        }
    }
    files.sort();
    if files.is_empty() { Err(LdifError::EmptyFolder { path: path.to_path_buf() }) } else { Ok(files) }
}

/// The properties of a file that change if it is written or replaced.
#[derive(Debug, PartialEq)]
struct Version {
    length: u64,
    modified: Option<SystemTime>,
}

impl Version {
    fn of(file: &Metadata) -> Self {
        Self { length: file.len(), modified: file.modified().ok() }
    }
}

/// The version of each file when it was read.
type Versions = BTreeMap<PathBuf, Version>;

/// Checks that the paths have the same files as at the read, each in the same version.
async fn unchanged(paths: &[PathBuf], read: &Versions) -> Result<(), LdifError> {
    let mut now = Versions::new();
    for path in paths {
        for file in files(path).await? {
            let failed = |source| LdifError::Read { path: file.clone(), source };
            let version = Version::of(&tokio::fs::metadata(&file).await.map_err(failed)?);
            now.insert(file, version);
        }
    }
    let mut every = read.keys().chain(now.keys());
    match every.find(|file| read.get(*file) != now.get(*file)) {
        Some(file) => Err(LdifError::Written { path: file.clone() }),
        None => Ok(()),
    }
}

/// Appends the entries of a file to `entries`. Returns the file's version, or `None` if the file cannot be read.
async fn read_file(file: &Path, entries: &mut Vec<RawEntry>, problems: &mut Vec<String>) -> Option<Version> {
    match settled(file).await {
        Err(error) => {
            problems.push(chain(&error));
            None
        }
        Ok((bytes, version)) => {
            let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => &bytes[..=end],
                None => &[],
            };
            if let Err(error) = parse(whole, entries) {
                problems.push(match error {
                    LdifError::Malformed { line, why } => format!("{}:{line}: {why}", file.display()),
                    other => chain(&other),
                });
            } else if whole.len() < bytes.len() {
                // The last record is incomplete.
                entries.pop();
                problems.push(format!(
                    "{}: its last line has no line break, as if it were truncated; add one if it is complete",
                    file.display()
                ));
            }
            Some(version)
        }
    }
}

/// A file that was modified more recently than this may still be written: a copy over a network can stall for seconds.
const YOUNG: Duration = Duration::from_secs(5);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(250);
/// After this many checks, a file that was new at the first check is old enough. If it is still being written, the next
/// cycle reads it.
const TRIES: usize = 28;

/// Returns the content and the version of a file after its last write.
async fn settled(file: &Path) -> Result<(Vec<u8>, Version), LdifError> {
    let failed = |source| LdifError::Read { path: file.to_path_buf(), source };
    for _ in 0..TRIES {
        let before = tokio::fs::metadata(file).await.map_err(failed)?;
        if !is_young(&before) {
            let bytes = tokio::fs::read(file).await.map_err(failed)?;
            let after = Version::of(&tokio::fs::metadata(file).await.map_err(failed)?);
            if after == Version::of(&before) {
                return Ok((bytes, after));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(LdifError::Written { path: file.to_path_buf() })
}

#[expect(clippy::disallowed_methods, reason = "the age of a file is not a decision about the directory")]
fn is_young(file: &Metadata) -> bool {
    // If the time is in the future, the age is unknown. Waiting would take too long, so the file is read.
    let age = file.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
    age.is_some_and(|age| age < YOUNG)
}

/// Appends the content records of `bytes` to `entries`, up to the first invalid line.
pub fn parse(bytes: &[u8], entries: &mut Vec<RawEntry>) -> Result<(), LdifError> {
    let mut record: Option<RawEntry> = None;
    let mut begun = false;
    for (line, text) in unfold(bytes) {
        let wrong = |why: String| LdifError::Malformed { line, why };
        if text.is_empty() {
            entries.extend(record.take());
            continue;
        }
        if text.starts_with(b"#") {
            continue;
        }
        let (name, value) = attribute(&text).map_err(wrong)?;
        match (&mut record, name.as_str()) {
            (None, "version") if !begun => {
                if value != b"1" {
                    return Err(wrong("only version 1 is known".to_owned()));
                }
            }
            (None, "dn") => {
                let dn = String::from_utf8(value).map_err(|_| wrong("the dn is not UTF-8".to_owned()))?;
                record = Some(RawEntry::new(dn));
            }
            (None, _) => return Err(wrong(format!("an entry begins with dn:, not with {name}:"))),
            (Some(_), "changetype" | "control") => {
                return Err(wrong(
                    "this is a change record; only content records can be read, as in the output of slapcat".to_owned(),
                ));
            }
            (Some(_), "dn") => return Err(wrong("an empty line is missing before this dn".to_owned())),
            (Some(entry), _) => entry.add(name.as_bytes(), &value),
        }
        begun = true;
    }
    entries.extend(record);
    Ok(())
}

/// Returns the lines with their numbers. A line that begins with a space is joined to the one before.
fn unfold(bytes: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines: Vec<(usize, Vec<u8>)> = Vec::new();
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match (line.strip_prefix(b" "), lines.last_mut()) {
            (Some(rest), Some((_, last))) if !last.is_empty() => last.extend_from_slice(rest),
            _ => lines.push((at + 1, line.to_vec())),
        }
    }
    lines
}

/// Parses `name: value` or `name:: base64`. Returns the name in lower case.
fn attribute(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or("neither name: value, nor a comment")?;
    let (name, rest) = (&line[..colon], &line[colon + 1..]);
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b';');
    if name.is_empty() || !name.iter().all(plain) {
        return Err(format!("{:?} is not an attribute", String::from_utf8_lossy(name)));
    }
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    match rest.first() {
        Some(b'<') => Err(format!("{name}: a value in another file is not read")),
        Some(b':') => match STANDARD.decode(rest[1..].trim_ascii()) {
            Ok(value) => Ok((name, value)),
            Err(error) => Err(format!("{name}: not base64: {error}")),
        },
        _ => Ok((name, rest.iter().skip_while(|byte| **byte == b' ').copied().collect())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> (Vec<RawEntry>, Option<String>) {
        let mut entries = Vec::new();
        let error = parse(text.as_bytes(), &mut entries).err();
        (entries, error.map(|error| error.to_string()))
    }

    #[test]
    fn lines_are_unfolded_and_decoded_and_comments_skipped() {
        let text = "version: 1\r\n# a comment\r\n  that goes on\r\ndn: cn=a,\r\n dc=x\r\ncn:a\r\nsn:: THXEjWnEhw==\r\n\
                    description:  two\r\n   lines\r\n\r\n\r\ndn:: Y249Yg==\r\nCN: b\r\ncn: c\r\n";
        let (entries, error) = parsed(text);
        assert_eq!(error, None);
        let first = [("cn", "a"), ("sn", "Lučić"), ("description", "two  lines")];
        let expected =
            [RawEntry::from_texts("cn=a,dc=x", &first), RawEntry::from_texts("cn=b", &[("cn", "b"), ("cn", "c")])];
        assert_eq!(entries, expected);
    }

    #[test]
    fn a_wrong_record_is_reported_with_its_line_and_the_others_are_kept() {
        for (text, expected) in [
            ("dn: cn=a\n\ncn: b\n", "line 3: an entry begins with dn:, not with cn:"),
            ("dn: cn=a\nnonsense\n", "line 2: neither name: value, nor a comment"),
            ("dn: cn=a\nb c: d\n", "line 2: \"b c\" is not an attribute"),
            ("dn: cn=a\njpegPhoto:< file:///etc/passwd\n", "line 2: jpegphoto: a value in another file is not read"),
            ("version: 2\n", "line 1: only version 1 is known"),
            ("dn: cn=a\ndn: cn=b\n", "line 2: an empty line is missing before this dn"),
        ] {
            assert_eq!(parsed(text).1.as_deref(), Some(expected));
        }
        assert!(parsed("dn: cn=a\nchangetype: delete\n").1.is_some_and(|why| why.contains("change record")));
        assert!(parsed("dn: cn=a\ncn:: ###\n").1.is_some_and(|why| why.starts_with("line 2: cn: not base64")));
        let (entries, error) = parsed("dn: cn=a\ncn: a\n\ndn: cn=b\ncn: b\n\nbroken");
        assert_eq!((entries.len(), error.is_some()), (2, true));
    }

    fn source(file: &Path) -> SourceConfig {
        SourceConfig {
            kind: crate::source::SourceKind::Ldif(LdifConfig { paths: vec![file.to_owned()] }),
            users: Some(crate::source::Tree { filter: "(cn=*)".to_owned(), ..tree() }),
            ..SourceConfig::of_people(crate::source::Preset::Rfc2307)
        }
    }

    fn tree() -> crate::source::Tree {
        crate::source::Preset::Rfc2307.tree(bursar_core::identity::AccountKind::User, "dc=x")
    }

    async fn read_file_alone(file: &Path) -> (usize, Vec<String>) {
        let config = LdifConfig { paths: vec![file.to_owned()] };
        let read = read(&config, &source(file), &ServerHistory::default()).await;
        (read.trees.values().map(|tree| tree.entries.len()).sum(), read.problems)
    }

    const FIRST: &str = "dn: cn=a,dc=x\ncn: a\n\n";
    const SECOND: &str = "dn: cn=b,dc=x\ncn: b\nhomeDirectory: /home/b\n";

    #[tokio::test]
    async fn a_file_is_read_when_a_stalled_copy_is_complete() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("people.ldif");
        std::fs::write(&file, FIRST).expect("the first half can be written");
        let goes_on = async {
            tokio::time::sleep(PAUSE * 4).await;
            tokio::fs::write(&file, FIRST.to_owned() + SECOND).await.expect("the second half can be written");
        };
        let ((entries, problems), ()) = tokio::join!(read_file_alone(&file), goes_on);
        assert_eq!((entries, problems), (2, Vec::new()));
    }

    #[tokio::test]
    async fn a_folder_whose_files_change_during_the_read_is_incomplete() {
        type Step = fn(&Path);
        const MOVED: &str = "dn: cn=c,dc=x\ncn: c\n\n";
        let changes: [(Step, bool); 4] = [
            (|_| (), false),
            (|folder| std::fs::write(folder.join("c.ldif"), MOVED).expect("the file can be written"), true),
            (|folder| std::fs::write(folder.join("a.ldif"), MOVED).expect("the file can be written"), true),
            (|folder| std::fs::remove_file(folder.join("a.ldif")).expect("the file can be removed"), true),
        ];
        for (change, is_noticed) in changes {
            let folder = tempfile::tempdir().expect("a folder can be made");
            // The second file is too young, so the first one is read before the change, and the second one after it.
            for (name, text, age) in [("a.ldif", FIRST, YOUNG), ("b.ldif", SECOND, YOUNG / 2)] {
                let file = folder.path().join(name);
                std::fs::write(&file, text).expect("the file can be written");
                let opened = std::fs::File::options().append(true).open(&file).expect("the file can be opened");
                let written = opened.metadata().and_then(|file| file.modified()).expect("the file has a time");
                opened.set_modified(written - age).expect("the file can be dated back");
            }
            let goes_on = async {
                tokio::time::sleep(PAUSE * 4).await;
                change(folder.path());
            };
            let ((_, problems), ()) = tokio::join!(read_file_alone(folder.path()), goes_on);
            assert_eq!(problems.len(), usize::from(is_noticed), "{problems:?}");
            assert!(problems.iter().all(|problem| problem.contains("changed during the read")), "{problems:?}");
        }
    }

    #[tokio::test]
    async fn a_file_that_ends_within_a_line_is_incomplete() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("people.ldif");
        let text = FIRST.to_owned() + SECOND;
        std::fs::write(&file, &text[..text.len() - 2]).expect("the file can be written");
        let opened = std::fs::File::options().append(true).open(&file).expect("the file can be opened");
        opened.set_modified(std::time::UNIX_EPOCH).expect("the file can be dated back");
        let (entries, problems) = read_file_alone(&file).await;
        assert_eq!(entries, 1, "an entry with a truncated home is left out");
        assert!(problems[0].contains("its last line has no line break"), "{problems:?}");
    }

    #[tokio::test]
    async fn a_file_that_is_older_than_the_last_one_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = folder.path().join("people.ldif");
        let config = LdifConfig { paths: vec![file.clone()] };
        let of = |csn: &str, changed: &str| {
            format!(
                "dn: dc=x\ndc: x\ncontextCSN: {csn}.000000Z#000000#000#000000\n\n\
                 dn: cn=a,dc=x\ncn: a\nentryUUID: a\nentryCSN: {changed}.000000Z#000000#000#000000\n\n"
            )
        };
        let mut history = ServerHistory::default();
        for (text, is_used) in [
            (of("20260902000000", "20260901000000"), true),
            // The older file still has a deleted entry, or an entry's former state.
            (of("20260901000000", "20260901000000"), false),
            (of("20260903000000", "20260831000000"), false),
            (of("20260903000000", "20260902000000"), true),
            (FIRST.to_owned(), true),
        ] {
            std::fs::write(&file, &text).expect("the file can be written");
            let opened = std::fs::File::options().append(true).open(&file).expect("the file can be opened");
            opened.set_modified(std::time::UNIX_EPOCH).expect("the file can be dated back");
            let read = read(&config, &source(&file), &history).await;
            assert_eq!((read.server.is_some(), read.behind.is_empty()), (is_used, is_used), "{text}");
            if is_used {
                let now = "2026-11-26T00:00:00Z".parse().expect("the time is valid");
                history.marks = Arc::new(history.marks.advanced(&read.marks, now));
            }
        }
    }

    fn write(entry: &RawEntry, fold_at: usize) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &[u8]| {
            let line = format!("{name}:: {}", STANDARD.encode(value));
            let bytes: Vec<char> = line.chars().collect();
            for (at, part) in bytes.chunks(fold_at).enumerate() {
                text.push_str(if at == 0 { "" } else { " " });
                text.extend(part);
                text.push('\n');
            }
        };
        line("dn", entry.dn.as_bytes());
        for (name, value) in entry.pairs() {
            line(&String::from_utf8_lossy(name), value);
        }
        text.push('\n');
        text
    }

    proptest! {
        #[test]
        fn written_entries_are_read_back(
            dn in "cn=\\PC{1,40}",
            pairs in proptest::collection::vec(("[a-c]{1,3}", proptest::collection::vec(any::<u8>(), 0..60)), 0..9),
            fold_at in 12..80_usize,
        ) {
            let mut entry = RawEntry::new(dn);
            for (name, value) in &pairs {
                entry.add(name.as_bytes(), value);
            }
            let text = write(&entry, fold_at).repeat(2);
            prop_assert_eq!(parsed(&text), (vec![entry.clone(), entry], None));
        }

        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, &mut Vec::new());
        }
    }
}
