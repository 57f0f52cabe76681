//! Reads `manifests/CLASS/*.yaml` beside the configuration file: objects that a class adds to its namespaces.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::table::Table;
use crate::kinds::{ObjectKind, Watch};

/// Returns the documents of the class `name`, in the order of their files.
pub(super) fn manifests(root: &Table<'_>, folder: &Path, name: &str) -> Vec<Value> {
    let mut documents = Vec::new();
    for path in yaml_files(root, folder, name) {
        let file = format!("manifests/{name}/{}", super::file_name(&path));
        let parsed = std::fs::read_to_string(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| serde_saphyr::from_multiple::<Value>(&text).map_err(|error| first_line(&error)));
        match parsed {
            Ok(values) => {
                let values = values.into_iter().filter(|value| !value.is_null());
                values.for_each(|value| match wrong(&value) {
                    Some(why) => root.wrong(&file, why),
                    None => documents.push(value),
                });
            }
            Err(why) => root.wrong(&file, why),
        }
    }
    documents
}

/// Records an error for each folder without a class, which would otherwise be ignored silently.
pub(super) fn strays(root: &Table<'_>, folder: &Path, classes: &[String]) {
    let Some(entries) = entries(root, folder, "manifests") else { return };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names.iter().filter(|name| !classes.contains(name)) {
        root.wrong(&format!("manifests/{name}"), "there is no class of that name");
    }
}

/// Lists a folder beside the configuration file; `None` if it does not exist. If it cannot be read, that is an error:
/// without its manifests, the class would lose their objects.
fn entries(root: &Table<'_>, folder: &Path, name: &str) -> Option<std::fs::ReadDir> {
    let path = folder.join(name);
    match std::fs::read_dir(&path) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            root.wrong(name, super::file_error(&path, &error, ""));
            None
        }
        read => read.ok(),
    }
}

fn yaml_files(root: &Table<'_>, folder: &Path, name: &str) -> Vec<PathBuf> {
    let Some(entries) = entries(root, folder, &format!("manifests/{name}")) else { return Vec::new() };
    let yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(yaml).collect();
    paths.sort();
    paths
}

fn wrong(document: &Value) -> Option<String> {
    for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
        if document.pointer(pointer).and_then(Value::as_str).is_none_or(str::is_empty) {
            return Some(format!("a document has no {}", pointer[1..].replace('/', ".")));
        }
    }
    let kind = ObjectKind::of_manifest(document);
    if !kind.site_may_bring() {
        return Some(format!("a {kind} is not allowed; only objects in the tenant's namespace are"));
    }
    // The daemon gets rights to Secrets by name. Otherwise, it could read all Secrets of a tenant.
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if kind.watch() == Watch::ByName && name.contains('{') {
        return Some(format!("a {kind}'s name must be the same for every tenant, and {name:?} is not"));
    }
    document
        .to_string()
        .contains("{credential:")
        .then(|| "{credential:NAME} is not supported in this version".to_owned())
}

fn first_line(error: &impl ToString) -> String {
    error.to_string().lines().next().unwrap_or("is not YAML").to_owned()
}
