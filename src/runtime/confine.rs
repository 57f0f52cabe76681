//! The confinement of the daemon in its clusters, looked at in each cycle: nothing is asked where nothing changed. With it
//! what else says whether this host is still the only one with the daemon's credential: certificates that nobody here
//! asked for, and the end of its own.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::clusters::{Clusters, Context, Link};
use crate::bootstrap::confinement::{self, Breach, ConfinementWatch, Expected, Probed};
use crate::bootstrap::webhook::{self, WEBHOOK_USER, WebhookRequest};
use crate::bootstrap::{AccessError, Said};
use crate::control::api::ClusterStatus;
use crate::desired::approver_rules::unknown_classes;
use crate::errors::chain;
use crate::execute::csr_watch::Signed;
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::policy::Policy;

/// A certificate that was issued so long ago, and that no ledger has, is nobody's here: one of ours is in the ledger, or
/// its failure is, within a second.
const UNKNOWN_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// What is known of the confinement in one cluster.
#[derive(Default)]
pub(super) struct Confinement {
    watch: Option<ConfinementWatch>,
    /// What should be there; made again when what it was made from changed.
    expected: Option<(Said, Vec<Expected>)>,
    /// The watch's version that was compared last.
    compared: Option<u64>,
    /// `None`: not every object was heard of yet.
    breaches: Option<Vec<Breach>>,
    /// Whether the policy refused the probe; `None`: it was not tried yet.
    bites: Option<Probed>,
    /// Why nobody knows.
    trouble: Option<String>,
    /// What a thief of this host would need nothing more for.
    ways: Vec<String>,
}

impl Confinement {
    /// The configuration is another, or the webhook was installed again.
    pub(super) fn forget_expected(&mut self) {
        self.expected = None;
    }

    fn is_whole(&self) -> bool {
        self.trouble.is_none()
            && self.breaches.as_ref().is_some_and(|all| all.iter().all(|breach| breach.outdated))
            && self.bites == Some(Probed::Refused)
    }

    /// What is wrong with it, as far as is known.
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
        breaches.chain(bites).chain(self.trouble.clone()).collect()
    }
}

impl Clusters {
    /// Compares what the watches heard with what should be there, and has what the daemon may write written again.
    pub(super) async fn confine(&mut self, context: Context<'_>) {
        let Context { settings, ledger, sealer, now, renew, .. } = context;
        let mut weakened = BTreeSet::new();
        for (cluster, link) in &mut self.links {
            let request = WebhookRequest {
                policy: &settings.policy,
                cluster,
                ledger,
                state_dir: &settings.state_dir,
                sealer,
                now,
            };
            match look(link, request, &self.changed).await {
                Ok(true) => drop(weakened.insert(cluster.clone())),
                Ok(false) => {}
                Err(error) => {
                    let why = chain(&error);
                    if link.confinement.trouble.as_ref() != Some(&why) {
                        tracing::warn!(%cluster, error = why, "the confinement is not known");
                    }
                    link.confinement.trouble = Some(why);
                }
            }
        }
        if !weakened.is_empty() && renew {
            for (_, link) in self.links.iter_mut().filter(|(cluster, _)| weakened.contains(*cluster)) {
                (link.webhook_due, link.weakened) = (None, true);
                link.confinement.forget_expected();
            }
            self.keep_webhooks(context).await;
        }
        self.suspect(ledger, now);
    }

    /// Clusters whose confinement is not known to be whole.
    pub(super) fn unconfined(&self) -> BTreeSet<ClusterName> {
        let links = self.links.iter().filter(|(_, link)| !link.confinement.is_whole());
        links.map(|(cluster, _)| cluster.clone()).collect()
    }

    /// Certificates that were signed for requests of the daemon, and that neither the ledger nor this process knows.
    fn suspect(&mut self, ledger: &LedgerState, now: Timestamp) {
        let known: BTreeSet<&str> =
            ledger.certificates.values().map(|certificate| certificate.fingerprint.as_str()).collect();
        for (cluster, effects) in &self.effects.clusters {
            let Some(link) = self.links.get_mut(cluster) else { continue };
            for signed in effects.server.certificates().signed() {
                let Signed { subject, fingerprint, not_after, request } = signed;
                // A webhook outside of the cluster is installed by a command; its name reads namespaces, and nothing else.
                if subject == format!("CN={WEBHOOK_USER}") {
                    continue;
                }
                let text =
                    format!("{subject}, good until {not_after:.0} (request {request}, X509SHA256={fingerprint})");
                link.suspects.entry(fingerprint).or_insert((now, false, text));
            }
            let own = link.own.as_ref().map(|own| own.0.clone());
            link.suspects
                .retain(|fingerprint, _| !known.contains(fingerprint.as_str()) && own.as_ref() != Some(fingerprint));
            for (since, told, text) in link.suspects.values_mut() {
                if !*told && *since + UNKNOWN_AFTER <= now {
                    *told = true;
                    tracing::error!(%cluster, certificate = text.as_str(), "a certificate that Bursar did not ask for was \
                        signed for the daemon's request: treat the daemon's key as stolen");
                }
            }
        }
    }

