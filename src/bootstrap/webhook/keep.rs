//! The daemon's part after the installation: the certificate is replaced in time, and the webhook is told of another
//! configuration.

use jiff::Timestamp;
use kube::Client;

use super::authority::{Authorities, SETTLES, WITHIN};
use super::install::{Times, configure, within_names};
use super::manifests::{config_map, secret};
use super::{AccessError, Reached, WebhookRequest, found, put};

/// How the webhook stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// There is none.
    Absent,
    /// It runs outside of the cluster, where nobody but an administrator replaces its files.
    Outside {
        /// When its certificate ends.
        not_after: Option<Timestamp>,
        /// It was given other rules than those of the configuration.
        outdated: bool,
    },
    /// It is as it should be.
    Well {
        /// When there is something to do.
        due: Timestamp,
        /// Something was written now.
        wrote: bool,
    },
}

/// Looks at the webhook of a cluster, and renews what is due. Asks one thing of a cluster where nothing is.
///
/// # Errors
/// The cluster does not answer, or does not take something.
pub async fn keep(client: &Client, request: WebhookRequest<'_>) -> Result<Kept, AccessError> {
    let Some(before) = found(client).await? else { return Ok(Kept::Absent) };
    let outdated = !request.is_given(client, &before).await?;
    if before.url.is_some() {
        return Ok(Kept::Outside { not_after: before.not_after, outdated });
    }
    let authorities = Authorities::open(request.state_dir, request.cluster, request.now)?;
    let bundle = authorities.bundle(&before.believed, request.now);
    let is_due = before.renew_after.is_none_or(|due| due <= request.now);
    let serving = if is_due { authorities.sign(&within_names(), WITHIN, &before.believed, request.now)? } else { None };
    let times = match (&serving, before.renew_after, before.not_after) {
        (Some(serving), _, _) => Times::from(serving),
        (None, Some(renew_after), Some(not_after)) => Times { renew_after, not_after },
        // Somebody took the annotations off: as if it were due.
        (None, ..) => Times { renew_after: request.now, not_after: request.now },
    };
    let waits = is_due && serving.is_none();
    let due = if waits { request.now + SETTLES } else { times.renew_after };
    if !outdated && serving.is_none() && before.believed.trim() == bundle.trim() {
        return Ok(Kept::Well { due, wrote: false });
    }
    let mut wrote = Vec::new();
    if let Some(serving) = &serving {
        put(client, &secret(&serving.certificate, &serving.key), &mut wrote).await?;
    }
    if outdated {
        put(client, &config_map(&request.rules().to_json(), &request.seal()), &mut wrote).await?;
    }
    configure(client, request, &Reached::Service, &bundle, &times, &mut wrote).await?;
    Ok(Kept::Well { due, wrote: true })
}
