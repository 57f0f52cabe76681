//! The commands, options and linked files that the documents name exist, and so do the metrics of the alert rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bursar::admission::Rule;
use bursar::bootstrap::webhook::backstop::OF_EVERY_CLASS;
use bursar::cli::arguments::Arguments;
use bursar::identity::{AccountId, ClusterName, DirectoryId};
use bursar::ledger::{Account, Certificate, CredentialKey, Failure, LedgerState, Lifecycle, SourceState};
use bursar::rules::server::ServerRules;
use bursar::snapshot::Completeness;
use bursar::telemetry::Metrics;
use clap::CommandFactory as _;
use jiff::Timestamp;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the paths of all Markdown documents for administrators and users.
fn documents() -> Vec<PathBuf> {
    let folders = ["docs", "docs/migration", "docs/runbooks"]
        .map(|name| fs::read_dir(root().join(name)).expect("the folder exists"));
    let docs = folders.into_iter().flatten().map(|entry| entry.expect("the folder is readable").path());
    let mut documents: Vec<_> =
        docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    documents.extend(["README.md", "ARCHITECTURE.md"].map(|name| root().join(name)));
    documents
}

/// Returns the code in a document: inline, indented by four, or fenced.
fn code(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            found.push(line.split(" # ").next().unwrap_or_default());
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// Returns the `bursar` commands in a piece of code, as words. A `;` or a pipe starts another command.
fn commands(code: &str) -> Vec<Vec<&str>> {
    code.split([';', '|'])
        .map(|command| {
            command.split_whitespace().skip_while(|word| *word == "$" || *word == "sudo").collect::<Vec<_>>()
        })
        .filter(|words| words.first() == Some(&"bursar") && words.len() > 1)
        .collect()
}

/// Returns the part of a command that does not exist.
fn unknown(words: &[&str]) -> Option<String> {
    let mut arguments = Arguments::command();
    arguments.build();
    let mut command = &arguments;
    for word in &words[1..] {
        let word = word.trim_matches(['[', ']']);
        if let Some(option) = word.strip_prefix("--") {
            let name = option.split('=').next().unwrap_or_default();
            if !command.get_arguments().any(|argument| argument.get_long() == Some(name)) {
                return Some(format!("{} has no --{name}", words.join(" ")));
            }
        } else if command.has_subcommands() && word.starts_with(|c: char| c.is_ascii_lowercase()) {
            match command.find_subcommand(word) {
                Some(found) => command = found,
                None => return Some(format!("{}: there is no {word}", words.join(" "))),
            }
        }
    }
    None
}

#[test]
fn every_command_in_the_documents_exists() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    let more = ["packaging/prometheus/bursar.rules.yml", "systemd/homed.env"].map(|name| root().join(name));
    for document in documents().into_iter().chain(more) {
        let text = read(&document);
        for words in code(&text).into_iter().flat_map(commands) {
            seen += 1;
            wrong.extend(unknown(&words).map(|what| format!("{}: {what}", document.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 30, "only {seen} commands found");
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let text = "Ask `bursar log`.\n\n    $ sudo bursar certs whom x  # who\n    bursar tools [--lost]\n    bursar plan";
    let found: Vec<_> = code(text).into_iter().flat_map(commands).filter_map(|words| unknown(&words)).collect();
    assert_eq!(
        found,
        ["bursar log: there is no log", "bursar certs whom x: there is no whom", "bursar tools [--lost] has no --lost",]
    );
}

#[test]
fn every_link_between_documents_leads_to_a_file() {
    for document in documents() {
        let text = read(&document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if !link.is_empty() && !link.contains("://") {
                let target = document.parent().expect("every document is in a folder").join(link);
                assert!(target.exists(), "{}: {link}", document.display());
            }
        }
    }
}

#[test]
fn every_admission_rule_says_what_it_does_not_prevent() {
    let text = read(&root().join("docs/admission.md"));
    // The compiler asks for a new field.
    let ServerRules {
        services: _,
        scheduling: _,
        sysctls: _,
        ingress: _,
        storage: _,
        host_fields: _,
        host_annotations: _,
        longest_grace: _,
    } = ServerRules::default();
    let by_api_server = ["services", "scheduling", "sysctls", "ingress", "claims.storage_classes", "hosts.fields"];
    let by_webhook = Rule::ALL.iter().map(|rule| rule.as_str());
    let rules = by_webhook.chain(by_api_server).chain(OF_EVERY_CLASS).chain(["scale"]);
    let model = read(&root().join("docs/threat-model.md"));
    for rule in rules {
        let is_row = |line: &&str| line.starts_with(&format!("| `{rule}` |"));
        let row = text.lines().find(is_row).unwrap_or_else(|| panic!("{rule} has no row"));
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        assert!(cells.len() >= 3 && cells[2].trim_matches('|').len() > 10, "{rule}: {cells:?}");
        let is_named = |line: &str| line.starts_with('|') && line.contains(&format!("`{rule}`"));
        assert!(model.lines().any(is_named), "no row of the threat model names {rule}");
    }
}

/// Returns a ledger in which every gauge has a value.
fn state() -> LedgerState {
    let at = Timestamp::UNIX_EPOCH;
    let id = AccountId("a".into());
    let place = (id.clone(), ClusterName("prod".into()));
    let name = "tool:foo".parse().expect("the account is valid");
    let account = Account {
        state: Lifecycle::Active,
        generation: 1,
        ..Account::new(id.clone(), name, "people", DirectoryId("d".to_owned()), at)
    };
    let certificate = Certificate {
        fingerprint: "f".into(),
        generation: 1,
        subject: "tool:foo".to_owned(),
        not_before: at,
        not_after: at,
        renew_after: at,
        bound_to: None,
    };
    let failure = Failure { step: "home".to_owned(), reason: "full".to_owned(), since: at, attempts: 1, next_try: at };
    let source = SourceState {
        server: None,
        completeness: Completeness::Complete,
        entries: 1,
        took_ms: 1,
        read_at: at,
        complete_at: Some(at),
        numbers: None,
        way: bursar::snapshot::Way::Full,
        compared: None,
        servers: BTreeMap::new(),
        failures: 0,
        unresolved: bursar::ledger::Unresolved::default(),
    };
    LedgerState {
        accounts: [account].into_iter().collect(),
        certificates: [(CredentialKey::new(place.0.clone(), place.1.clone()), certificate)].into(),
        failures: [(place, failure)].into(),
        sources: [("people".to_owned(), source)].into(),
        ..LedgerState::default()
    }
}

#[test]
fn each_alert_fires_when_it_should() {
    for (what, file) in [("check", "bursar.rules.yml"), ("test", "bursar.rules.test.yml")] {
        let file = root().join("packaging/prometheus").join(file);
        let told = Command::new("promtool").args([what, "rules"]).arg(&file).output().expect("promtool is installed");
        assert!(told.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&told.stderr));
    }
}

#[test]
fn every_metric_of_the_alert_rules_is_exposed() {
    let metrics = Metrics::default();
    metrics.request("prod", "apply");
    metrics.cycle("done");
    metrics.drift_repaired(1);
    metrics.refused("suspend_per_day");
    metrics.endpoint("prod", "internal", true);
    metrics.webhook("prod", true);
    metrics.backup(Timestamp::from_second(1).ok(), false);
    metrics.confinement("prod", (0, 0), Some(1));
    metrics.suspended_pods("prod", 0);
    metrics.unapproved("prod", 0);
    let approver = bursar_webhook::server::metrics::ApproverMetrics::default().exposition(0, true);
    let webhook = bursar_webhook::server::metrics::Metrics::default();
    webhook.decided("validate", &bursar::admission::Decision::default(), std::time::Duration::ZERO);
    let gauges = bursar_webhook::server::metrics::Gauges {
        index_age: std::time::Duration::ZERO,
        namespaces: 0,
        certificate_seconds: 0,
        wrong: &[("rules", false)],
    };
    let exposed = metrics.exposition(&state(), Timestamp::UNIX_EPOCH) + &webhook.exposition(gauges) + &approver;
    let exposed: BTreeSet<&str> = exposed.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let rules = read(&root().join("packaging/prometheus/bursar.rules.yml"));
    let expressions = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let used: BTreeSet<&str> =
        expressions.flat_map(|line| line.split(word)).filter(|word| word.starts_with("bursar_")).collect();
    assert!(used.len() >= 5, "{used:?}");
    let missing: Vec<_> = used.difference(&exposed).collect();
    assert!(missing.is_empty(), "{missing:?} of {exposed:?}");
}
