//! Writes the manual pages: the help of the arguments, with examples, files and references to other pages.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use clap::CommandFactory as _;

use super::arguments;

/// What to type, and what it does. The page of a command shows the examples that begin with its words.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "bursar init --admin-kubeconfig ~/.kube/config --cluster prod",
        "gives the daemon its access to cluster prod; again after an upgrade",
    ),
    ("bursar init --admin-kubeconfig FILE --cluster prod --dry-run", "prints the objects, for review"),
    ("bursar check", "checks /etc/bursar/bursar.toml and contacts nothing"),
    ("bursar doctor", "checks every connection, as root or user bursar"),
    ("bursar plan", "exit code 0: nothing to do; 2: changes; 3: a part of them is refused"),
    (
        "sudo bursar plan --config new.toml",
        "who gains and who loses access under another configuration, and in how many cycles",
    ),
    ("bursar plan --at 2027-03-01", "what falls due until that day"),
    ("bursar plan --json | jq .actions[0]", "the first action, as JSON"),
    ("bursar sync", "asks the daemon for a cycle and waits until all sources have answered"),
    ("bursar sync --once", "one cycle without a daemon"),
    ("bursar status", "sources, clusters, failures and refusals"),
    ("bursar status --json | jq .failing", "what fails, as JSON"),
    ("bursar tools --failing", "lists tools with a failing step"),
    ("bursar users --suspended", "lists suspended people"),
    ("bursar show tool foo", "everything about tool foo"),
    ("bursar show", "your own account"),
    ("bursar why tool foo", "directory attribute, rule and object; or the missing step"),
    ("bursar who 52503", "the account with this uid, its namespaces and people"),
    ("bursar who X509SHA256=9a19ac7c… --at 2026-05-03", "the account and the people behind a certificate on that day"),
    ("bursar who tool-foo/web-1", "the account that owns the namespace, and the pod's uids and node"),
    ("bursar who foo.tools.example.org", "which tenants may serve this host"),
    ("bursar report --out report.html", "one page: accounts, access, exceptions, failures, changes"),
    ("bursar report --out - --json", "the same as JSON"),
    ("bursar history tool foo --last 20", "the newest 20 events of tool foo"),
    ("bursar certs --expiring 3d", "what expires within three days"),
    ("bursar certs who X509SHA256=9a19ac7c…", "the holder of the certificate that an audit event names"),
    (
        "bursar revoke tool foo --reason \"laptop stolen\"",
        "older credentials are refused at once; the proof is printed",
    ),
    ("bursar suspend tool foo --reason mining --ticket T9", "takes away the access until bursar resume"),
    (
        "bursar suspend tool foo --reason mining --until 2027-01-01",
        "the same until a day; bursar resume ends it earlier",
    ),
    ("bursar resume tool foo", "ends an ordered suspension"),
    ("bursar hold tool foo --reason audit", "keeps the account unchanged, except for bursar suspend and bursar revoke"),
    ("bursar release tool foo", "ends the hold"),
    ("bursar quota set tool foo limits.cpu=8 --ticket T123 --until 2027-01-01", "another amount until a day"),
    ("bursar quota unset tool foo limits.cpu", "the amount of the class again"),
    ("bursar quota list", "all overrides with their tickets and ends"),
    ("bursar quota import FILE", "sets all overrides that a file lists"),
    (
        "bursar exception set tool foo images --ticket T123 --until 2027-01-01",
        "excepts tool foo from rule images until a day",
    ),
    ("bursar exception unset tool foo images --ticket T124", "the rule applies again"),
    ("bursar exception list", "all exceptions with their tickets and ends"),
    ("bursar approve 7f3a9c21", "allows exactly the refused changes, once, within the hour"),
    ("bursar adopt namespace tool-foo --tool foo", "takes over an existing namespace"),
    ("bursar adopt uid tool foo", "accepts the new uid that the directory has"),
    ("bursar adopt account tool foo", "another entry of the directory gets the account"),
    ("bursar adopt object rolebinding tool-foo/bursar-tenant", "takes over an object that somebody else made"),
    ("bursar adopt import FILE", "carries out all adoptions that a file lists"),
    ("bursar directory accept people --reason \"server restored\"", "accepts the next read as it is"),
    ("bursar directory diff people --config new.toml", "exit code 0: no difference; 2: differences"),
    ("bursar directory imported", "accounts that seem to have been imported again"),
    ("bursar ensure user alice --timeout 30s", "waits for a working kubeconfig, for login hooks"),
    ("bursar home show tool foo", "which entries of the kubeconfig belong to Bursar"),
    ("bursar home restore tool foo", "restores the user's part of the file that Bursar replaced"),
    ("bursar webhook install --cluster prod", "installs the webhook in the cluster"),
    (
        "bursar webhook install --cluster prod --url https://10.0.0.5:9443 --write /etc/bursar-webhook",
        "for a webhook outside the cluster; start unit bursar-webhook first",
    ),
    ("bursar webhook selftest --cluster prod", "sends dry-run requests that must pass or be refused"),
    ("bursar webhook audit --config new.toml", "which existing objects break rules of a new configuration"),
    ("bursar webhook manifests --cluster prod", "prints the objects, for review"),
    ("bursar webhook uninstall --cluster prod", "removes the webhook; the backstop stays"),
    (
        "bursar approver install --cluster prod --admin-kubeconfig FILE",
        "takes the right to approve away from the daemon",
    ),
    ("bursar approver uninstall --cluster prod --admin-kubeconfig FILE", "gives the right back to the daemon"),
    ("bursar archive list tool foo", "the archives of tool foo"),
    ("bursar archive show FILE", "verifies an archive and lists its objects"),
    ("bursar archive apply FILE --identity key.txt", "restores the objects, with their Secrets"),
    ("bursar takeover --admin-kubeconfig FILE", "makes this host the owner of the clusters"),
    ("bursar uninstall --cluster prod --admin-kubeconfig FILE --dry-run", "lists what would be removed"),
    (
        "bursar uninstall --cluster prod --admin-kubeconfig FILE",
        "removes Bursar from the cluster; tenants keep their namespaces and data",
    ),
    ("bursar ledger backup FILE", "copies the ledger, also while the daemon runs"),
    ("bursar ledger verify", "checks that the history was not changed"),
    ("bursar ledger restore FILE", "replaces a damaged ledger with a backup"),
    ("bursar ledger rebuild", "rebuilds a lost ledger from directories, clusters and homes"),
    ("bursar completions bash >/etc/bash_completion.d/bursar", "installs the completions for bash"),
    ("bursar man --out FOLDER", "writes all manual pages into a folder"),
];
/// The meanings of exit codes that are specific to a command.
const EXITS: &[(&str, &[(&str, &str)])] = &[
    (
        "plan",
        &[("0", "nothing to do"), ("2", "changes are pending"), ("3", "changes are pending, and a limit refuses some")],
    ),
    (
        "sync",
        &[
            ("0", "everything is as it should be"),
            ("1", "some accounts fail, a source was not read completely, or a cluster or the realm does not answer"),
            ("3", "a limit held something back; 3 takes precedence over 1"),
            ("75", "with --once: bursard runs"),
        ],
    ),
    ("check", &[("0", "the configuration is valid, also with warnings"), ("78", "it has errors; all are printed")]),
    ("doctor", &[("0", "no problem was found"), ("1", "each problem is printed with its remedy")]),
    ("directory-diff", &[("0", "no differences"), ("2", "there are differences")]),
    ("webhook-audit", &[("0", "nothing breaks a rule"), ("1", "there are findings, or kinds that were not checked")]),
    ("webhook-selftest", &[("0", "each request had the expected result"), ("1", "a request had another result")]),
    ("webhook-install", &[("1", "the webhook does not answer")]),
    (
        "revoke",
        &[(
            "1",
            "old credentials may still give access; the output says why, and the next cycles continue the revocation",
        )],
    ),
    (
        "uninstall",
        &[
            (
                "1",
                "the removal failed, or bindings of others still name Bursar's users; each is printed with its remedy",
            ),
            ("75", "bursard runs"),
        ],
    ),
];
/// Pages that belong together, in addition to those of every page.
const RELATED: &[(&str, &[&str])] = &[
    ("init", &["bursar-uninstall (1)", "bursar-doctor (1)"]),
    ("uninstall", &["bursar-init (1)"]),
    ("webhook-install", &["bursar-webhook (8)", "bursar-webhook-selftest (1)"]),
    ("approver-install", &["bursar-webhook (8)"]),
    ("suspend", &["bursar-resume (1)"]),
    ("hold", &["bursar-release (1)"]),
];
/// The examples on the page of `bursar` itself.
const FIRST_EXAMPLES: &[&str] = &["bursar check", "bursar plan", "bursar status", "bursar why tool foo"];

