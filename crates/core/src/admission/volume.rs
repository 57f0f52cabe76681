//! Checks the volumes of a pod: sources within the namespace pass, and sources from outside pass only if the class
//! allows them.
//!
//! Only known sources that cannot leave the namespace count as sources within it. A source that a later version of
//! Kubernetes adds therefore counts as one from outside.

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, field, list, quoted, text};
use super::pod::Pod;
use super::tenant::Tenant;
use super::value::{Json, Object};
use crate::rules::{AllowedVolume, Mode};

/// Sources of `volumes[]` that contain only data of the namespace, or no data. Images have a rule of their own.
pub const OWN: [&str; 8] =
    ["configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"];
/// Like [`OWN`], but sources of `projected.sources[]`. Tokens are checked by their audience.
pub const PROJECTED: [&str; 5] = ["clusterTrustBundle", "configMap", "downwardAPI", "secret", "serviceAccountToken"];

/// The volumes from outside that may be mounted. `fill` replaces their placeholders, and returns `None` if there is no
/// value.
#[derive(Clone, Copy)]
pub(super) struct Allowed<'a> {
    pub(super) volumes: &'a [AllowedVolume],
    pub(super) fill: &'a dyn Fn(&str) -> Option<String>,
}

/// A part of a volume that comes from outside and is not allowed.
pub(super) struct Outside<'a> {
    /// The finding, such as `volume "data" mounts "/etc" of the node`.
    pub(super) what: String,
    /// The volumes of this kind that the class allows.
    allowed: Vec<&'a AllowedVolume>,
    remedy: &'static str,
}

/// Checks the volumes that are new or changed.
pub(super) fn check(pod: &Pod<'_>, tenant: &Tenant<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    let rules = &tenant.rules.volumes;
    let by_rule = (Rule::Volumes, rules.mode);
    // The rule `host` covers paths of the node too, so that an exception from `volumes` does not permit them.
    let host_path = (Rule::Host, tenant.rules.host.max(rules.mode));
    if host_path.1 == Mode::Off {
        return Ok(());
    }
    let fill = |text: &str| tenant.fill(text);
    let allowed = Allowed { volumes: &rules.allow, fill: &fill };
    for volume in pod.changed_volumes()? {
        for (source, Outside { what, allowed, remedy }) in from_outside(volume, allowed)? {
            let (rule, mode) = if source == "hostPath" { host_path } else { by_rule };
            let own: Vec<String> = allowed.iter().filter_map(|allowed| words(tenant, allowed)).collect();
            let why = match own.as_slice() {
                [] => format!("{} may not mount volumes of this kind", tenant.who()),
                _ => format!("{} may mount only {} of this kind", tenant.who(), own.join(", ")),
            };
            decision.found(mode, Finding { rule, what, why, remedy: remedy.to_owned() });
        }
    }
    Ok(())
}

/// Returns the parts of a volume that come from outside and are not allowed, each with the name of its source.
pub(super) fn from_outside<'v, 'a>(
    volume: &'v Json<'_>,
    allowed: Allowed<'a>,
) -> Result<Vec<(&'v str, Outside<'a>)>, Malformed> {
    let who = format!("volume {}", quoted(text(volume, "name")?));
    let sources = volume.as_object().into_iter().flat_map(Object::iter);
    let mut found = Vec::new();
    for (source, value) in sources.filter(|(key, value)| *key != "name" && !value.is_null()) {
        for part in outside(source, value, allowed)? {
            found.push((source, Outside { what: format!("{who} {}", part.what), ..part }));
        }
    }
    Ok(found)
}

fn outside<'a>(source: &str, value: &Json<'_>, may: Allowed<'a>) -> Result<Vec<Outside<'a>>, Malformed> {
    let claim = "use a PersistentVolumeClaim";
    let found = match source {
        "nfs" => {
            let (server, path) = (text(value, "server")?, text(value, "path")?);
            let what = format!("mounts {} by NFS", quoted(&format!("{server}:{path}")));
            unless(may, what, claim, |allowed| match allowed {
                AllowedVolume::Nfs { server: own, path: place } => Some(own == server && covers(may, place, path)),
                _ => None,
            })
        }
        "hostPath" => {
            let path = text(value, "path")?;
            let beneath = may.volumes.iter().any(|allowed| match allowed {
                AllowedVolume::HostPath(place) => is_own(place) && covers(may, place, path),
                _ => false,
            });
            let remedy =
                if beneath { "mount the folder itself, and select a path inside it with subPath" } else { claim };
            unless(may, format!("mounts {} of the node", quoted(path)), remedy, |allowed| match allowed {
                AllowedVolume::HostPath(place) if is_own(place) => Some(covers(may, place.trim_end_matches('/'), path)),
                AllowedVolume::HostPath(place) => Some(covers(may, place, path)),
                _ => None,
            })
        }
        "csi" => {
            let driver = text(value, "driver")?;
            unless(may, format!("mounts a volume of driver {}", quoted(driver)), claim, |allowed| match allowed {
                AllowedVolume::Csi(own) => Some(own == driver),
                _ => None,
            })
        }
        "projected" => return projected(value, may),
        _ if OWN.contains(&source) => None,
        _ => named(may, format!("has the kind {}", quoted(source)), claim, source),
    };
    Ok(found.into_iter().collect())
}

