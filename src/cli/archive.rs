//! `bursar archive list|show|apply`: lists archives of namespaces, shows one, and restores its objects. Every caller
//! who may read the ledger may list archives. Only root and user `bursar` may read and restore one.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::arguments::{Archive, ArchiveApply, ArchiveFile, MaybeWhy};
use super::context::{Context, as_bursar, ledger_of};
use super::exit::{Exit, Failure};
use super::recovery::may;
use super::{admin, order, output, show};
use crate::archive::{About, ArchiveError, Identities, Unpacked};
use crate::execute::request::ApiServer;
use crate::orders::request::{OrderRequest, Target};
use crate::recovery::archive::{Applied, RestoreError, apply as make};
use crate::settings::Settings;
use crate::telemetry::Metrics;
use crate::{bootstrap, runtime};

/// Selects every archive, or those of the account `?1`, such as `tool:foo`.
const LIST: &str = "SELECT * FROM archives WHERE ?1 IN ('', account) ORDER BY at, file";
const COLUMNS: [&str; 7] = ["account", "cluster", "namespace", "at", "objects", "secrets", "file"];

pub(super) async fn run(context: &Context, command: Archive) -> Result<Exit, Failure> {
    match command {
        Archive::List(arguments) => show::list(context, arguments, LIST, &COLUMNS, "no archives").await,
        Archive::Show(ArchiveFile { file }) => show(context, &file).await,
        Archive::Apply(arguments) => apply(context, arguments).await,
    }
}

async fn show(context: &Context, file: &str) -> Result<Exit, Failure> {
    may()?;
    let settings = context.settings()?;
    let Unpacked { about, objects, .. } = as_bursar(read(&settings, file)).await??;
    let names = objects.iter().map(|(kind, object)| (kind, object["metadata"]["name"].as_str().unwrap_or_default()));
    if context.global.json {
        let mut value = json!(about);
        value["file"] = json!(file);
        value["contents"] = names.map(|(kind, name)| json!({"kind": kind, "name": name})).collect();
        output::json(&value)?;
        return Ok(Exit::Done);
    }
    let mut kinds: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
    names.for_each(|(kind, name)| kinds.entry(kind).or_default().push(name));
    output::line(format!("{file}: intact\n{}", said(&about)));
    for (kind, names) in kinds {
        output::line(format!("{kind:<32} {}", output::clean(&names.join(", "))));
    }
    Ok(Exit::Done)
}

fn said(about: &About) -> String {
    let secrets = match (about.secrets, about.left_out, &about.recipient) {
        (0, 0, _) => "no Secrets".to_owned(),
        (0, left_out, _) => format!("{left_out} Secrets left out: there was no [archive] recipient"),
        (secrets, _, recipient) => {
            format!("{secrets} Secrets, encrypted to {}", recipient.as_deref().unwrap_or_default())
        }
    };
    format!(
        "namespace {} of {} in {}, {:.0}: {} objects, {secrets}",
        about.namespace, about.account, about.cluster, about.at, about.objects
    )
}

async fn apply(context: &Context, arguments: ArchiveApply) -> Result<Exit, Failure> {
    may()?;
    let ArchiveApply { file, identity, admin, why: MaybeWhy { reason, ticket } } = arguments;
    let settings = context.settings()?;
    let identities = identity.map(|path| {
        let wrong = |why: String| format!("{}: {why}; --identity must name a file of age-keygen", path.display());
        let text = fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        text.parse::<Identities>().map_err(|error| wrong(error.to_string()))
    });
    let identities = identities.transpose().map_err(|error| Failure::new(Exit::Failed, error))?;
    let unpacked = as_bursar(read(&settings, &file)).await??;
    let key = as_bursar(async { runtime::read_seal(&settings.state_dir) }).await??.public_key();
    let about = &unpacked.about;
    let mut objects = unpacked.objects.clone();
    if let Some(identities) = &identities {
        objects.extend(unpacked.secrets(identities)?);
    }
    let admin = admin::of_cluster(&settings, &about.cluster, admin.file()).await?;
    bootstrap::must_be_same(&about.cluster, &settings.clusters[&about.cluster], &admin).await?;
    let client = bootstrap::client(&admin).await?;
    let server = ApiServer::new(about.cluster.clone(), client, Arc::new(Metrics::default()));
    let progress = output::progress("making the objects");
    let applied = make(&server, about, objects, &[key]).await?;
    progress.finish_and_clear();
    let secrets = if identities.is_none() { about.secrets } else { 0 };
    let target = Target { kind: about.account.kind, name: about.account_id.0.to_string(), reason, ticket };
    let made = applied.made.len() as u64;
    // The history records who restored what.
    let told = order::asked(context, &[OrderRequest::Restored { target, file: file.clone(), objects: made }]).await;
    print(context, &file, &applied, secrets)?;
    told?;
    Ok(if applied.failed.is_empty() { Exit::Done } else { Exit::Failed })
}

fn print(context: &Context, file: &str, applied: &Applied, secrets: u64) -> Result<(), Failure> {
    let Applied { made, left, failed, next } = applied;
    if context.global.json {
        let pairs = |pairs: &[(String, String)]| -> Value {
            pairs.iter().map(|(object, why)| json!({"object": object, "why": why})).collect()
        };
        let left: Vec<(String, String)> =
            left.iter().map(|(object, why)| (object.clone(), (*why).to_owned())).collect();
        return Ok(output::json(&json!({
            "file": file, "made": made, "left": pairs(&left), "failed": pairs(failed), "next": next,
            "secrets_left": secrets,
        }))?);
    }
    output::line(format!("{} objects created: {}", made.len(), made.join(", ")));
    for (object, why) in left {
        output::line(format!("left out: {object}: {why}"));
    }
    if secrets > 0 {
        output::line(format!("left out: {secrets} Secrets: --identity FILE decrypts them"));
    }
    for (object, why) in failed {
        output::line(output::clean(&format!("failed: {object}: {why}")));
    }
    for next in next {
        output::line(format!("next: {next}"));
    }
    Ok(())
}

/// Reads an archive that the ledger knows, and checks that the file was not changed.
async fn read(settings: &Settings, file: &str) -> Result<Unpacked, Failure> {
    let ledger = ledger_of(settings).await?;
    let Some(row) = ledger.archives.get(file) else {
        let text = format!("the ledger has no archive {file:?}; `bursar archive list` lists them");
        return Err(Failure::new(Exit::NoAccount, text));
    };
    Ok(settings.archives().read(file, &row.digest)?)
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        anyhow::Error::new(error).into()
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        anyhow::Error::new(error).into()
    }
}
