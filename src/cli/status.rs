//! `bursar status`: prints the state of sources, clusters and accounts, from the daemon or, if it does not run, from
//! the ledger.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;

use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::clean;
use super::{output, sync};
use crate::control::api::{
    BackupStatus, ClusterStatus, LedgerTrouble, RealmStatus, RealmTrouble, Status, WebhookAnswer,
};
use crate::control::client::ClientError;
use crate::daemon;
use crate::ledger::{SourceState, Unresolved, UnresolvedIn};
use crate::plan::wording::counted_entries;
use crate::report;
use crate::snapshot::{Comparison, Completeness, Way};
use crate::store::backup;

pub(super) async fn run(context: &Context) -> Result<Exit, Failure> {
    let asked = match context.global.ledger {
        None => Some(context.daemon()?.status().await),
        Some(_) => None,
    };
    let (origin, status) = match asked {
        None | Some(Err(ClientError::Absent { .. })) => {
            let settings = context.settings()?;
            let mut store = context.store().await?;
            let last = store.last_report().await?.and_then(|report| serde_json::from_value(report).ok());
            let status = report::status(&settings.site, &store.state().await?, &settings.policy, BTreeMap::new(), last);
            let backup = BackupStatus { newest: backup::newest(&settings.state_dir, daemon::now()), failed: None };
            let origin = match &context.global.ledger {
                Some(path) => format!("this is the last state in {}", path.display()),
                None => "bursard is not running; this is the last state in the ledger".to_owned(),
            };
            (Some(origin), Status { backup, ..status })
        }
        Some(asked) => (None, asked?),
    };
    if context.global.json {
        output::json(&status)?;
    } else {
        output::line(text(&status, origin.as_deref(), daemon::now()));
    }
    Ok(Exit::Done)
}

/// Returns the status as text. `origin` says where the status comes from; `None` if the daemon answered.
fn text(status: &Status, origin: Option<&str>, now: Timestamp) -> String {
    let Status {
        site,
        sources,
        reading,
        clusters,
        last_cycle,
        accounts,
        rejected,
        missing,
        unowned,
        suspended,
        failing,
        unfinished,
        refusals: _,
        pace,
        revocations,
        next_expiry,
        ledger,
        wal,
        backup,
        realm,
        configuration,
    } = status;
    let by_state: Vec<String> = accounts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let mut lines = vec![format!(
        "{site}: accounts: {}",
        if by_state.is_empty() { "none".to_owned() } else { by_state.join(", ") }
    )];
    lines.extend(origin.map(clean));
    lines.extend(configuration.as_deref().map(clean));
    lines.extend(ledger.as_ref().map(|LedgerTrouble { why, since, waiting }| {
        let why = clean(why);
        format!(
            "the ledger has taken no writes since {since:.0}: {why}; nothing is written anywhere, and the changes of \
             {waiting} accounts wait"
        )
    }));
    lines.extend(wal.as_ref().map(|(length, readers)| {
        let readers: Vec<String> = readers.iter().map(|reader| clean(reader)).collect();
        format!(
            "the ledger's WAL has grown to {length} MiB; it shrinks when these processes finish reading: {}",
            readers.join(", ")
        )
    }));
    lines.extend(sources.iter().map(|(name, state)| source(name, state)));
    lines.extend(reading.iter().map(|(name, count)| under_way(name, *count)));
    lines.extend(clusters.iter().flat_map(|(name, cluster)| of_cluster(name, cluster, now)));
    lines.extend(realm.iter().flat_map(of_realm));
    lines.extend(missing.iter().map(ToString::to_string));
    lines.extend(suspended.iter().map(|ending| clean(&ending.to_string())));
    for entry in rejected {
        lines.push(format!(
            "rejected: {} {}: {} ({})",
            entry.kind,
            clean(entry.name.as_deref().unwrap_or("?")),
            clean(&entry.why),
            clean(&entry.dn)
        ));
    }
    lines.extend(unowned.iter().map(|unowned| clean(&unowned.to_string())));
    match last_cycle {
        Some(report) => {
            // The status prints the reads in progress above, and the current failures and progress below. If a daemon
            // runs, the status has the clusters too.
            let report = crate::control::api::CycleReport {
                away: if origin.is_none() { BTreeMap::new() } else { report.away.clone() },
                failing: Vec::new(),
                unfinished: Vec::new(),
                reading: BTreeMap::new(),
                pace: Vec::new(),
                revocations: Vec::new(),
                ..report.clone()
            };
            lines.push(sync::text(&report));
        }
        None => lines.push("no cycle yet".to_owned()),
    }
    lines.extend(unfinished.iter().map(|one| clean(&one.to_string())));
    for failure in failing {
        lines.push(format!(
            "fails: {} in {}: {}: {} (since {:.0}, tried {} times, next attempt at {:.0})",
            failure.account,
            failure.cluster,
            failure.step,
            clean(&failure.reason),
            failure.since,
            failure.attempts,
            failure.next_try
        ));
    }
    lines.extend(pace.iter().map(ToString::to_string));
    lines.extend(revocations.iter().map(ToString::to_string));
    lines.extend(next_expiry.map(|next| format!("next certificate expires {next:.0}")));
    lines.push(match backup.newest {
        Some(at) => format!("newest backup of the ledger: {at:.0}"),
        None => "no backup of the ledger yet".to_owned(),
    });
    lines.extend(backup.failed.as_ref().map(|why| format!("the last backup of the ledger failed: {}", clean(why))));
    lines.join("\n")
}

