//! Checks in each cycle whether the daemon is still confined in its clusters. If nothing changed, no cluster is asked.
//! Also looks for a sign that somebody else uses the daemon's credential: a certificate that was signed for a request
//! in the daemon's name that no process of this ledger made.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::sync::Notify;

use super::asking::{Asking, OwnedRequest, PATIENCE};
use super::clusters::{Clusters, Context, Link, is_away, suspect};
use crate::bootstrap::confinement::{self, Breach, Compared, ConfinementWatch, Expected, Probed};
use crate::bootstrap::webhook::{self, WEBHOOK_USER};
use crate::bootstrap::{AccessError, Said, approver};
use crate::control::api::ClusterStatus;
use crate::errors::chain;
use crate::execute::csr_watch::Signed;
use crate::identity::ClusterName;
use crate::ledger::change::{Change, Event};
use crate::ledger::{LedgerState, UnknownCertificate};
use crate::packed_text::DigestText;
use crate::policy::Policy;

/// How long a certificate may be unknown before it is reported. A new certificate of the daemon itself is unknown for a
/// moment, because the ledger records the keys of all other requests before they are made, but not this one.
const UNKNOWN_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// How long a watch of the confinement may take to list its object before this is reported.
const UNLISTED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// What is known of the daemon's confinement in one cluster.
#[derive(Default)]
pub(super) struct Confinement {
    watch: Option<ConfinementWatch>,
    /// Whether the server has mutating admission policies.
    mutates: Option<bool>,
    /// The objects that should exist, with the choices that they were made from. Rebuilt when the choices or the
    /// configuration change.
    expected: Option<(Said, Vec<Expected>)>,
    /// Whether `expected` was made from an older configuration.
    is_outdated: bool,
    asking: Option<Asking<Result<ConfinementFact, AccessError>>>,
    /// The version of the watch that was compared last.
    compared: Option<u64>,
    /// The differences from `expected`; `None` if nothing was compared yet.
    breaches: Option<Vec<Breach>>,
    /// The expected objects that the watch has not shown yet.
    unlisted: Vec<String>,
    /// Since when the watch has not shown every object.
    unlisted_since: Option<Timestamp>,
    /// The result of the probe; `None` if there was no probe yet.
    bites: Option<Probed>,
    /// What is wrong if the cluster has a webhook that this host did not install.
    foreign: Option<String>,
    /// Why the state of the confinement is unknown.
    trouble: Option<String>,
    /// Why this host could make itself the cluster's administrator.
    ways: Vec<String>,
}

impl Confinement {
    /// Forgets what is expected, because the configuration changed or the webhook was installed again.
    pub(super) fn forget_expected(&mut self) {
        (self.is_outdated, self.asking) = (true, None);
    }

    /// Whether the cluster has a webhook that this host did not install.
    pub(super) const fn has_foreign_webhook(&self) -> bool {
        self.foreign.is_some()
    }

    fn is_whole(&self) -> bool {
        self.trouble.is_none()
            && self.foreign.is_none()
            && self.unlisted.is_empty()
            && self.breaches.as_ref().is_some_and(|all| all.iter().all(|breach| breach.outdated))
            && self.bites == Some(Probed::Refused)
    }

    /// Returns what is wrong with the confinement, as far as it is known.
    pub(super) fn findings(&self) -> Vec<String> {
        let breaches = self.breaches.iter().flatten().map(|Breach { object, what, .. }| format!("{object} {what}"));
        let bites = match &self.bites {
            None | Some(Probed::Refused) => None,
            Some(Probed::LetThrough) => {
                Some("the API server does not enforce bursar-cage against this daemon; run bursar init".to_owned())
            }
            Some(Probed::ByAnother(why)) => {
                Some(format!("cannot check whether ValidatingAdmissionPolicy bursar-cage is enforced: {why}"))
            }
        };
        breaches.chain(bites).chain(self.foreign.clone()).chain(self.trouble.clone()).collect()
    }
}

