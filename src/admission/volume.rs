//! What a pod mounts: what is its namespace's own, and from outside what the class allows. PURE: no runtime, no client,
//! no file system, no clock.
//!
//! Only sources that cannot leave the namespace pass unasked, so one that a later version of Kubernetes adds does not.

use serde_json::Value;

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, field, list, quoted, text};
use super::pod::Pod;
use super::rules::{AllowedVolume, Mode};
use super::tenant::Tenant;

/// Sources of `volumes[]` that hold what the namespace has, or nothing. Images are judged by their own rule.
const OWN: [&str; 8] =
    ["configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret"];
/// The same of `projected.sources[]`; tokens are judged by their audience.
const PROJECTED: [&str; 5] = ["clusterTrustBundle", "configMap", "downwardAPI", "secret", "serviceAccountToken"];

/// Looks at the volumes that are new or changed.
pub(super) fn check(pod: &Pod<'_>, tenant: &Tenant<'_>, decision: &mut Decision) -> Result<(), Malformed> {
    let rules = &tenant.rules.volumes;
    // A path of the node is the host's too.
    let host_path = rules.mode.max(tenant.rules.host);
    if host_path == Mode::Off {
        return Ok(());
    }
    for volume in pod.changed_volumes()? {
        let who = format!("volume {}", quoted(text(volume, "name")?));
        for (source, value) in
            volume.as_object().into_iter().flatten().filter(|(key, value)| *key != "name" && !value.is_null())
        {
            let mode = if source == "hostPath" { host_path } else { rules.mode };
            for what in outside(source, value, tenant)? {
                let (why, cure) = allowed(tenant);
                decision.found(mode, Finding { rule: Rule::Volumes, what: format!("{who} {what}"), why, cure });
            }
        }
    }
    Ok(())
}

/// What of a source is from outside and not allowed: `mounts /etc of the node`.
fn outside(source: &str, value: &Value, tenant: &Tenant<'_>) -> Result<Vec<String>, Malformed> {
    let allow = |matches: &dyn Fn(&AllowedVolume) -> bool| tenant.rules.volumes.allow.iter().any(matches);
    let mut found = Vec::new();
    match source {
        "nfs" => {
            let (server, path) = (text(value, "server")?, text(value, "path")?);
            let is_allowed = allow(&|allowed| match allowed {
                AllowedVolume::Nfs { server: own, path: beneath } => own == server && covers(tenant, beneath, path),
                _ => false,
            });
            if !is_allowed {
                found.push(format!("mounts {} by NFS", quoted(&format!("{server}:{path}"))));
            }
        }
        "hostPath" => {
            let path = text(value, "path")?;
            if !allow(&|allowed| matches!(allowed, AllowedVolume::HostPath(own) if covers(tenant, own, path))) {
                found.push(format!("mounts {} of the node", quoted(path)));
            }
        }
        "csi" => {
            let driver = text(value, "driver")?;
            if !allow(&|allowed| matches!(allowed, AllowedVolume::Csi(own) if own == driver)) {
                found.push(format!("mounts what driver {} gives", quoted(driver)));
            }
        }
        "projected" => {
            for part in list(value, "sources")? {
                found.append(&mut projected(part, &allow)?);
            }
        }
        _ if OWN.contains(&source) => {}
        _ => {
            if !allow(&|allowed| matches!(allowed, AllowedVolume::Source(own) if own == source)) {
                found.push(format!("is of kind {}", quoted(source)));
            }
        }
    }
    Ok(found)
}

fn projected(part: &Value, allow: &dyn Fn(&dyn Fn(&AllowedVolume) -> bool) -> bool) -> Result<Vec<String>, Malformed> {
    let mut found = Vec::new();
    if let Some(token) = field(part, "serviceAccountToken") {
        let audience = text(token, "audience")?;
        // Without an audience it is for the API server, as every pod's own.
        let is_own = audience.is_empty();
        if !is_own && !allow(&|allowed| matches!(allowed, AllowedVolume::Token(own) if own == audience)) {
            found.push(format!("has a service-account token for {}", quoted(audience)));
        }
    }
    for (source, value) in part.as_object().ok_or_else(|| Malformed("sources has what is not an object".to_owned()))? {
        let is_known = PROJECTED.contains(&source.as_str()) || value.is_null();
        if !is_known && !allow(&|allowed| matches!(allowed, AllowedVolume::Source(own) if own == source)) {
            found.push(format!("has {}", quoted(source)));
        }
    }
    Ok(found)
}

/// Whether an allowed path, which has placeholders, is `path`; one that ends in `/` stands for all beneath it too. A path
/// that can be read in two ways (`..`, `//`) is covered by none.
fn covers(tenant: &Tenant<'_>, allowed: &str, path: &str) -> bool {
    let path = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let Some(allowed) = tenant.fill(allowed) else { return false };
    if !is_plain(path) || !allowed.starts_with('/') {
        return false;
    }
    match allowed.strip_suffix('/') {
        Some(folder) => path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        None => path == allowed,
    }
}

/// An absolute path that says where it leads.
fn is_plain(path: &str) -> bool {
    path == "/"
        || path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

/// Why, and what to do: the class's list, in the tenant's own words.
fn allowed(tenant: &Tenant<'_>) -> (String, String) {
    let own: Vec<String> = tenant.rules.volumes.allow.iter().filter_map(|allowed| words(tenant, allowed)).collect();
    let cure = "use a PersistentVolumeClaim".to_owned();
    match own.as_slice() {
        [] => (format!("{} may mount nothing from outside its namespace", tenant.who()), cure),
        _ => (format!("from outside its namespace {} may mount {}", tenant.who(), own.join(", ")), cure),
    }
}

fn words(tenant: &Tenant<'_>, allowed: &AllowedVolume) -> Option<String> {
    Some(match allowed {
        AllowedVolume::Nfs { server, path } => format!("{server}:{}", tenant.fill(path)?),
        AllowedVolume::HostPath(path) => tenant.fill(path)?,
        AllowedVolume::Csi(driver) => format!("csi:{driver}"),
        AllowedVolume::Token(audience) => format!("token:{audience}"),
        AllowedVolume::Source(source) => source.clone(),
    })
}