/// Returns the line about the webhook's last answer, with its age.
fn webhook(cluster: &str, WebhookAnswer { at, trouble }: &WebhookAnswer, now: Timestamp) -> String {
    let minutes = now.duration_since(*at).as_mins().max(0);
    match trouble {
        None => format!("cluster {cluster}: webhook: answered a review {minutes} min ago"),
        Some(why) => format!(
            "cluster {cluster}: webhook: did not answer a review {minutes} min ago, and every new pod of tenants is \
             refused until it does: {}; see bursar doctor",
            clean(why)
        ),
    }
}

fn of_cluster(name: &str, cluster: &ClusterStatus, now: Timestamp) -> Vec<String> {
    let trouble = cluster.trouble.as_deref().map(|trouble| format!(": {}", clean(trouble))).unwrap_or_default();
    let ready = if cluster.ready { "ready" } else { "not ready" };
    let mut lines = vec![format!("cluster {name}: {ready}, {} objects{trouble}", cluster.objects)];
    lines.extend(cluster.confinement.iter().map(|what| format!("cluster {name}: confinement: {}", clean(what))));
    lines.extend(cluster.approver.iter().map(|notice| format!("cluster {name}: {}", clean(notice))));
    lines.extend(cluster.administrator.iter().map(|why| format!("cluster {name}: {}", clean(why))));
    lines.extend(
        cluster
            .own_certificate_until
            .map(|ends| format!("cluster {name}: the daemon's own certificate expires {ends:.0}")),
    );
    lines.extend(cluster.webhook.iter().map(|answer| webhook(name, answer, now)));
    lines.extend(cluster.unenforced.iter().map(|what| format!("cluster {name}: webhook: {}", clean(what))));
    lines.extend(cluster.weaker.iter().map(|what| format!("cluster {name}: {}", clean(what))));
    lines.extend(cluster.unknown_certificates.iter().map(|certificate| {
        format!(
            "cluster {name}: a certificate was signed for a request in the daemon's name that Bursar did not make; \
             treat the daemon's key as stolen: {}",
            clean(certificate)
        )
    }));
    let endpoints = cluster.endpoints.iter();
    lines.extend(endpoints.map(|(endpoint, why)| format!("cluster {name}, endpoint {endpoint}: {}", clean(why))));
    lines
}