    /// Classes whose certificates wait for an administrator, before anybody asks for one.
    pub(crate) fn approver_notices(&self, policy: &Policy) -> Vec<String> {
        let notices = self.links.iter().filter_map(|(cluster, link)| {
            let rules = link.owner.said().approver?;
            let classes = unknown_classes(policy, cluster, &rules);
            let names: Vec<&str> = classes.iter().map(String::as_str).collect();
            (!names.is_empty()).then(|| {
                format!(
                    "! the approver of cluster {cluster} does not know class {} as it is configured: its certificates wait; \
                     run: bursar approver install --cluster {cluster} --admin-kubeconfig FILE",
                    names.join(", ")
                )
            })
        });
        notices.collect()
    }

    /// What `status` says of a cluster besides its objects.
    pub(super) fn confinement_status(&self, cluster: &ClusterName, status: &mut ClusterStatus) {
        let Some(link) = self.links.get(cluster) else { return };
        status.confinement = link.confinement.findings();
        status.administrator = confinement::sentence(&link.confinement.ways);
        status.own_certificate_until = link.own.as_ref().map(|own| own.1);
        status.webhook = link.review.answer();
        status.unenforced.clone_from(&link.review.unenforced);
        let told = link.suspects.values().filter(|(_, told, _)| *told);
        status.unknown_certificates = told.map(|(_, _, text)| text.clone()).collect();
    }
}

/// Whether something that the daemon may write is not as it should be.
async fn look(
    link: &mut Link,
    request: WebhookRequest<'_>,
    changed: &std::sync::Arc<tokio::sync::Notify>,
) -> Result<bool, AccessError> {
    let Link { confinement, client, owner, .. } = link;
    let said = owner.said();
    let is_made = confinement.expected.as_ref().is_some_and(|(made_for, _)| *made_for == said);
    if !is_made {
        let rules = confinement::rule_names(request.policy, request.cluster);
        if confinement.watch.as_ref().is_none_or(|watch| watch.rules() != rules) {
            let mutates = webhook::mutates(client).await?;
            confinement.watch = Some(ConfinementWatch::start(client, mutates, rules, changed));
            confinement.compared = None;
        }
    }
    let version = confinement.watch.as_ref().map(ConfinementWatch::version);
    if is_made && confinement.compared == version && confinement.breaches.is_some() && confinement.trouble.is_none() {
        return Ok(false);
    }
    if !is_made {
        let (expected, ways) = confinement::expected(client, request, &said).await?;
        confinement.expected = Some((said, expected));
        confinement.ways = ways;
    }
    confinement.trouble = None;
    let expected = confinement.expected.as_ref().map_or(&[][..], |(_, expected)| expected.as_slice());
    let before = confinement.breaches.take();
    confinement.breaches = confinement.watch.as_ref().and_then(|watch| watch.compare(expected));
    if confinement.breaches.is_some() {
        // Another configuration changes what is expected, and nothing that the API server enforces.
        if confinement.compared != version || confinement.bites.is_none() {
            confinement.bites = Some(confinement::probe(client).await?);
        }
        confinement.compared = version;
    }
    for Breach { object, what, outdated, .. } in confinement.breaches.iter().flatten() {
        if before.iter().flatten().any(|known| known.object == *object && known.what == *what) {
            continue;
        }
        if *outdated {
            tracing::warn!(cluster = %request.cluster, object, what, "a change of the configuration is not in force");
        } else {
            tracing::error!(cluster = %request.cluster, object, what, "the daemon's confinement is weakened");
        }
    }
    Ok(confinement.breaches.iter().flatten().any(|breach| breach.repairable))
}

/// Suspects of a cluster, by fingerprint: since when, whether it was told, and what it is.
pub(super) type Suspects = BTreeMap<String, (Timestamp, bool, String)>;