/// Files and sockets of the programs.
const FILES: [(&str, &str); 6] = [
    ("/etc/bursar/bursar.toml", "the configuration, bursar.toml(5)"),
    ("/etc/bursar/homed.env", "options of bursar-homed"),
    ("/run/bursar/control.sock", "the socket on which bursard answers"),
    ("/var/lib/bursar/ledger.db", "the ledger, SQLite"),
    ("/var/lib/bursar/seal.key", "the key that seals namespaces; store its backup separately from those of the ledger"),
    ("/var/lib/bursar/backups/", "nightly copies of the ledger"),
];

/// The sample configuration, whose comments describe every key.
const CONFIGURATION: &str = include_str!("../../config/bursar.toml");

/// Writes every page into `folder`.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command(), folder)?;
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
    fs::write(folder.join("bursar-homed.8"), homed()?)?;
    fs::write(folder.join("bursar-webhook.8"), webhook())?;
    fs::write(folder.join("bursar.toml.5"), configuration())
}

/// Returns the command line, with a synopsis for each command that names the values of its options.
pub(super) fn command() -> clap::Command {
    let mut command = arguments::ungrouped().disable_help_subcommand(true);
    command.build();
    with_synopsis(command)
}

fn with_synopsis(command: clap::Command) -> clap::Command {
    let synopsis = synopsis(&command);
    command.override_usage(synopsis).mut_subcommands(with_synopsis)
}

