//! Writes the manual pages: the help of the arguments, with examples, files and references to other pages.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::arguments;

/// Examples by command: what to type, and what it does.
const EXAMPLES: [(&str, &[(&str, &str)]); 27] = [
    ("", &[("bursar plan", "shows what the next cycle does"), ("bursar status", "shows the state of everything")]),
    (
        "init",
        &[
            (
                "bursar init --admin-kubeconfig ~/.kube/config --cluster prod",
                "gives the daemon its access to cluster prod",
            ),
            ("bursar init --admin-kubeconfig FILE --cluster prod --dry-run", "prints the objects, for review"),
        ],
    ),
    ("check", &[("bursar check", "checks /etc/bursar/bursar.toml and contacts nothing")]),
    ("doctor", &[("bursar doctor", "checks every connection, as root or user bursar")]),
    (
        "plan",
        &[
            ("bursar plan", "exit code 0: nothing to do; 2: changes; 3: a part of them is refused"),
            (
                "sudo bursar plan --config new.toml",
                "who gains and who loses access under another configuration, and in how many cycles",
            ),
            ("bursar plan --at 2027-03-01", "what falls due until that day"),
            ("bursar plan --json | jq .actions[0]", "the first action, as JSON"),
        ],
    ),
    (
        "sync",
        &[
            ("bursar sync", "asks the daemon for a cycle and waits for its end"),
            ("bursar sync --once", "one cycle without a daemon"),
        ],
    ),
    ("status", &[("bursar status --json | jq .failing", "what fails, as JSON")]),
    ("tools", &[("bursar tools --failing", "lists tools with a failing step")]),
    ("users", &[("bursar users --suspended", "lists suspended people")]),
    ("show", &[("bursar show tool foo", "everything about tool foo"), ("bursar show", "your own account")]),
    ("why", &[("bursar why tool foo", "directory attribute, rule and object; or the missing step")]),
    (
        "who",
        &[
            ("bursar who 52503", "the account with this uid, its namespaces and people"),
            (
                "bursar who X509SHA256=9a19ac7c… --at 2026-05-03",
                "the account and the people behind a certificate on that day",
            ),
            ("bursar who tool-foo/web-1", "the account that owns the namespace, and the pod's uids and node"),
            ("bursar who foo.tools.example.org", "which tenants may serve this host"),
        ],
    ),
    (
        "report",
        &[
            ("bursar report --out report.html", "one page: accounts, access, exceptions, failures, changes"),
            ("bursar report --out - --json", "the same as JSON"),
        ],
    ),
    ("history", &[("bursar history tool foo --last 20", "the newest 20 events of tool foo")]),
    (
        "certs",
        &[
            ("bursar certs --expiring 3d", "what expires within three days"),
            ("bursar certs who X509SHA256=9a19ac7c…", "the holder of the certificate that an audit event names"),
        ],
    ),
    (
        "revoke",
        &[(
            "bursar revoke tool foo --reason \"laptop stolen\"",
            "older credentials are refused at once; the proof is printed",
        )],
    ),
    (
        "suspend",
        &[
            ("bursar suspend tool foo --reason mining --ticket T9", "takes away the access until bursar resume"),
            (
                "bursar suspend tool foo --reason mining --until 2027-01-01",
                "the same until a day; bursar resume ends it earlier",
            ),
        ],
    ),
    ("resume", &[("bursar resume tool foo", "ends an ordered suspension")]),
    ("hold", &[("bursar hold tool foo --reason audit", "leaves the account as it is, except for security orders")]),
    (
        "quota",
        &[
            ("bursar quota set tool foo limits.cpu=8 --ticket T123 --until 2027-01-01", "another amount until a day"),
            ("bursar quota import FILE", "sets all overrides that a file lists"),
        ],
    ),
    (
        "exception",
        &[(
            "bursar exception set tool foo images --ticket T123 --until 2027-01-01",
            "excepts tool foo from rule images until a day",
        )],
    ),
    ("approve", &[("bursar approve 7f3a9c21", "allows exactly the refused changes, once, within the hour")]),
    ("adopt", &[("bursar adopt namespace tool-foo --tool foo", "takes over an existing namespace")]),
    ("ensure", &[("bursar ensure user alice --timeout 30s", "waits for a working kubeconfig, for login hooks")]),
    (
        "webhook",
        &[
            ("bursar webhook install --cluster prod", "installs the webhook in the cluster"),
            ("bursar webhook selftest --cluster prod", "sends dry-run requests that must pass or be refused"),
            ("bursar webhook audit --config new.toml", "which existing objects break rules of a new configuration"),
        ],
    ),
    ("takeover", &[("bursar takeover --admin-kubeconfig FILE", "makes this host the owner of the clusters")]),
    (
        "ledger",
        &[
            ("bursar ledger backup FILE", "copies the ledger, also while the daemon runs"),
            ("bursar ledger verify", "proves that the history was not changed"),
        ],
    ),
];

/// Files and sockets of the programs.
const FILES: [(&str, &str); 6] = [
    ("/etc/bursar/bursar.toml", "the configuration, bursar.toml(5)"),
    ("/etc/bursar/homed.env", "options of bursar-homed"),
    ("/run/bursar/control.sock", "the socket on which bursard answers"),
    ("/var/lib/bursar/ledger.db", "the ledger, SQLite"),
    ("/var/lib/bursar/seal.key", "the key that seals namespaces; keep its backup apart from those of the ledger"),
    ("/var/lib/bursar/backups/", "nightly copies of the ledger"),
];

