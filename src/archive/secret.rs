//! Encrypts the Secrets of an archive to one age recipient (age-encryption.org/v1). The matching identity, the private
//! key, is not stored on this host.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::str::FromStr;

use super::ArchiveError;

/// The age public key (`age1…`) that Secrets are encrypted to.
#[derive(Clone)]
pub struct Recipient(age::x25519::Recipient);

impl FromStr for Recipient {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Recipient {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Recipient {
    pub(super) fn encrypt(&self, clear: &[u8]) -> Result<Vec<u8>, ArchiveError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| ArchiveError::Encrypt(error);
        let recipient: &dyn age::Recipient = &self.0;
        let encryptor =
            age::Encryptor::with_recipients(std::iter::once(recipient)).map_err(|error| failed(error.into()))?;
        let mut encrypted = Vec::new();
        let mut writer = encryptor.wrap_output(&mut encrypted).map_err(|error| failed(error.into()))?;
        writer.write_all(clear).map_err(|error| failed(error.into()))?;
        writer.finish().map_err(|error| failed(error.into()))?;
        Ok(encrypted)
    }
}

/// Age identities (private keys) from files that `age-keygen` writes. `Debug` prints only their number.
#[derive(Clone, Default)]
pub struct Identities(Vec<age::x25519::Identity>);

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identities({})", self.0.len())
    }
}

impl FromStr for Identities {
    type Err = &'static str;

    /// Reads one identity per line. Empty lines and lines that begin with `#` are ignored.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Identities {
    pub(super) fn decrypt(&self, encrypted: &[u8]) -> Result<Vec<u8>, ArchiveError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| ArchiveError::Decrypt(error);
        let decryptor = age::Decryptor::new(encrypted).map_err(|error| failed(error.into()))?;
        let identities = self.0.iter().map(|identity| identity as &dyn age::Identity);
        let mut reader = decryptor.decrypt(identities).map_err(|error| failed(error.into()))?;
        let mut clear = Vec::new();
        reader.read_to_end(&mut clear).map_err(|error| failed(error.into()))?;
        Ok(clear)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn pair() -> (Identities, Recipient) {
        let identity = age::x25519::Identity::generate();
        let recipient = Recipient(identity.to_public());
        (Identities(vec![identity]), recipient)
    }

    #[test]
    fn keys_as_age_keygen_writes_them_are_read() {
        assert!("age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p".parse::<Recipient>().is_ok());
        assert!("age1ql3z".parse::<Recipient>().is_err());
        let file = "# created: 2026-01-01T00:00:00Z\n\
                    AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX\n";
        assert_eq!(file.parse::<Identities>().map(|identities| identities.0.len()), Ok(1));
        assert!("nothing".parse::<Identities>().is_err());
    }
}
