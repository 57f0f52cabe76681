//! Reads `uid_range` of a class of groups, with which each workspace has a uid of its own. Ranges must not overlap, and
//! no home may be mounted in a workspace, because its members share a uid.

use std::path::Path;

use serde_json::Value;

use super::table::Table;
use crate::identity::{AccountKind, ID_MAX, UID_MIN, Uid};
use crate::policy::{Class, UidRange, VolumeKind};
use crate::rules::{AllowedVolume, Mode};

const EXAMPLE: &str = "[70000, 79999]";

/// Reads `[FIRST, LAST]`. Both are part of the range.
pub(super) fn uid_range(table: &Table<'_>) -> Option<UidRange> {
    let value = table.value("uid_range")?;
    let uid = |value: &Value| Uid::try_from(value.as_i64()?).ok();
    let range = match value.as_array().map(Vec::as_slice) {
        Some([first, last]) => uid(first).zip(uid(last)),
        _ => None,
    };
    let range = range.map(|(first, last)| UidRange { first, last }).filter(|range| range.first <= range.last);
    if range.is_none() {
        let why = format!(
            "{value} is not the first and the last uid of a range in {UID_MIN}..{ID_MAX}; for example {EXAMPLE}"
        );
        table.wrong("uid_range", why);
    }
    range
}

/// Records an error for ranges that overlap, and for volumes that may be a home in classes with a range.
pub(super) fn one_identity(root: &Table<'_>, classes: &[Class]) {
    let ranged = |class: &Class| class.workspace().and_then(|workspace| workspace.uid_range);
    for (index, class) in classes.iter().enumerate() {
        let Some(range) = ranged(class) else { continue };
        let table = root.section("class").section(&class.name);
        let met = classes.iter().take(index).find(|other| ranged(other).is_some_and(|theirs| theirs.meets(range)));
        if let Some(other) = met {
            let why = format!("{range} overlaps the range of class {}: two workspaces would have one uid", other.name);
            table.wrong("uid_range", why);
        }
        let homes: Vec<Homes<'_>> = classes
            .iter()
            .filter(|other| other.from.account_kind() == Some(AccountKind::User))
            .flat_map(homes)
            .collect();
        if let Some(home) = homes.first() {
            let volumes = &class.admission.volumes;
            if volumes.mode != Mode::Enforce {
                let why = format!(
                    "mode {:?} lets a workspace with a uid of its own mount homes of class {}; set \"enforce\"",
                    volumes.mode.as_str(),
                    home.class
                );
                table.section("admission").wrong("volumes", why);
            }
            // No rule checks which server and path such a volume mounts.
            for volume in volumes.allow.iter().filter(|allowed| allowed.is_judged_by_name_only()) {
                let why = format!(
                    "{volume} may mount any server and path, even a home of class {}, which must not be mounted in a \
                     workspace with a uid of its own; give the class a volume instead (volumes)",
                    home.class
                );
                table.section("admission").section("volumes").wrong("allow", why);
            }
        }
        for home in homes {
            let why = |what: &str| {
                format!(
                    "{what} may be a home of class {}, which must not be mounted in a workspace with a uid of its own; keep \
                     the files of the workspace elsewhere",
                    home.class
                )
            };
            for volume in &class.volumes {
                let (VolumeKind::Static(nfs) | VolumeKind::Shared(nfs) | VolumeKind::Personal(nfs)) = &volume.kind
                else {
                    continue;
                };
                if home.is_at(Some(&nfs.server), &nfs.path) {
                    table.wrong("volumes", why(&format!("{}:{}", nfs.server, nfs.path)));
                }
            }
            for allowed in &class.admission.volumes.allow {
                let (server, path) = match allowed {
                    AllowedVolume::Nfs { server, path } => (Some(server), path),
                    AllowedVolume::HostPath(path) => (None, path),
                    AllowedVolume::Csi(_) | AllowedVolume::Token(_) | AllowedVolume::Source(_) => continue,
                };
                if home.is_at(server, path) {
                    let what = server.map_or_else(|| path.clone(), |server| format!("{server}:{path}"));
                    table.section("admission").section("volumes").wrong("allow", why(&what));
                }
            }
        }
    }
}

/// The homes of a class of people.
struct Homes<'a> {
    class: &'a str,
    /// The file server; `None` for a path on the hosts.
    server: Option<&'a String>,
    path: String,
}

fn homes(class: &Class) -> Vec<Homes<'_>> {
    let exported = class.volumes.iter().filter_map(|volume| match &volume.kind {
        VolumeKind::Static(nfs) | VolumeKind::Personal(nfs) => {
            Some(Homes { class: &class.name, server: Some(&nfs.server), path: nfs.path.clone() })
        }
        VolumeKind::Shared(_) | VolumeKind::Dynamic(_) | VolumeKind::PersonalDynamic(_) => None,
    });
    let local = class.home.iter().map(|home| Homes {
        class: &class.name,
        server: None,
        path: home.prefix.join("{name}").display().to_string(),
    });
    exported.chain(local).collect()
}

impl Homes<'_> {
    /// Whether a volume at `path` may be one of these homes, or above or beneath one.
    fn is_at(&self, server: Option<&String>, path: &str) -> bool {
        let is_same = |one: &String, other: &String| {
            // A dot at the end of a name changes nothing.
            let [one, other] = [one, other].map(|name| name.trim_end_matches('.'));
            one.eq_ignore_ascii_case(other) || one.contains('{') || other.contains('{')
        };
        let same_server = match (self.server, server) {
            (Some(own), Some(other)) => is_same(own, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let mut parts = Path::new(&self.path).components().zip(Path::new(path).components());
        let meets = parts.all(|(own, other)| {
            let [own, other] = [own, other].map(|part| part.as_os_str().to_string_lossy());
            own == other || own.contains('{') || other.contains('{')
        });
        same_server && meets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_may_be_a_home_is_found() {
        let server = "nfs.example.org".to_owned();
        let home = Homes { class: "person", server: Some(&server), path: "/srv/home/{name}".to_owned() };
        for path in
            ["/srv/home/{name}", "/srv/home/", "/srv", "/", "/srv/home/alice/", "/srv/home/{name}/data", "/srv/{name}"]
        {
            assert!(home.is_at(Some(&server), path), "{path}");
        }
        assert!(home.is_at(Some(&"NFS.example.org.".to_owned()), "/srv/home"));
        for path in ["/srv/courses/{name}", "/srv/homes/{name}", "/public/dumps/"] {
            assert!(!home.is_at(Some(&server), path), "{path}");
        }
        assert!(!home.is_at(Some(&"nfs2.example.org".to_owned()), "/srv/home"));
        assert!(!home.is_at(None, "/srv/home/"));
    }
}