fn synopsis(command: &clap::Command) -> String {
    let mut words = vec![command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()];
    let required = command.get_groups().filter(|group| group.is_required_set());
    let alternatives: Vec<&clap::Id> = required.flat_map(clap::ArgGroup::get_args).collect();
    let is_own = |argument: &&clap::Arg| !["help", "version"].contains(&argument.get_id().as_str());
    let (mut options, mut either) = (Vec::new(), Vec::new());
    for argument in command.get_arguments().filter(|argument| !argument.is_positional()).filter(is_own) {
        let values = if is_switch(argument) { Vec::new() } else { value_names(argument) };
        let option = [vec![format!("--{}", argument.get_long().unwrap_or_default())], values].concat().join(" ");
        if alternatives.contains(&argument.get_id()) {
            either.push(option);
        } else {
            let shown = if argument.is_required_set() { option } else { format!("[{option}]") };
            options.push((argument.is_global_set(), shown));
        }
    }
    // Options that every command has come last.
    options.sort_by_key(|(is_global, _)| *is_global);
    words.extend(options.into_iter().map(|(_, option)| option));
    if !either.is_empty() {
        words.push(format!("({})", either.join(" | ")));
    }
    for argument in command.get_positionals() {
        let name = value_names(argument).join(" ");
        words.push(if argument.is_required_set() { name } else { format!("[{name}]") });
    }
    if command.has_subcommands() {
        words.push(if command.is_subcommand_required_set() { "COMMAND" } else { "[COMMAND]" }.to_owned());
    }
    words.join(" ")
}

fn is_switch(argument: &clap::Arg) -> bool {
    !argument.is_positional() && argument.get_num_args().is_some_and(|count| !count.takes_values())
}

fn value_names(argument: &clap::Arg) -> Vec<String> {
    let names = argument.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let many = argument.is_positional() && argument.get_num_args().is_some_and(|count| count.max_values() > 1);
    names.map(|name| if many { format!("{name}...") } else { name }).collect()
}

/// Returns the sections that follow the options on the page of a command.
pub(super) fn more(command: &str) -> String {
    let mut text = String::new();
    if !command.is_empty() {
        text.push_str(".SH EXIT STATUS\n");
        let own = EXITS.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, own)| own);
        for line in arguments::EXIT_CODES.lines() {
            let Some((code, meaning)) = line.trim_start().split_once("  ") else { continue };
            match own.iter().find(|(known, _)| *known == code) {
                Some((_, meaning)) => listed(&mut text, code, meaning),
                // Only the commands in `EXITS` exit with this code.
                None if code == "2" => {}
                None => listed(&mut text, code, meaning),
            }
        }
    }
    let examples: Vec<_> = EXAMPLES.iter().filter(|(typed, _)| is_about(typed, command)).collect();
    if !examples.is_empty() {
        text.push_str(".SH EXAMPLES\n");
        for (typed, what) in examples {
            listed(&mut text, typed, what);
        }
    }
    files(&mut text);
    text.push_str(".SH SEE ALSO\n");
    let related = RELATED.iter().find(|(name, _)| *name == command).map_or(&[][..], |(_, related)| related);
    let parent = (!command.is_empty()).then_some("bursar (1)");
    for page in related.iter().copied().chain(parent) {
        let _ = writeln!(text, ".BR {},", escaped(page));
    }
    let _ = write!(text, ".BR bursard (8),\n.BR bursar.toml (5),\n/usr/share/doc/bursar\n");
    text
}

