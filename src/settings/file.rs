//! The configuration as one tree of plain values: the TOML file, and over it the environment
//! (`BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT=2`). The only place that names the `config` crate. It judges no value.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Config, File, FileFormat};
use serde_json::{Map, Value};

/// What every variable begins with.
const PREFIX: &str = "BURSAR_";
/// Variables that are options of the programs, not keys.
const OPTIONS: [&str; 2] = ["BURSAR_CONFIG", "BURSAR_LEDGER"];
/// Variables of the test suite.
const TEST_PREFIX: &str = "BURSAR_TEST_";

/// File and environment, merged.
pub(super) struct Merged {
    /// The tree; every value of the environment is text in it.
    pub(super) root: Map<String, Value>,
    /// Variables by the key they set, so that an error names the variable.
    pub(super) variables: BTreeMap<String, String>,
}

/// Reads the file at `path`, then lays `environment` over it. The error is for people.
pub(super) fn read(path: &Path, environment: &BTreeMap<String, String>) -> Result<Merged, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = super::file_name(path);
    if let Err(error) = text.parse::<toml::Table>() {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        return Err(format!("{name}: line {line}: {}", error.message()));
    }
    let mut builder = Config::builder().add_source(File::from_str(&text, FileFormat::Toml));
    let mut variables = BTreeMap::new();
    for (variable, value) in environment {
        let Some(key) = key_of(variable) else { continue };
        builder = builder
            .set_override(key.as_str(), value.as_str())
            .map_err(|_| format!("{variable}: names no key; for example BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT"))?;
        variables.insert(key, variable.clone());
    }
    let merged = builder.build().map_err(|error| format!("{name}: {error}"))?;
    let root = merged.try_deserialize().map_err(|error| format!("{name}: {error}"))?;
    Ok(Merged { root, variables })
}

/// `BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT` sets `limits.suspend_per_cycle.count`; `BURSAR_SOURCE__0__CA` sets
/// `source[0].ca`.
fn key_of(variable: &str) -> Option<String> {
    if OPTIONS.contains(&variable) || variable.starts_with(TEST_PREFIX) {
        return None;
    }
    let rest = variable.strip_prefix(PREFIX)?.to_ascii_lowercase();
    let parts = rest.split("__").enumerate().map(|(place, part)| match part.parse::<usize>() {
        Ok(index) => format!("[{index}]"),
        Err(_) if place == 0 => part.to_owned(),
        Err(_) => format!(".{part}"),
    });
    Some(parts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_name_keys() {
        let key = |variable| key_of(variable);
        assert_eq!(key("BURSAR_LIMITS__SUSPEND_PER_CYCLE__COUNT").as_deref(), Some("limits.suspend_per_cycle.count"));
        assert_eq!(key("BURSAR_SOURCE__0__CA").as_deref(), Some("source[0].ca"));
        assert_eq!(key("BURSAR_STATE_DIR").as_deref(), Some("state_dir"));
        assert_eq!(key("BURSAR_CONFIG"), None);
        assert_eq!(key("HOME"), None);
    }
}
