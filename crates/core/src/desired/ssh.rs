//! The SSH keys that should be in a person's home.

use bursar_protocol::{MAX_KEYS, SshKey};
use sha2::{Digest as _, Sha256};

use super::DesiredHome;
use crate::ledger::Account;
use crate::policy::Class;

/// The keys of one person, and the home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredKeys {
    /// The home and its owner.
    pub home: DesiredHome,
    /// Valid lines, sorted.
    pub keys: Vec<String>,
    /// Hex SHA-256 of the lines.
    pub digest: String,
    /// Why keys of the directory are not delivered, as texts for administrators.
    pub refused: Vec<String>,
}

/// Returns the keys of a person if a class with SSH keys takes the account; `None` if Bursar should write no key in the
/// account's home.
#[must_use]
pub(super) fn keys(account: &Account, classes: &[&Class]) -> Option<DesiredKeys> {
    let rule = classes.iter().filter_map(|class| class.home.as_ref()).find(|rule| rule.ssh_keys)?;
    let home = DesiredHome {
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
        refused
            .push(format!("the directory has more than {MAX_KEYS} SSH keys; only the first {MAX_KEYS} are delivered"));
    }
    let digest = hex::encode(Sha256::digest(keys.join("\n")));
    Some(DesiredKeys { home, keys, digest, refused })
}

/// Returns the beginning of a line, by which its owner recognises the key.
fn begin(line: &str) -> String {
    line.chars().take(40).collect()
}