/// The sample configuration, whose comments describe every key.
const CONFIGURATION: &str = include_str!("../../config/bursar.toml");

/// Writes every page into `folder`.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    clap_mangen::generate_to(arguments::ungrouped(), folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_none_or(|section| section != "1") || !name.starts_with("bursar") {
            continue;
        }
        let page = fs::read_to_string(&path)?;
        fs::write(&path, page + &more(name.trim_start_matches("bursar").trim_start_matches('-')))?;
    }
    fs::write(folder.join("bursard.8"), daemon())?;
    fs::write(folder.join("bursar.toml.5"), configuration())
}

/// Returns the sections that follow the options on the page of a command.
pub(super) fn more(command: &str) -> String {
    let mut text = String::new();
    let examples = EXAMPLES.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, examples)| examples);
    if !examples.is_empty() {
        text.push_str(".SH EXAMPLES\n");
        for (typed, what) in examples {
            listed(&mut text, typed, what);
        }
    }
    text.push_str(".SH FILES\n");
    for (file, what) in FILES {
        listed(&mut text, file, what);
    }
    let parent = if command.is_empty() { "" } else { ".BR bursar (1),\n" };
    let _ = write!(text, ".SH SEE ALSO\n{parent}.BR bursard (8),\n.BR bursar.toml (5),\n/usr/share/doc/bursar\n");
    text
}

fn listed(text: &mut String, head: &str, what: &str) {
    let _ = write!(text, ".TP\n\\fB{}\\fR\n{}\n", escaped(head), escaped(what));
}

/// Escapes text for roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn daemon() -> String {
    let mut text = String::from(
        ".TH bursard 8\n.SH NAME\nbursard \\- keeps the accounts of a shared Kubernetes cluster\n.SH SYNOPSIS\n\
         .B bursard\n[\\fB\\-\\-config\\fR FILE] [\\fB\\-\\-log\\-format\\fR plain|json]\n.SH DESCRIPTION\n\
         The daemon reads the directories, compares the desired state with the state of the clusters, and carries out the \
         changes that the limits allow. It runs as user bursar, without a capability;\n.B bursar\\-homed\nwrites in homes. \
         Stopping it changes nothing in a cluster.\n.SH OPTIONS\n",
    );
    listed(&mut text, "--config FILE", "the configuration; also BURSAR_CONFIG");
    listed(&mut text, "--log-format plain|json", "the format of the log");
    text.push_str(".SH SIGNALS\n");
    listed(&mut text, "SIGHUP", "reloads the configuration if it is valid; systemctl reload bursard checks it first");
    listed(&mut text, "SIGTERM", "finishes the work in progress, within a minute, and exits");
    text.push_str(".SH EXIT STATUS\n0 stopped, 1 failed, 64 usage, 75 another process has the ledger, 77 it cannot become user bursar, 78 configuration.\n");
    text.push_str(".SH EXAMPLES\n");
    listed(&mut text, "systemctl enable --now bursard", "starts the daemon, now and at boot");
    listed(&mut text, "journalctl -u bursard", "shows the daemon's log");
    text.push_str(".SH FILES\n");
    for (file, what) in FILES {
        listed(&mut text, file, what);
    }
    text.push_str(".SH SEE ALSO\n.BR bursar (1),\n.BR bursar.toml (5),\n/usr/share/doc/bursar\n");
    text
}

fn configuration() -> String {
    let mut text = String::from(
        ".TH bursar.toml 5\n.SH NAME\nbursar.toml \\- configuration of bursard and bursar\n.SH DESCRIPTION\n\
         Every key with its default, as in /usr/share/doc/bursar/bursar.toml.\n.nf\n",
    );
    for line in CONFIGURATION.lines() {
        text.push_str(&escaped(line));
        text.push('\n');
    }
    text.push_str(".fi\n.SH EXAMPLES\n");
    listed(&mut text, "bursar check", "lists all errors in the configuration");
    listed(&mut text, "sudo bursar plan --config new.toml", "shows what another configuration would change");
    text.push_str(".SH FILES\n");
    for (file, what) in FILES {
        listed(&mut text, file, what);
    }
    text.push_str(".SH SEE ALSO\n.BR bursar (1),\n.BR bursard (8)\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_examples_files_and_other_pages() {
        let folder = std::env::temp_dir().join(format!("bursar-manual-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        write(&folder).expect("the folder is writable");
        for page in ["bursar.1", "bursar-plan.1", "bursar-quota.1", "bursard.8", "bursar.toml.5"] {
            let text = fs::read_to_string(folder.join(page)).expect(page);
            for section in [".SH EXAMPLES", ".SH FILES", ".SH SEE ALSO"] {
                assert!(text.contains(section), "{page} lacks {section}");
            }
        }
        let nested = fs::read_to_string(folder.join("bursar-quota-set.1")).expect("the page is readable");
        assert!(nested.contains(".SH SEE ALSO"), "{nested}");
        fs::remove_dir_all(&folder).expect("the file can be removed");
    }

    #[test]
    fn every_example_is_an_existing_command() {
        let command = arguments::ungrouped();
        for (name, examples) in EXAMPLES {
            assert!(name.is_empty() || command.find_subcommand(name).is_some(), "{name}");
            for (typed, _) in examples {
                let words = typed.split_whitespace().skip_while(|word| *word == "sudo").nth(1).unwrap_or_default();
                assert!(command.find_subcommand(words).is_some(), "{typed}");
            }
        }
    }
}
