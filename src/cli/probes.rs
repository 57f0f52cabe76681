//! The probes of `bursar doctor`: they check directories, clusters, homes and the daemon, and return findings. They
//! change nothing, except that they write files and directories in homes and prefixes as a test and remove them again.

mod authority;
mod cluster;
mod confinement;
mod homes;
mod kinds;
mod mounts;
mod realm;
pub(super) mod remedy;
mod webhook;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bursar_directory::source::SourceKind;
use bursar_directory::{self as directory, Pass, SourceConfig, SyncCache};
use jiff::SignedDuration;
use serde::Serialize;

pub(super) use self::cluster::cluster;
pub(super) use self::homes::homes;
pub(super) use self::realm::realm;
use super::context::ledger_of;
use crate::control::client::{ClientError, ControlClient};
use crate::daemon;
use crate::errors::chain;
use crate::identity::AccountKind;
use crate::observed::prometheus;
use crate::plan::unknown::Unknown;
use crate::plan::wording::counted_entries;
use crate::settings::{self, Egress, Names, Settings};
use crate::snapshot::{Completeness, SourceRead, Way};
use crate::store::{ReadStore, is_before_init};

/// The deadline of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of days for which `bursar doctor` names an exception that ended. An audit should happen in that time.
const ENDED_WITHIN: i64 = 30;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was checked.
    pub(super) subject: String,
    /// What was found.
    pub(super) text: String,
    /// What to do; `None` if there is no problem.
    pub(super) remedy: Option<String>,
}