/// Whether an example is for the page of a command, such as `quota-set`.
fn is_about(typed: &str, command: &str) -> bool {
    let typed = typed.trim_start_matches("sudo ");
    if command.is_empty() {
        return FIRST_EXAMPLES.contains(&typed);
    }
    let mut words = typed.split_whitespace().skip(1);
    command.split('-').all(|word| words.next() == Some(word))
}

fn listed(text: &mut String, head: &str, what: &str) {
    let _ = write!(text, ".TP\n\\fB{}\\fR\n{}\n", escaped(head), escaped(what));
}

fn files(text: &mut String) {
    text.push_str(".SH FILES\n");
    for (file, what) in FILES {
        listed(text, file, what);
    }
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
         Stopping the daemon changes nothing in a cluster.\n.SH OPTIONS\n",
    );
    listed(&mut text, "--config FILE", "the configuration; also BURSAR_CONFIG");
    listed(&mut text, "--log-format plain|json", "the format of the log");
    text.push_str(".SH SIGNALS\n");
    listed(&mut text, "SIGHUP", "reloads the configuration if it is valid; systemctl reload bursard checks it first");
    listed(&mut text, "SIGTERM", "finishes the work in progress, within a minute, and exits");
    text.push_str(".SH EXIT STATUS\n0 stopped, 1 failed, 64 usage, 75 another process has the ledger, 77 it cannot become user bursar, 78 the configuration is wrong or the ledger was lost.\n");
    text.push_str(".SH EXAMPLES\n");
    listed(&mut text, "systemctl enable --now bursard", "starts the daemon, now and at boot");
    listed(&mut text, "journalctl -u bursard", "shows the daemon's log");
    files(&mut text);
    text.push_str(
        ".SH SEE ALSO\n.BR bursar (1),\n.BR bursar\\-homed (8),\n.BR bursar.toml (5),\n/usr/share/doc/bursar\n",
    );
    text
}

fn homed() -> io::Result<String> {
    let mut page = Vec::new();
    let command = bursar_homed::arguments::Arguments::command();
    clap_mangen::Man::new(command).section("8").render(&mut page)?;
    let mut text = String::from_utf8_lossy(&page).into_owned();
    text.push_str(".SH EXIT STATUS\n0 stopped, 1 failed, 64 usage, 78 wrong arguments in homed.env.\n.SH EXAMPLES\n");
    listed(&mut text, "systemctl restart bursar-homed", "applies a change of /etc/bursar/homed.env");
    listed(&mut text, "journalctl -u bursar-homed", "shows its log");
    text.push_str(".SH FILES\n");
    listed(&mut text, "/etc/bursar/homed.env", "its arguments; only root can change them");
    listed(&mut text, "/run/bursar-homed/homed.sock", "the socket on which systemd starts it");
    text.push_str(".SH SEE ALSO\n.BR bursard (8),\n/usr/share/doc/bursar/homes\\-and\\-storage.md\n");
    Ok(text)
}

