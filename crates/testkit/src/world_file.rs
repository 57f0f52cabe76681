//! Fills in `tests/it/world.toml`, the configuration of the sites of tests and benchmarks.

use std::path::Path;

use crate::slapd::READER_DN;

/// What a site's configuration names.
#[derive(Debug, Clone, Copy)]
pub struct WorldFile<'a> {
    pub name: &'a str,
    /// The folder of the site's files.
    pub folder: &'a Path,
    /// The base DN of the directory.
    pub base: &'a str,
    /// The pattern of the names of administrators.
    pub admins: &'a str,
    /// The URL of the directory, and the file of its CA.
    pub ldap: (&'a str, &'a Path),
    /// The URL of the API server, and the file of its CA.
    pub cluster: (&'a str, &'a Path),
}

impl WorldFile<'_> {
    /// Returns the configuration. `template` is the text of `tests/it/world.toml`.
    #[must_use]
    pub fn fill(&self, template: &str) -> String {
        let Self { name, folder, base, admins, ldap, cluster } = self;
        template
            .replace("@NAME@", name)
            .replace("@FOLDER@", &folder.display().to_string())
            .replace("@BASE@", base)
            .replace("@ADMINS@", admins)
            .replace("@LDAP_URL@", ldap.0)
            .replace("@LDAP_CA@", &ldap.1.display().to_string())
            .replace("@BIND_DN@", READER_DN)
            .replace("@K8S_URL@", cluster.0)
            .replace("@K8S_CA@", &cluster.1.display().to_string())
    }
}
