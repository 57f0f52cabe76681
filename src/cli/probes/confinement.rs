//! Checks whether the daemon is confined in a cluster, and says what an attacker on this host could still do.

use std::sync::Arc;
use std::time::Duration;

use super::Finding;
use crate::bootstrap::confinement::{self, Breach, Compared, ConfinementWatch, Probed};
use crate::bootstrap::webhook::{self, ENDS_SOON, WebhookRequest};
use crate::bootstrap::{AccessError, Said, approver, owner_and_said};
use crate::errors::chain;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::settings::Settings;
use crate::{daemon, runtime};

/// The deadline for the first answers of the watches. Each of them lists one object.
const HEARD_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) async fn confinement(
    settings: &Settings,
    cluster: &ClusterName,
    client: &kube::Client,
    (ledger, init): (&LedgerState, &str),
) -> Vec<Finding> {
    let subject = format!("cluster {cluster}, confinement");
    match look(settings, cluster, client, (ledger, init, &subject)).await {
        Ok(findings) => findings,
        Err(error) => vec![Finding::bad(subject, chain(&error), "see the API server's load and log")],
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for the API server, with a deadline")]
async fn look(
    settings: &Settings,
    cluster: &ClusterName,
    client: &kube::Client,
    (ledger, init, subject): (&LedgerState, &str, &str),
) -> Result<Vec<Finding>, AccessError> {
    let said = owner_and_said(client).await?.map(|(_, said)| said).unwrap_or_default();
    let Ok(sealer) = runtime::read_seal(&settings.state_dir) else {
        return Ok(vec![Finding::bad(subject, "the seal cannot be read", init)]);
    };
    let (policy, state_dir, now) = (&settings.policy, settings.state_dir.as_path(), daemon::now());
    let request = WebhookRequest { policy, cluster, ledger, state_dir, sealer: &sealer, now };
    let (expected, ways) = confinement::expected(client, request, &said).await?;
    let rules = confinement::rule_names(policy, cluster);
    let watch = ConfinementWatch::start(client, webhook::mutates(client).await?, rules, &Arc::default());
    let begun = tokio::time::Instant::now();
    let Compared { breaches, unlisted } = loop {
        let compared = watch.compare(&expected);
        if compared.unlisted.is_empty() || begun.elapsed() >= HEARD_WITHIN {
            break compared;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let breaches = breaches.into_iter().map(|Breach { object, what, repairable, .. }| {
        let remedy = if repairable { "systemctl status bursard: the daemon restores it" } else { init };
        Finding::bad(subject, format!("{object} {what}"), remedy)
    });
    let unlisted = unlisted.into_iter().map(|object| Finding::bad(subject, format!("{object} cannot be read"), init));
    let foreign = watch.foreign(state_dir, cluster)?;
    let foreign = foreign.map(|what| Finding::bad(subject, what, webhook::replaced_by(cluster)));
    let mut findings: Vec<Finding> = breaches.chain(unlisted).chain(foreign).collect();
    match confinement::probe(client).await? {
        Probed::Refused => {}
        Probed::LetThrough => findings.push(Finding::bad(subject, "bursar-cage is not enforced", init)),
        Probed::ByAnother(why) => {
            findings.push(Finding::bad(
                subject,
                format!("cannot check whether ValidatingAdmissionPolicy bursar-cage is enforced: {why}"),
                init,
            ));
        }
    }
    findings.extend(confinement::administrators_by_directory(policy, cluster).map(|what| Finding::good(subject, what)));
    findings.extend(approver(settings, cluster, (&ledger.ledger_id, sealer.public_key()), (subject, &said)));
    if findings.iter().all(|finding| finding.remedy.is_none()) {
        let sentence = confinement::sentence(&ways).map(|sentence| format!("; {sentence}")).unwrap_or_default();
        findings.push(Finding::good(subject, format!("the daemon is confined to its work{sentence}")));
    } else if let Some(sentence) = confinement::sentence(&ways) {
        findings.push(Finding::good(subject, sentence));
    }
    Ok(findings)
}

fn approver(
    settings: &Settings,
    cluster: &ClusterName,
    own: (&str, [u8; 32]),
    (subject, said): (&str, &Said),
) -> Vec<Finding> {
    let lacks = approver::lacks(&settings.policy, cluster, own, said);
    let unknown = (!lacks.is_empty()).then(|| {
        let text = format!("the approver does not know the current state of: {}", lacks.join(", "));
        Finding::bad(subject, text, approver::update(cluster, said))
    });
    let ends = said.approver_until.filter(|ends| *ends <= daemon::now() + ENDS_SOON).map(|ends| {
        let text = format!("the files of the approver are good until {ends:.0}");
        Finding::bad(subject, text, approver::update(cluster, said))
    });
    unknown.into_iter().chain(ends).collect()
}