fn webhook() -> String {
    let mut text = String::from(
        ".TH bursar\\-webhook 8\n.SH NAME\nbursar\\-webhook \\- admission webhook of Bursar, or approver of its \
         certificate requests\n.SH SYNOPSIS\n.B bursar\\-webhook\n\\fB\\-\\-dir\\fR FOLDER [\\fB\\-\\-listen\\fR ADDRESS] \
         [\\fB\\-\\-health\\fR ADDRESS] [\\fB\\-\\-log\\-format\\fR plain|json]\n.br\n.B bursar\\-webhook approve\n\
         \\fB\\-\\-dir\\fR FOLDER [\\fB\\-\\-health\\fR ADDRESS] [\\fB\\-\\-log\\-format\\fR plain|json]\n.SH DESCRIPTION\n\
         Outside the cluster, units bursar\\-webhook and bursar\\-approver run this program with the files that\n\
         .B bursar webhook install\nand\n.B bursar approver install\nwrite. Changed files are read again without a \
         restart.\n.SH OPTIONS\n",
    );
    listed(
        &mut text,
        "--dir FOLDER",
        "the files: tls.crt, tls.key, rules.json, seal.pub, kubeconfig; for approve: rules.json, kubeconfig",
    );
    listed(&mut text, "--listen ADDRESS", "answers the API server's reviews here [0.0.0.0:9443]");
    listed(&mut text, "--health ADDRESS", "answers probes and Prometheus here [0.0.0.0:9444; approve: 0.0.0.0:9445]");
    listed(&mut text, "--log-format plain|json", "the format of the log [json]");
    text.push_str(".SH EXIT STATUS\n0 stopped, 1 failed, 64 usage, 78 files are missing or wrong.\n.SH EXAMPLES\n");
    listed(&mut text, "systemctl enable --now bursar-webhook", "starts the webhook; it waits for its files");
    listed(&mut text, "curl http://HOST:9444/readyz", "says what is missing");
    text.push_str(".SH FILES\n");
    listed(&mut text, "/etc/bursar-webhook", "the folder of unit bursar-webhook");
    listed(&mut text, "/etc/bursar-approver", "the folder of unit bursar-approver");
    text.push_str(
        ".SH SEE ALSO\n.BR bursar\\-webhook\\-install (1),\n.BR bursar\\-approver\\-install (1),\n\
         /usr/share/doc/bursar/admission.md, /usr/share/doc/bursar/security.md\n",
    );
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
    files(&mut text);
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
        let entries = fs::read_dir(&folder).expect("the folder is readable");
        let pages: Vec<_> = entries.map(|entry| entry.expect("the folder is readable").path()).collect();
        for page in ["bursar-quota-set.1", "bursard.8", "bursar-homed.8", "bursar-webhook.8", "bursar.toml.5"] {
            assert!(pages.contains(&folder.join(page)), "{pages:?} lacks {page}");
        }
        for page in &pages {
            let text = fs::read_to_string(page).expect("the page is readable");
            for section in [".SH EXAMPLES", ".SH FILES", ".SH SEE ALSO"] {
                assert!(text.contains(section), "{} lacks {section}", page.display());
            }
            let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
            assert!(name.ends_with(".5") || name == "bursar.1" || text.contains(".SH EXIT STATUS"), "{name}");
        }
        let synopsis = |page: &str| {
            let text = fs::read_to_string(folder.join(page)).expect("the page is readable").replace("\\-", "-");
            let mut lines = text.lines().skip_while(|line| *line != ".SH SYNOPSIS");
            lines.nth(1).unwrap_or_default().to_owned()
        };
        let every = "[--config FILE] [--ledger FILE] [--json] [--wide]";
        for (page, rest) in [
            ("bursar-plan.1", format!("[--at TIME] {every}")),
            ("bursar-hold.1", format!("--reason TEXT [--ticket TEXT] {every} KIND NAME")),
            ("bursar-quota.1", format!("{every} COMMAND")),
            ("bursar-history.1", format!("[--last COUNT] {every} [KIND] [NAME]")),
        ] {
            let shown = synopsis(page).replace("\\fB", "").replace("\\fR", "");
            assert!(shown.ends_with(&rest), "{page}: {shown}");
        }
        let shown = synopsis("bursar-adopt-namespace.1");
        assert!(shown.contains("(--tool NAME | --user NAME | --group NAME)"), "{shown}");
        let show = fs::read_to_string(folder.join("bursar-show.1")).expect("the page is readable");
        assert!(show.contains("\nno such account or archive\n") && !show.contains("changes pending"), "{show}");
        let selftest = fs::read_to_string(folder.join("bursar-webhook-selftest.1")).expect("the page is readable");
        assert!(selftest.contains("a request had another result") && !selftest.contains("\nfailed\n"), "{selftest}");
        let names: Vec<String> =
            pages.iter().map(|page| page.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect();
        let linked = RELATED.iter().flat_map(|(_, pages)| pages.iter()).copied();
        for page in linked.map(|page| page.replace(" (", ".").replace(')', "")) {
            assert!(names.contains(&page), "there is no page {page}");
        }
        for command in EXITS.iter().map(|(name, _)| name).chain(RELATED.iter().map(|(name, _)| name)) {
            assert!(names.contains(&format!("bursar-{command}.1")), "there is no page of {command}");
        }
        fs::remove_dir_all(&folder).expect("the file can be removed");
    }

    #[test]
    fn every_example_is_an_existing_command() {
        let mut arguments = arguments::ungrouped();
        arguments.build();
        for (typed, _) in EXAMPLES {
            let mut command = &arguments;
            let typed = typed.split(['|', '>']).next().unwrap_or_default();
            for word in typed.split_whitespace().skip_while(|word| *word == "sudo").skip(1) {
                if let Some(option) = word.strip_prefix("--") {
                    let mut known = command.get_arguments().filter_map(clap::Arg::get_long);
                    assert!(known.any(|known| known == option), "{typed}");
                } else {
                    command = command.find_subcommand(word).unwrap_or(command);
                }
            }
            assert!(!command.has_subcommands() || command.get_name() == "certs", "{typed}");
        }
        for first in FIRST_EXAMPLES {
            assert!(EXAMPLES.iter().any(|(typed, _)| typed == first), "{first}");
        }
    }
}
