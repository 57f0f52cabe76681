//! The SSH keys that should stand in a person's home.

use bursar_protocol::{MAX_KEYS, SshKey};
use sha2::{Digest as _, Sha256};

use super::HomeTarget;
use crate::ledger::Account;
use crate::policy::Class;

/// Keys of one person, and their home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredKeys {
    /// Where.
    pub home: HomeTarget,
    /// Checked lines, sorted.
    pub keys: Vec<String>,
    /// Hex SHA-256 of them.
    pub digest: String,
    /// What the directory has and nobody is given, with why; for people.
    pub refused: Vec<String>,
}

/// The keys of a person whom a class takes that keeps them; `None`: none of ours should be there.
#[must_use]
pub(super) fn keys(account: &Account, classes: &[&Class]) -> Option<DesiredKeys> {
    let rule = classes.iter().filter_map(|class| class.home.as_ref()).find(|rule| rule.ssh_keys)?;
    let home = HomeTarget {
        home: account.home.clone()?,
        posix: account.posix.clone()?,
        kubeconfig: rule.kubeconfig.clone(),
        create: rule.create,
        replace_unparsable: false,
    };
    let (mut keys, mut refused) = (Vec::new(), Vec::new());
    for line in account.ssh_keys.iter().take(MAX_KEYS) {
        match SshKey::parse(line) {
            Ok(key) => keys.push(key.line().to_owned()),
            Err(why) => refused.push(format!("an SSH key of the directory is not delivered: {:?} {why}", begin(line))),
        }
    }
    if account.ssh_keys.len() > MAX_KEYS {
        refused.push(format!("has more than {MAX_KEYS} SSH keys in the directory: no others are delivered"));
    }
    let digest = hex::encode(Sha256::digest(keys.join("\n")));
    Some(DesiredKeys { home, keys, digest, refused })
}

/// As much as people recognise it by.
fn begin(line: &str) -> String {
    line.chars().take(40).collect()
}