fn of_realm(realm: &RealmStatus) -> Vec<String> {
    let RealmStatus { name, read_at, users, waiting, trouble, notices } = realm;
    let read = read_at.map_or_else(|| "not read yet".to_owned(), |at| format!("read {at:.0}"));
    let left = if *waiting > 0 { format!(", {waiting} steps wait for the next cycle") } else { String::new() };
    let mut lines = vec![format!("realm {name}: {users} users of Bursar, {read}{left}")];
    lines.extend(trouble.as_ref().map(|RealmTrouble { why, since, attempts, next_try }| {
        let why = clean(why);
        format!(
            "realm {name}: no changes have been made since {since:.0}: {why} (tried {attempts} times, next attempt at \
             {next_try:.0})"
        )
    }));
    lines.extend(notices.iter().map(|notice| format!("{}: {}", notice.account, clean(&notice.text))));
    lines
}

fn under_way(source: &str, received: u64) -> String {
    format!("source {source}: a read is in progress: {}", counted_entries(received))
}

fn source(name: &str, state: &SourceState) -> String {
    let answered = match &state.completeness {
        Completeness::Complete => "complete".to_owned(),
        Completeness::Partial { .. } | Completeness::Stale { .. } => clean(&state.completeness.to_string()),
    };
    let server = state.server.as_deref().unwrap_or("no server");
    let numbers = state.numbers.as_ref().map(|numbers| format!(", {numbers}")).unwrap_or_default();
    let way = match state.way {
        Way::Full => "",
        Way::Incremental => ", changes only",
        Way::Persist => ", changes pushed by the server",
    };
    let repaired = state.compared.as_ref().filter(|compared| compared.found.differences > 0).map(|compared| {
        let Comparison { differences, examples } = &compared.found;
        let examples: Vec<String> = examples.iter().map(|example| clean(example)).collect();
        format!("; the full read of {:.0} repaired differences ({differences}): {}", compared.at, examples.join(", "))
    });
    let mut text = format!(
        "source {name} ({server}): {answered}; {}{numbers}, read {:.0}{way}{}",
        counted_entries(state.entries),
        state.read_at,
        repaired.unwrap_or_default()
    );
    for (server, known) in &state.servers {
        let why = known.why.as_ref().map(|why| format!(", not used: {}", clean(why))).unwrap_or_default();
        let _ = write!(text, "\n  server {server}: {}{why} (asked {:.0})", known.lag(), known.at);
    }
    let Unresolved { groups, members, examples, digest: _ } = &state.unresolved;
    if *members > 0 {
        let _ = write!(text, "\n  {members} members of {groups} groups and tools have no entry in any source:");
    }
    for UnresolvedIn { group, members, example } in examples {
        let _ = write!(text, "\n    {group}: {members}, such as {}", clean(example));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::rules::unenforced;
    use crate::plan::testing::{World, prod};

    #[test]
    fn the_status_is_the_golden_at_80_columns() {
        let (mut world, _) = World::with_foo();
        world.cycle();
        let asked = |minutes: i64, trouble: Option<&str>| {
            let at = world.now - jiff::SignedDuration::from_mins(minutes);
            let webhook = Some(WebhookAnswer { at, trouble: trouble.map(str::to_owned) });
            ClusterStatus { ready: true, objects: 12, webhook, ..ClusterStatus::default() }
        };
        let refused = "failed calling webhook \"pods.bursar.dev\": connection refused";
        let bare = ClusterStatus { unenforced: unenforced(&world.policy, &prod(), &world.ledger), ..asked(0, None) };
        let bare = ClusterStatus { webhook: None, ..bare };
        let clusters = [
            ("bare".to_owned(), bare),
            ("prod".to_owned(), asked(3, None)),
            ("test".to_owned(), asked(14, Some(refused))),
        ];
        let status = report::status("example", &world.ledger, &world.policy, clusters.into(), None);
        output::is_golden("status", &text(&status, None, world.now));
        assert!(text(&status, Some("where it is from"), world.now).contains("\nwhere it is from\n"));
    }
}