fn projected<'a>(value: &Json<'_>, may: Allowed<'a>) -> Result<Vec<Outside<'a>>, Malformed> {
    let mut found = Vec::new();
    for part in list(value, "sources")? {
        if let Some(token) = field(part, "serviceAccountToken") {
            let audience = text(token, "audience")?;
            // A token without an audience is for the API server, like the token that every pod gets.
            if !audience.is_empty() {
                let what = format!("has a service-account token for {}", quoted(audience));
                found.extend(unless(may, what, "remove its audience", |allowed| match allowed {
                    AllowedVolume::Token(own) => Some(own == audience),
                    _ => None,
                }));
            }
        }
        let sources =
            part.as_object().ok_or_else(|| Malformed("sources contains an item that is not an object".to_owned()))?;
        for (source, _) in sources.iter().filter(|(key, value)| !PROJECTED.contains(key) && !value.is_null()) {
            found.extend(named(may, format!("has {}", quoted(source)), "remove it", source));
        }
    }
    Ok(found)
}

/// Returns `None` if the class allows the volume. `is_it` says whether an allowed volume covers this one; it returns
/// `None` if the two have different kinds.
fn unless<'a>(
    may: Allowed<'a>,
    what: String,
    remedy: &'static str,
    is_it: impl Fn(&AllowedVolume) -> Option<bool>,
) -> Option<Outside<'a>> {
    let of_kind: Vec<(&AllowedVolume, bool)> =
        may.volumes.iter().filter_map(|allowed| Some((allowed, is_it(allowed)?))).collect();
    if of_kind.iter().any(|(_, is_it)| *is_it) {
        return None;
    }
    Some(Outside { what, allowed: of_kind.into_iter().map(|(allowed, _)| allowed).collect(), remedy })
}

fn named<'a>(may: Allowed<'a>, what: String, remedy: &'static str, source: &str) -> Option<Outside<'a>> {
    unless(may, what, remedy, |allowed| match allowed {
        AllowedVolume::Source(own) => Some(own == source),
        _ => None,
    })
}

/// Whether `allowed`, which has placeholders, covers `path`. An allowed path that ends in `/` also covers everything
/// beneath it. An ambiguous path (with `..` or `//`) is never covered.
fn covers(may: Allowed<'_>, allowed: &str, path: &str) -> bool {
    let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let Some(allowed) = (may.fill)(allowed) else { return false };
    if !is_plain(path) || !allowed.starts_with('/') {
        return false;
    }
    match allowed.strip_suffix('/') {
        Some(folder) => path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        None => path == allowed,
    }
}

/// Whether an allowed path of the node contains a placeholder, so that a tenant owns the folder. Nothing beneath such a
/// folder may be mounted, because the tenant could put a link there that leads the node to any other path.
fn is_own(allowed: &str) -> bool {
    allowed.contains('{')
}

/// Whether the path is absolute and has no empty, `.` or `..` part.
fn is_plain(path: &str) -> bool {
    path == "/"
        || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// Returns the allowed volume as the configuration writes it, with the tenant's values for placeholders.
fn words(tenant: &Tenant<'_>, allowed: &AllowedVolume) -> Option<String> {
    Some(match allowed {
        AllowedVolume::Nfs { server, path } => format!("{server}:{}", tenant.fill(path)?),
        AllowedVolume::HostPath(path) if is_own(path) => tenant.fill(path.trim_end_matches('/'))?,
        AllowedVolume::HostPath(path) => tenant.fill(path)?,
        AllowedVolume::Csi(_) | AllowedVolume::Token(_) | AllowedVolume::Source(_) => allowed.to_string(),
    })
}
