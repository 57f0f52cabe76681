//! Maintains an installed webhook: renews its certificate, and updates its rules after a change of the configuration.

use jiff::Timestamp;
use kube::Client;

use super::authority::{Authorities, SETTLES, WITHIN};
use super::install::{Times, configure, keep_backstop, within_names};
use super::manifests::{config_map, secret};
use super::remembered::{Remembered, remembered, turn};
use super::{AccessError, InstalledWebhook, Reached, WebhookRequest, found, put};

/// The state of the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// This host did not install it, or an administrator uninstalled it.
    Absent,
    /// It runs outside the cluster, where only an administrator can replace its files.
    Outside {
        /// When its certificate expires.
        not_after: Option<Timestamp>,
        /// Whether its rules differ from those of the configuration.
        outdated: bool,
    },
    /// It runs in the cluster and works.
    Well {
        /// When the next renewal is due.
        due: Timestamp,
        /// Whether something was written now.
        wrote: bool,
    },
}

impl From<&Remembered> for InstalledWebhook {
    fn from(remembered: &Remembered) -> Self {
        let Remembered { url, authorities, renew_after, not_after, .. } = remembered.clone();
        let (renew_after, not_after) = (Some(renew_after), Some(not_after));
        Self { believed: authorities, url, renew_after, not_after, given: String::new() }
    }
}

/// Checks the webhook of a cluster and renews what is due. A webhook that this host did not install is not maintained:
/// its authority may be a thief's. If `weakened` is set, a configuration or binding differs from what was installed, and
/// all of them are written again, as if they were missing.
pub async fn keep(client: &Client, request: WebhookRequest<'_>, weakened: bool) -> Result<Kept, AccessError> {
    if remembered(request.state_dir, request.cluster)?.is_none() {
        keep_backstop(client, request).await?;
        return Ok(Kept::Absent);
    }
    let turn = turn(request.state_dir, request.cluster).await?;
    // A command that had the turn may have replaced or removed the record.
    let Some(remembered) = remembered(request.state_dir, request.cluster)? else { return Ok(Kept::Absent) };
    let (before, weakened) = match found(client).await? {
        Some(before) => (before, weakened),
        None => (InstalledWebhook::from(&remembered), true),
    };
    // The authorities and the address come from this host's record, because those in the cluster may have been changed.
    // Senders that differ in the configuration are left to `bursar webhook install`, which tests them before they take
    // effect.
    let Remembered { url, authorities: believed, renew_after, not_after, senders } = remembered;
    let outdated = !request.is_given(client, &before).await?;
    if let Some(url) = url {
        if weakened {
            let (times, reached) = (Times { renew_after, not_after }, Reached::Url(url));
            configure(&turn, client, request, (&reached, &believed), (&times, &senders), &mut Vec::new()).await?;
        }
        return Ok(Kept::Outside { not_after: before.not_after, outdated: outdated && !weakened });
    }
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let bundle = authorities.bundle(&believed, request.now);
    let is_due = before.renew_after.is_none_or(|due| due <= request.now);
    let serving = if is_due { authorities.sign(&within_names(), WITHIN, &believed, request.now)? } else { None };
    let times = match (&serving, before.renew_after, before.not_after) {
        (Some(serving), _, _) => Times::from(serving),
        (None, Some(renew_after), Some(not_after)) => Times { renew_after, not_after },
        // The annotations were removed, so a renewal counts as due.
        (None, ..) => Times { renew_after: request.now, not_after: request.now },
    };
    let waits = is_due && serving.is_none();
    let due = if waits { request.now + SETTLES } else { times.renew_after };
    if !outdated && !weakened && serving.is_none() && believed.trim() == bundle.trim() {
        return Ok(Kept::Well { due, wrote: false });
    }
    let mut wrote = Vec::new();
    if let Some(serving) = &serving {
        put(client, &secret(&serving.certificate, &serving.key), &mut wrote).await?;
    }
    if outdated {
        put(client, &config_map(&request.rules_text(senders.client.as_ref()), &request.seal()), &mut wrote).await?;
    }
    configure(&turn, client, request, (&Reached::Service, &bundle), (&times, &senders), &mut wrote).await?;
    Ok(Kept::Well { due, wrote: true })
}