impl Clusters {
    /// Compares what the watches have seen with what should exist, and repairs the parts that the daemon may write. A
    /// cluster that does not answer is skipped, so that it does not delay the others.
    pub(super) async fn confine(&mut self, context: Context<'_>) {
        let Context { ledger, now, renew, .. } = context;
        let mut weakened = BTreeSet::new();
        let (there, changed) = (&self.effects.clusters, &self.changed);
        let links = self.links.iter_mut().filter(|(cluster, _)| !is_away(there, cluster));
        let looks = links.map(async |(cluster, link)| {
            let looked = look(link, cluster, context, changed).await;
            (cluster, link, looked)
        });
        for (cluster, link, looked) in futures::future::join_all(looks).await {
            if link.confinement.asking.is_some() {
                suspect(there, cluster);
            }
            match looked {
                Ok(Some(true)) => drop(weakened.insert(cluster.clone())),
                Ok(Some(false)) => {}
                Ok(None) => {
                    let why = "the cluster has not answered yet whether the daemon is confined";
                    link.confinement.trouble = Some(why.to_owned());
                }
                Err(error) => {
                    let why = chain(&error);
                    if link.confinement.trouble.as_ref() != Some(&why) {
                        tracing::warn!(%cluster, error = why, "it is unknown whether the daemon is confined");
                    }
                    link.confinement.trouble = Some(why);
                }
            }
        }
        if !weakened.is_empty() && renew {
            for (_, link) in self.links.iter_mut().filter(|(cluster, _)| weakened.contains(*cluster)) {
                (link.webhook_due, link.weakened, link.keeping) = (None, true, None);
                link.confinement.forget_expected();
            }
            self.keep_webhooks(context).await;
        }
        self.find_suspects(ledger, now);
    }

    /// Returns the clusters in which the confinement is not confirmed.
    pub(super) fn unconfined(&self) -> BTreeSet<ClusterName> {
        let links = self.links.iter().filter(|(_, link)| !link.confinement.is_whole());
        links.map(|(cluster, _)| cluster.clone()).collect()
    }

    /// Finds certificates that were signed for requests of the daemon, but are neither in the ledger nor the daemon's
    /// own.
    fn find_suspects(&mut self, ledger: &LedgerState, now: Timestamp) {
        let known: LazyCell<BTreeSet<&DigestText>, _> =
            LazyCell::new(|| ledger.certificates.values().map(|certificate| &certificate.fingerprint).collect());
        let is_recorded = |cluster: &ClusterName, fingerprint: &String| {
            ledger.unknown_certificates.contains_key(&(cluster.clone(), fingerprint.clone()))
        };
        for (cluster, effects) in &self.effects.clusters {
            let Some(link) = self.links.get_mut(cluster) else { continue };
            for signed in effects.server.certificates().signed() {
                let Signed { subject, fingerprint, not_after, request } = signed;
                // `bursar webhook install` requests the certificate of a webhook outside the cluster. Its user may
                // only read namespaces.
                if subject == format!("CN={WEBHOOK_USER}") {
                    continue;
                }
                let text = UnknownCertificate::text(&subject, not_after, &request, &fingerprint);
                let suspect = UnknownCertificate { text, since: now, not_after };
                link.suspects.entry(fingerprint).or_insert((suspect, false));
            }
            let own = link.own.as_ref().map(|own| own.0.clone());
            link.suspects.retain(|fingerprint, _| {
                let is_known = known.contains(&DigestText::from(fingerprint.as_str()));
                let is_known = is_known || own.as_ref() == Some(fingerprint);
                !is_known && !is_recorded(cluster, fingerprint)
            });
            for (suspect, told) in link.suspects.values_mut() {
                if !*told && suspect.since + UNKNOWN_AFTER <= now {
                    *told = true;
                    let certificate = suspect.text.as_str();
                    tracing::error!(%cluster, certificate, "a certificate was signed for a request in the daemon's name that \
                        Bursar did not make: treat the daemon's key as stolen");
                }
            }
        }
    }

