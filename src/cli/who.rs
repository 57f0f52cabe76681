//! `bursar who WHAT [--at TIME]`: finds the accounts and people behind a uid, certificate, pod or host in a log. The
//! ledger answers; for a pod, the cluster is asked too. If the caller may not read the ledger, the daemon answers about
//! the caller's own accounts.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::arguments::Who;
use super::context::{Context, may_act};
use super::exit::{Exit, Failure};
use super::output::{self, Row, clean};
use crate::control::api::WhoRequest;
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::report::who::answer;
use crate::report::who::what::What;
use crate::{bootstrap, daemon};

/// The deadline of a cluster's answer. Until then, the ledger's answer is not printed either.
const DEADLINE: Duration = Duration::from_secs(10);

pub(super) async fn run(context: &Context, asked: &Who) -> Result<Exit, Failure> {
    let Who { what, at } = asked;
    if let Some(at) = at.filter(|at| *at > daemon::now()) {
        return Err(Failure::new(Exit::Usage, format!("--at {at} is in the future")));
    }
    let found = match all(context, asked).await {
        Err(Failure { exit: Exit::Forbidden, .. }) if at.is_none() => {
            context.daemon()?.who(&WhoRequest { what: what.clone() }).await?
        }
        found => found?,
    };
    let notes: Vec<&str> = found["notes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let answers = found["answers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if answers.is_empty() {
        let when = at.map(|at| format!(" at {at}")).unwrap_or_default();
        let lines = [format!("{what} belongs to no account{when}")].into_iter();
        let lines: Vec<String> = lines.chain(notes.iter().map(|note| (*note).to_owned())).chain(hint(what)).collect();
        return Err(Failure::new(Exit::NoAccount, lines.join("\n")));
    }
    if context.global.json {
        output::json(&found)?;
        return Ok(Exit::Done);
    }
    let blocks: Vec<String> = answers.iter().filter_map(Value::as_object).map(block).collect();
    output::line(blocks.join("\n\n"));
    for (title, rows) in [("credential", &found["credential"]), ("pods", &found["pods"])] {
        let rows = rows.as_array().map_or_else(|| std::slice::from_ref(rows), Vec::as_slice);
        for row in rows.iter().filter_map(Value::as_object) {
            output::line(format!("\n{title}\n{}", output::pairs(row)));
        }
    }
    if !notes.is_empty() {
        output::line(format!("\n{}", notes.iter().map(|note| clean(note)).collect::<Vec<_>>().join("\n")));
    }
    Ok(Exit::Done)
}

/// Returns a hint if the argument is a single word, which counts as a host but may be meant as something else.
fn hint(what: &What) -> Option<String> {
    match what {
        What::Host(host) if !host.contains('.') => Some(format!(
            "for a pod in a namespace, run: bursar who {host}/POD; for an account: bursar show KIND {host}"
        )),
        _ => None,
    }
}

async fn all(context: &Context, Who { what, at }: &Who) -> Result<Value, Failure> {
    let mut store = context.store().await?;
    let policy = match (what, context.settings()) {
        (What::Host(_), settings) => Some(settings?.policy),
        (_, settings) => settings.ok().map(|settings| settings.policy).filter(|_| at.is_none()),
    };
    let now = match policy {
        Some(policy) => Some((store.state().await?, policy)),
        None => None,
    };
    let mut found = answer(&mut store, now.as_ref().map(|(ledger, policy)| (ledger, policy)), what, *at).await?;
    // The cluster knows only current pods.
    if let (What::Pod(namespace, name), None) = (what, at)
        && found["answers"].as_array().is_some_and(|answers| !answers.is_empty())
    {
        let (pods, notes) = pods(context, &found["answers"], namespace, name).await;
        found["pods"] = json!(pods);
        if let Some(all) = found["notes"].as_array_mut() {
            all.extend(notes.into_iter().map(Value::String));
        }
    }
    Ok(found)
}

/// Returns the pods with this name in the clusters where the answers have the namespace, and notes about pods that were
/// not found.
async fn pods(context: &Context, answers: &Value, namespace: &str, name: &str) -> (Vec<Value>, Vec<String>) {
    let owned = answers.as_array().into_iter().flatten().filter_map(|answer| answer["namespaces"].as_array());
    let here = owned.flatten().filter(|owned| owned["namespace"] == namespace);
    let clusters = here.filter_map(|owned| Some(ClusterName(owned["cluster"].as_str()?.into())));
    let (mut pods, mut notes) = (Vec::new(), Vec::new());
    for cluster in clusters {
        match pod(context, &cluster, namespace, name).await {
            Ok(Some(pod)) => pods.push(pod),
            Ok(None) => notes.push(format!("cluster {cluster} has no pod {namespace}/{name} now")),
            Err(why) => notes.push(format!("the pod was not looked up in cluster {cluster}: {why}")),
        }
    }
    (pods, notes)
}

/// Returns facts about a pod, which is read with the daemon's access. The daemon may list pods, but not get one.
async fn pod(context: &Context, cluster: &ClusterName, namespace: &str, name: &str) -> Result<Option<Value>, String> {
    if !may_act() {
        return Err("reading it needs root or user bursar".to_owned());
    }
    let settings = context.settings().map_err(|failure| failure.text)?;
    let kubeconfig = settings.clusters.get(cluster).ok_or("it is not in the configuration")?;
    let asked = async {
        let client = bootstrap::client(kubeconfig).await.map_err(|error| chain(&error))?;
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        Api::<Pod>::namespaced(client, namespace).list(&only).await.map_err(|error| chain(&error))
    };
    let silent = |_| format!("it did not answer within {} s", DEADLINE.as_secs());
    let found = tokio::time::timeout(DEADLINE, asked).await.map_err(silent)??;
    Ok(found.items.first().map(|pod| said(cluster, pod)))
}

fn said(cluster: &ClusterName, pod: &Pod) -> Value {
    let spec = pod.spec.as_ref();
    let of_pod = spec.and_then(|spec| spec.security_context.as_ref()?.run_as_user);
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    let of_containers = containers.filter_map(|container| container.security_context.as_ref()?.run_as_user);
    let mut uids: Vec<i64> = of_containers.chain(of_pod).collect();
    uids.sort_unstable();
    uids.dedup();
    let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let first = pod.metadata.managed_fields.iter().flatten().min_by_key(|entry| entry.time.clone());
    json!({
        "cluster": cluster,
        "pod": pod.metadata.name,
        "created_at": pod.metadata.creation_timestamp,
        "uids": uids,
        "controller": controller.map(|owner| format!("{}/{}", owner.kind, owner.name)),
        "made_with": first.and_then(|entry| entry.manager.clone()),
        "node": spec.and_then(|spec| spec.node_name.clone()),
        "phase": pod.status.as_ref().and_then(|status| status.phase.clone()),
    })
}

/// Formats one account with its namespaces and people.
fn block(answer: &Row) -> String {
    let mut pairs = answer.clone();
    let mut rows = |key: &str| -> Vec<Row> {
        let taken = pairs.remove(key);
        taken.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_object).cloned().collect()
    };
    let (namespaces, people) = (rows("namespaces"), rows("people"));
    let (with, without): (Vec<Row>, Vec<Row>) = people.into_iter().partition(|person| person["access"] == true);
    let is_known = |column: &&str| namespaces.iter().any(|row| row.get(*column).is_some_and(|cell| !cell.is_null()));
    let columns: Vec<&str> = ["cluster", "namespace", "class", "first_class"].into_iter().filter(is_known).collect();
    let by = pairs.remove("found_by");
    let by: Vec<&str> = by.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str).collect();
    let account = pairs.remove("account").unwrap_or_default();
    pairs.remove("access");
    let mut parts = vec![format!("{}: {}\n{}", output::cell(&account), clean(&by.join("; ")), output::pairs(&pairs))];
    parts.extend((!namespaces.is_empty()).then(|| output::table(&namespaces, &columns)));
    let mut list = |title: &str, people: &[Row]| {
        if !people.is_empty() {
            parts.extend([title.to_owned(), output::table(people, &["member", "role", "since", "mail"])]);
        }
    };
    list("these people have access:", &with);
    list("these people belong to it, but have no access:", &without);
    if with.is_empty() && without.is_empty() {
        parts.push("no person belongs to it".to_owned());
    }
    parts.join("\n")
}
