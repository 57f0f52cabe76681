//! Reads `volumes` of a class: claims, and the storage behind them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::class::absolute;
use super::profile::QUANTITY;
use super::table::{Table, ValueKind};
use crate::identity::{AccountKind, is_dns_label};
use crate::policy::{NfsVolume, Provisioned, Volume, VolumeKind};
use crate::quantity::is_quantity;

const ABSOLUTE: ValueKind = ValueKind("an absolute path", "\"/srv/project/{name}\"");
/// The access modes of Kubernetes.
const ACCESS: [&str; 4] = ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"];
const OF_NFS: [&str; 3] = ["nfs", "options", "directory"];
const OF_A_CLASS: [&str; 3] = ["size", "storage_class", "access"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Static,
    Shared,
    Dynamic,
    Personal,
}

/// Reads every volume of a class. Directories must be beneath one of `prefixes`.
pub(super) fn volumes(table: &Table<'_>, prefixes: &[PathBuf], kind: Option<AccountKind>) -> Vec<Volume> {
    let mut names = BTreeSet::new();
    let mut personal = 0;
    let tables = table.list("volumes");
    let volumes = tables.iter().filter_map(|volume| {
        volume.only(&[&["name", "kind", "mount"][..], &OF_NFS, &OF_A_CLASS].concat());
        let name = name(volume, &mut names);
        let mount = volume.parsed("mount", ABSOLUTE, |text| absolute(text).map(|_| text.to_owned()));
        let word = word(volume)?;
        let provisioned = match word {
            Word::Static | Word::Shared => false,
            Word::Dynamic => true,
            Word::Personal => !volume.has("nfs") && volume.has("size"),
        };
        for key in if provisioned { OF_NFS } else { OF_A_CLASS } {
            if volume.has(key) {
                let fits = match (word, provisioned) {
                    (Word::Personal, true) => "a personal volume from a storage class does not have this key",
                    (Word::Personal, false) => "a personal volume on nfs does not have this key",
                    (_, true) => "only volumes of kind static, shared or personal have this key",
                    (_, false) => "only volumes of kind dynamic or personal have this key",
                };
                volume.wrong(key, fits);
            }
        }
        if kind == Some(AccountKind::Group) && word != Word::Shared && volume.has("directory") {
            volume.wrong("directory", "a group's directory is shared by its members; for example kind = \"shared\"");
        }
        personal += u32::from(word == Word::Personal);
        if word == Word::Personal && personal > 1 {
            volume.wrong("kind", "a class can have only one personal volume, because its Secret names only one");
        }
        let behind = match word {
            Word::Static => VolumeKind::Static(nfs(volume, prefixes)?),
            Word::Shared => VolumeKind::Shared(nfs(volume, prefixes)?),
            Word::Personal if provisioned => VolumeKind::PersonalDynamic(self::provisioned(volume)?),
            Word::Personal => VolumeKind::Personal(nfs(volume, prefixes)?),
            Word::Dynamic => VolumeKind::Dynamic(self::provisioned(volume)?),
        };
        Some(Volume { name: name?, kind: behind, mount })
    });
    volumes.collect()
}

fn word(volume: &Table<'_>) -> Option<Word> {
    let words =
        [("static", Word::Static), ("shared", Word::Shared), ("dynamic", Word::Dynamic), ("personal", Word::Personal)];
    if !volume.has("kind") {
        volume.wrong("kind", "missing; for example \"static\"");
    }
    volume.choice("kind", &words)
}

fn name(volume: &Table<'_>, names: &mut BTreeSet<String>) -> Option<String> {
    let name = volume.required("name", "home")?;
    if !is_dns_label(&name) {
        volume.wrong("name", format!("{name:?} is not a claim's name; for example \"home\""));
    }
    if !names.insert(name.clone()) {
        volume.wrong("name", format!("{name:?} is also the name of another volume"));
    }
    Some(name)
}

fn provisioned(volume: &Table<'_>) -> Option<Provisioned> {
    if !volume.has("size") {
        volume.wrong("size", "missing; for example \"10Gi\"");
    }
    let words: Vec<(&str, &str)> = ACCESS.iter().map(|word| (*word, *word)).collect();
    let access = volume.choice("access", &words).unwrap_or(ACCESS[0]);
    let size = volume.parsed("size", QUANTITY, |text| is_quantity(text).then(|| text.to_owned()))?;
    Some(Provisioned { storage_class: volume.text("storage_class"), size, access: access.to_owned() })
}

fn nfs(volume: &Table<'_>, prefixes: &[PathBuf]) -> Option<NfsVolume> {
    let options = volume.texts("options").unwrap_or_default();
    if options.iter().any(|option| option.is_empty() || option.contains([',', ' '])) {
        volume.wrong("options", "each item must be one mount option; for example [\"nfsvers=4.2\", \"hard\"]");
    }
    let directory = volume.parsed("directory", ABSOLUTE, |text| absolute(text).map(|_| text.to_owned()));
    if let Some(directory) = &directory {
        if !prefixes.iter().any(|prefix| PathBuf::from(directory).starts_with(prefix)) {
            volume.wrong("directory", format!("{directory:?} is beneath none of homes.prefixes"));
        }
        if !directory.contains("{name}") {
            volume.wrong(
                "directory",
                format!("{directory:?} would be the same for every tenant; for example \"/data/project/{{name}}\""),
            );
        }
    }
    if !volume.has("nfs") {
        volume.wrong("nfs", "missing; for example { server = \"nfs.example.org\", path = \"/srv/project/{name}\" }");
        return None;
    }
    let nfs = volume.section("nfs");
    nfs.only(&["server", "path"]);
    let server = nfs.required("server", "nfs.example.org");
    if !nfs.has("path") {
        nfs.wrong("path", format!("missing; for example {}", ABSOLUTE.1));
    }
    let path = nfs.parsed("path", ABSOLUTE, |text| absolute(text).map(|_| text.to_owned()));
    Some(NfsVolume { server: server?, path: path?, options, directory })
}