    /// Returns what the ledger has to record of certificates that were signed for requests that Bursar did not make.
    /// Without the record, they would be forgotten if somebody deletes the requests or this process ends.
    pub(super) fn unknown_certificates(&self) -> (Vec<Change>, Vec<Event>) {
        let suspects = self.links.iter().flat_map(|(cluster, link)| link.suspects.iter().map(move |it| (cluster, it)));
        let told = suspects.filter(|(_, (_, (_, told)))| *told);
        told.map(|(cluster, (fingerprint, (suspect, _)))| {
            let detail = json!({"cluster": cluster, "fingerprint": fingerprint, "not_after": suspect.not_after});
            let event = Event::new("unknown certificate", suspect.text.clone(), detail);
            (Change::UnknownCertificate(cluster.clone(), fingerprint.clone(), suspect.clone()), event)
        })
        .unzip()
    }

    /// Returns a notice for each cluster whose approver has rules for another configuration, ledger or seal key; `own`
    /// is the id and the key of this ledger. Certificates in such a cluster wait until an administrator updates the
    /// approver.
    pub(crate) fn outdated_approvers(&self, policy: &Policy, own: (&str, [u8; 32])) -> BTreeMap<&ClusterName, String> {
        let notices = self.links.iter().filter_map(|(cluster, link)| {
            let said = link.owner.said();
            let lacks = approver::lacks(policy, cluster, own, &said);
            let notice = || {
                format!(
                    "the approver does not know the current state of: {}; certificates wait; run: {}",
                    lacks.join(", "),
                    approver::update(cluster, &said)
                )
            };
            (!lacks.is_empty()).then(|| (cluster, notice()))
        });
        notices.collect()
    }

    /// Fills in what `status` shows of a cluster's confinement, certificates and webhook.
    pub(super) fn confinement_status(&self, cluster: &ClusterName, status: &mut ClusterStatus) {
        let Some(link) = self.links.get(cluster) else { return };
        status.confinement = link.confinement.findings();
        status.administrator = confinement::sentence(&link.confinement.ways);
        status.own_certificate_until = link.own.as_ref().map(|own| own.1);
        status.webhook = link.review.answer();
        status.unenforced.clone_from(&link.review.unenforced);
        let told = link.suspects.values().filter(|(_, told)| *told);
        status.unknown_certificates = told.map(|(suspect, _)| suspect.text.clone()).collect();
    }
}

/// The answer to a question about the confinement.
enum ConfinementFact {
    /// Whether the server has mutating admission policies.
    Mutates(bool),
    /// The objects that should exist for these choices, and why this host could make itself the cluster's
    /// administrator.
    Expected(Box<Said>, Vec<Expected>, Vec<String>),
    /// The version of the watch before the probe, and whether the policy refused the probe.
    Probed(u64, Probed),
}