impl Finding {
    fn good(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), remedy: None }
    }

    pub(super) fn bad(subject: impl Into<String>, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// Reads each directory whose password can be read, once. Also returns the homes that its entries name.
pub(super) async fn sources(settings: &Settings) -> (Vec<Finding>, Vec<PathBuf>) {
    let (sources, errors) = settings.usable_sources();
    let remedy = "put the password where the configuration expects it, with mode 0640 and owner root:bursar";
    let mut findings: Vec<Finding> = errors.into_iter().map(|error| Finding::bad("password", error, remedy)).collect();
    let pass = Pass::Changes(SyncCache::default());
    let snapshot = directory::fetch(&sources, &pass, &settings.policy, daemon::now()).await;
    findings.extend(sources.iter().filter_map(authority::client_certificate));
    for read in &snapshot.reads {
        let subject = format!("source {}", read.source);
        let server = read.server.as_deref().unwrap_or("no server");
        // Every directory has entries that cannot become tenants, so they are not a problem.
        let rejected = match read.rejected.len() {
            0 => String::new(),
            count => format!("; rejected entries: {count} (`bursar plan` lists each with the reason)"),
        };
        if let Some(pem) = ca(&sources, &read.source) {
            findings.extend(authority::of_source(&subject, pem));
        }
        findings.extend(untold(&sources, read));
        findings.extend(undated(&sources, read));
        let count = counted_entries(read.entries.len() as u64);
        let numbers = read.numbers.as_ref().map(|numbers| format!(", {numbers}")).unwrap_or_default();
        findings.push(match &read.completeness {
            Completeness::Complete => {
                let kinds = kinds(read);
                Finding::good(&subject, format!("{server}: complete, {count}{kinds}{numbers}{rejected}"))
            }
            Completeness::Stale { server, why } => Finding::bad(
                &subject,
                format!("{server} is behind: {why}"),
                format!(
                    "let it replicate; if it was restored from a backup on purpose: bursar directory accept {} --reason TEXT",
                    read.source
                ),
            ),
            Completeness::Partial { why } => {
                Finding::bad(&subject, format!("{server}: partial: {why}"), remedy::of(why))
            }
        });
    }
    let entries = snapshot.reads.into_iter().flat_map(|read| read.entries);
    (findings, entries.filter_map(|entry| entry.home).collect())
}

/// Returns the counts of entries, such as `: 3512 users; 5 tools, 0 with maintainers`. Nothing else shows that the
/// attribute for members is wrong.
fn kinds(read: &SourceRead) -> String {
    let mut kinds: BTreeMap<AccountKind, (usize, usize)> = BTreeMap::new();
    for entry in &read.entries {
        let (all, peopled) = kinds.entry(entry.kind).or_default();
        *all += 1;
        *peopled += usize::from(!entry.members.is_empty());
    }
    let said = kinds.into_iter().map(|(kind, (all, peopled))| {
        let plural = if all == 1 { "" } else { "s" };
        let people = match kind {
            AccountKind::User => String::new(),
            AccountKind::Tool => format!(", {peopled} with maintainers"),
            AccountKind::Group => format!(", {peopled} with members"),
        };
        format!("{all} {kind}{plural}{people}")
    });
    let said: Vec<String> = said.collect();
    if said.is_empty() { String::new() } else { format!(": {}", said.join("; ")) }
}

/// Returns a finding if a source is configured with `persist`, but its server does not report changes.
fn untold(sources: &[SourceConfig], read: &SourceRead) -> Option<Finding> {
    let source = sources.iter().find(|source| source.name == read.source)?;
    let is_told = read.way != Way::Full || read.completeness != Completeness::Complete;
    (source.persists() && !is_told).then(|| {
        Finding::bad(
            format!("source {}, persist", source.name),
            "the server does not report changes, so each cycle reads everything",
            "OpenLDAP: add `overlay syncprov` to the database, and lift the size limit for bind_dn; otherwise remove persist",
        )
    })
}

/// Returns a finding if the server of a source does not report its replication state. Bursar cannot tell such a server
/// from one that was restored from an old backup.
fn undated(sources: &[SourceConfig], read: &SourceRead) -> Option<Finding> {
    let source = sources.iter().find(|source| source.name == read.source)?;
    let server = read.server.as_ref().filter(|_| read.marks.says_nothing())?;
    let is_judged = matches!(source.kind, SourceKind::Ldap(_)) && read.completeness == Completeness::Complete;
    is_judged.then(|| {
        Finding::bad(
            format!("source {}, age", source.name),
            format!(
                "{server} does not report its replication state, so Bursar cannot see whether it is behind other servers or \
                 was restored from a backup"
            ),
            "let Bursar read contextCSN of the suffix, and entryCSN and modifyTimestamp of entries (/usr/share/doc/bursar/directories.md)",
        )
    })
}

/// Checks the Prometheus servers that tell, in addition to the pods, whether a namespace is in use.
pub(super) async fn evidence(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let rules = settings.policy.reapers.namespaces.iter();
    for (cluster, evidence) in rules.flat_map(|rules| &rules.evidence) {
        let subject = format!("reaper.namespaces.prometheus.{cluster}");
        findings.push(match prometheus::ask(evidence).await {
            Ok(in_use) => Finding::good(subject, format!("{}: {} namespaces in use", evidence.url, in_use.len())),
            Err(error) => Finding::bad(
                subject,
                format!("{}: {}", evidence.url, chain(&error)),
                "check url, ca, token, query and control; until it answers, no namespace of the cluster counts as idle",
            ),
        });
    }
    findings
}

/// Returns a finding if the ledger cannot be read. The other probes then skip the checks that need the ledger.
pub(super) async fn ledger(settings: &Settings) -> Option<Finding> {
    if is_before_init(&settings.state_dir) {
        return None;
    }
    let failure = ledger_of(settings).await.err()?;
    Some(Finding::bad("ledger", failure.text, "see /usr/share/doc/bursar/runbooks/lost-ledger.md"))
}

/// Returns the exceptions that ended within [`ENDED_WITHIN`] days. The ledger does not know which objects they
/// admitted; only an audit finds these.
pub(super) async fn ended_exceptions(settings: &Settings) -> Vec<Finding> {
    let since = daemon::now() - SignedDuration::from_hours(ENDED_WITHIN * 24);
    let query = "SELECT account, substr(at, 1, 10) AS day, detail FROM history WHERE at >= ? \
                 AND action IN ('exception ended', 'exception unset') ORDER BY at";
    let rows = async { ReadStore::open(&settings.ledger()).await?.rows(query, &[format!("{since:.0}")]).await };
    let rows = rows.await.unwrap_or_default();
    rows.iter().map(|row| Finding::good("exceptions that ended", ended(row))).collect()
}

fn ended(row: &serde_json::Map<String, serde_json::Value>) -> String {
    let text = |key: &str| row.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
    let detail: serde_json::Value = serde_json::from_str(text("detail")).unwrap_or_default();
    format!(
        "{} from {}, on {}; objects that it admitted stay until they are removed; `bursar webhook audit` lists them",
        text("account"),
        detail["rule"].as_str().unwrap_or_default(),
        text("day")
    )
}

/// Returns findings about servers that tenants' pods should not reach.
pub(super) fn egress(settings: &Settings) -> Vec<Finding> {
    let Egress { reached, unknown } = settings::egress(settings, Names::Resolved);
    let reached = reached.into_iter().map(|(class, what)| {
        let remedy = "exclude it with except or ports in the class's [network.NAME], or in the policy that is named; a pod \
                    that reaches a file server can read every home (/usr/share/doc/bursar/threat-model.md)";
        Finding::bad(format!("class {class}, network"), format!("its pods reach {what}"), remedy)
    });
    let unknown = unknown.into_iter().map(|server| {
        let text =
            format!("{server} does not resolve on this host, so Bursar cannot tell whether tenants' pods reach it");
        Finding::bad("networks of tenants", text, "see /etc/resolv.conf, or name the server by its address")
    });
    reached.chain(unknown).collect()
}

/// Checks whether the daemon runs, and returns the objects in clusters that its ledger does not know.
pub(super) async fn daemon(settings: &Settings) -> Vec<Finding> {
    let answer = match ControlClient::new(&settings.control_socket) {
        Ok(client) => client.status().await,
        Err(error) => Err(error),
    };
    let socket = settings.control_socket.display();
    let running = match &answer {
        Ok(_) => Finding::good("daemon", format!("answers at {socket}")),
        // If the daemon was never started, that is not a problem.
        Err(ClientError::Absent { .. }) if !has_worked(settings).await => {
            Finding::good("daemon", "not started yet; next: bursar plan, then systemctl enable --now bursard")
        }
        Err(ClientError::Absent { .. }) => {
            Finding::bad("daemon", format!("does not answer at {socket}"), "systemctl enable --now bursard")
        }
        Err(error) => Finding::bad("daemon", chain(error), "journalctl -u bursard"),
    };
    let unknown = answer.ok().and_then(|status| status.last_cycle).map(|report| report.unknown).unwrap_or_default();
    let unknown = unknown.into_iter().map(|Unknown { cluster, object, what }| {
        Finding::bad(
            format!("cluster {cluster}"),
            format!("{object} is not in the ledger, but carries Bursar's label"),
            what,
        )
    });
    std::iter::once(running).chain(unknown).collect()
}

/// Whether there was a cycle on this host.
async fn has_worked(settings: &Settings) -> bool {
    let report = async { ReadStore::open(&settings.ledger()).await?.last_report().await };
    // If the ledger cannot be read, another finding says so.
    !is_before_init(&settings.state_dir) && !matches!(report.await, Ok(None))
}

fn ca<'s>(sources: &'s [SourceConfig], name: &str) -> Option<&'s str> {
    match &sources.iter().find(|source| source.name == name)?.kind {
        SourceKind::Ldap(ldap) => ldap.ca_pem.as_deref(),
        SourceKind::Keycloak(realm) => realm.ca_pem.as_deref(),
        SourceKind::Ldif(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::DirectoryId;
    use crate::snapshot::{Entry, Role};

    #[tokio::test]
    async fn a_missing_password_hides_no_other_source() {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let (config, people) = (folder.path().join("bursar.toml"), folder.path().join("people.ldif"));
        std::fs::write(people, "dn: ou=people,dc=x\nobjectClass: organizationalUnit\nou: people\n")
            .expect("the folder is writable");
        let source = |name: &str, more: &str| {
            let users = "[source.users]\nbase = \"ou=people,dc=x\"";
            format!("[[source]]\nname = \"{name}\"\npreset = \"rfc2307\"\n{more}\n{users}\n")
        };
        let ldap = "type = \"ldap\"\nurls = [\"ldaps://ldap.example.org\"]\nbind_dn = \"cn=bursar\"\n\
                    password = { file = \"/nonexistent/password\" }";
        let ldif = source("people", "type = \"ldif\"\npath = \"people.ldif\"");
        std::fs::write(&config, format!("site = \"x\"\n{}{ldif}", source("guests", ldap)))
            .expect("the folder is writable");
        let settings = Settings::load_offline(&config).expect("the settings are valid");
        let (findings, _) = sources(&settings).await;
        let subjects: Vec<&str> = findings.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(subjects, ["password", "source people"], "{findings:#?}");
        assert!(findings[0].text.starts_with("source.guests.password: "), "{findings:#?}");
    }

    #[test]
    fn the_counts_show_that_no_tool_has_maintainers() {
        let entry = |kind, name: &str| Entry::new(kind, name, "", name);
        let tools = (0..5).map(|number| entry(AccountKind::Tool, &format!("tool{number}")));
        let entries = tools.chain([entry(AccountKind::User, "alice")]).collect();
        let mut read = SourceRead::complete("people", [AccountKind::Tool, AccountKind::User], entries);
        assert_eq!(kinds(&read), ": 5 tools, 0 with maintainers; 1 user");
        read.entries[0].members.insert(DirectoryId("alice".to_owned()), Role::Member);
        assert_eq!(kinds(&read), ": 5 tools, 1 with maintainers; 1 user");
    }
}