/// Returns whether an object that the daemon may write has to be repaired, or `None` if the cluster has not answered
/// yet.
async fn look(
    link: &mut Link,
    cluster: &ClusterName,
    context: Context<'_>,
    changed: &Arc<Notify>,
) -> Result<Option<bool>, AccessError> {
    let Link { confinement, client, owner, keeping, .. } = link;
    // If this cycle has already waited for the webhook, it does not wait again.
    let patience = if keeping.is_none() { PATIENCE } else { Duration::ZERO };
    let said = owner.said();
    if confinement.mutates.is_none() {
        let client = client.clone();
        confinement.ask(changed, async move { Ok(ConfinementFact::Mutates(webhook::mutates(&client).await?)) });
        let Some(()) = confinement.take_answer(patience).await? else { return Ok(None) };
    }
    let Some(mutates) = confinement.mutates else { return Ok(None) };
    let is_made = |it: &Confinement| !it.is_outdated && it.expected.as_ref().is_some_and(|(made, _)| *made == said);
    if !is_made(confinement) {
        let rules = confinement::rule_names(&context.settings.policy, cluster);
        if confinement.watch.as_ref().is_none_or(|watch| watch.rules() != rules) {
            confinement.watch = Some(ConfinementWatch::start(client, mutates, rules, changed));
            confinement.compared = None;
        }
    }
    let Some(watch) = &confinement.watch else { return Ok(None) };
    let version = watch.version();
    let foreign = watch.foreign(&context.settings.state_dir, cluster)?;
    let foreign = foreign.map(|what| format!("{what}; run: {}", webhook::replaced_by(cluster)));
    if let Some(what) = foreign.as_ref().filter(|_| confinement.foreign != foreign) {
        tracing::error!(%cluster, what, "the cluster has a webhook that this host did not install");
    }
    confinement.foreign = foreign;
    if is_made(confinement)
        && confinement.compared == Some(version)
        && confinement.breaches.is_some()
        && confinement.unlisted.is_empty()
        && confinement.trouble.is_none()
    {
        return Ok(Some(false));
    }
    if !is_made(confinement) {
        let (client, said, request) = (client.clone(), said.clone(), OwnedRequest::of(context, cluster));
        confinement.ask(changed, async move {
            let (expected, ways) = confinement::expected(&client, request.borrowed(), &said).await?;
            Ok(ConfinementFact::Expected(Box::new(said), expected, ways))
        });
        confinement.take_answer(patience).await?;
    }
    // Until the new expected objects are known, the former ones are used.
    let (Some((_, expected)), Some(watch)) = (&confinement.expected, &confinement.watch) else { return Ok(None) };
    confinement.trouble = None;
    let Compared { breaches, unlisted } = watch.compare(expected);
    let before = confinement.breaches.replace(breaches);
    confinement.unlisted = unlisted;
    match confinement.unlisted.first() {
        None => confinement.unlisted_since = None,
        Some(object) => {
            let since = *confinement.unlisted_since.get_or_insert(context.now);
            if since + UNLISTED_AFTER <= context.now {
                confinement.trouble = Some(format!("{object} has not been listed since {since:.0}"));
            }
        }
    }
    for Breach { object, what, outdated, .. } in confinement.breaches.iter().flatten() {
        if before.iter().flatten().any(|known| known.object == *object && known.what == *what) {
            continue;
        }
        if *outdated {
            tracing::warn!(%cluster, object, what, "a change of the configuration is not in force");
        } else {
            tracing::error!(%cluster, object, what, "the daemon's confinement is weakened");
        }
    }
    // A new configuration changes what is expected, but not what the API server enforces.
    if confinement.unlisted.is_empty() && (confinement.compared != Some(version) || confinement.bites.is_none()) {
        confinement.bites = None;
        let client = client.clone();
        confinement
            .ask(changed, async move { Ok(ConfinementFact::Probed(version, confinement::probe(&client).await?)) });
        let Some(()) = confinement.take_answer(patience).await? else { return Ok(None) };
    }
    Ok(Some(confinement.breaches.iter().flatten().any(|breach| breach.repairable)))
}

impl Confinement {
    /// Asks the cluster, unless it has not answered the last question yet.
    fn ask(
        &mut self,
        changed: &Arc<Notify>,
        question: impl Future<Output = Result<ConfinementFact, AccessError>> + Send + 'static,
    ) {
        self.asking.get_or_insert_with(|| Asking::begin(question, changed));
    }

    /// Takes the answer, or returns `None` if there is none yet.
    async fn take_answer(&mut self, patience: Duration) -> Result<Option<()>, AccessError> {
        let Some(answer) = Asking::answer(&mut self.asking, Some(patience)).await else { return Ok(None) };
        match answer? {
            ConfinementFact::Mutates(mutates) => self.mutates = Some(mutates),
            ConfinementFact::Expected(said, expected, ways) => {
                (self.expected, self.ways, self.is_outdated) = (Some((*said, expected)), ways, false);
            }
            ConfinementFact::Probed(version, probed) => (self.compared, self.bites) = (Some(version), Some(probed)),
        }
        Ok(Some(()))
    }
}

/// The suspect certificates of a cluster that the ledger has not recorded, by fingerprint, and whether each was
/// reported.
pub(super) type Suspects = BTreeMap<String, (UnknownCertificate, bool)>;
