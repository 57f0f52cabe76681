//! The public SSH keys that may be written in homes.
//!
//! A key must be `type base64 [comment]` of sshd's format (sshd(8), `AUTHORIZED_KEYS FILE FORMAT`). Options are not
//! accepted, because a directory could set `command=`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The file in which sshd looks for keys, relative to a home. A request never contains it.
pub const AUTHORIZED_KEYS: &str = ".ssh/authorized_keys";

/// The most keys of one person. sshd reads all of them at every login.
pub const MAX_KEYS: usize = 64;

/// The longest line of a key: RSA of 16384 bits and a comment.
pub const MAX_KEY_BYTES: usize = 4096;

/// The accepted types of keys: no DSA, and no certificates, which belong in `TrustedUserCAKeys`.
const KINDS: [&str; 7] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

/// The accepted sizes of RSA keys. Smaller ones can be factored (NIST SP 800-57 part 1, 5.6.1), and OpenSSH rejects
/// larger ones.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=16384;
/// The longest comment that is kept, in characters.
const COMMENT_MAX: usize = 100;

/// A public key that may be written: its type is accepted, and its content matches the type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SshKey(String);

impl SshKey {
    /// Parses a line of a directory: type, base64, and the rest as a comment. If the line is not accepted, returns the
    /// reason.
    pub fn parse(line: &str) -> Result<Self, String> {
        if line.len() > MAX_KEY_BYTES {
            return Err(format!("is longer than {MAX_KEY_BYTES} bytes"));
        }
        let mut words = line.split_whitespace();
        let (kind, encoded) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !KINDS.contains(&kind) {
            return Err("does not begin with an accepted type of key".to_owned());
        }
        let blob = STANDARD.decode(encoded).map_err(|_| format!("has no valid base64 after {kind}"))?;
        let mut rest = Blob(&blob);
        if rest.text() != Some(kind.as_bytes()) {
            return Err(format!("has content of a type other than {kind}"));
        }
        rest.key(kind)
            .filter(|()| rest.0.is_empty())
            .ok_or_else(|| format!("has content that is not a valid {kind} key"))?;
        let comment: String = words.collect::<Vec<_>>().join(" ");
        let comment: String = comment.chars().filter(|c| !c.is_control()).take(COMMENT_MAX).collect();
        Ok(Self(format!("{kind} {encoded} {comment}").trim_end().to_owned()))
    }

    /// Returns the line as it is written.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.0
    }
}

/// The unread rest of a public key blob (RFC 4253, 6.6; RFC 5656, 3.1; RFC 8709, 4; OpenSSH's `PROTOCOL.u2f`).
struct Blob<'a>(&'a [u8]);

impl<'a> Blob<'a> {
    /// Reads the next string: its length in four bytes, and then its bytes.
    fn text(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let (text, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        self.0 = rest;
        Some(text)
    }

    /// Reads the fields that follow the type, and checks them.
    fn key(&mut self, kind: &str) -> Option<()> {
        match kind {
            "ssh-ed25519" => self.ed25519(),
            "ssh-rsa" => self.rsa(),
            "ecdsa-sha2-nistp256" => self.ecdsa(b"nistp256", 32),
            "ecdsa-sha2-nistp384" => self.ecdsa(b"nistp384", 48),
            "ecdsa-sha2-nistp521" => self.ecdsa(b"nistp521", 66),
            "sk-ssh-ed25519@openssh.com" => self.ed25519().and_then(|()| self.application()),
            "sk-ecdsa-sha2-nistp256@openssh.com" => self.ecdsa(b"nistp256", 32).and_then(|()| self.application()),
            _ => None,
        }
    }

    fn ed25519(&mut self) -> Option<()> {
        (self.text()?.len() == 32).then_some(())
    }

    fn ecdsa(&mut self, curve: &[u8], coordinate: usize) -> Option<()> {
        let (named, point) = (self.text()?, self.text()?);
        // The point must be uncompressed, the only form that OpenSSH accepts.
        (named == curve && point.len() == 1 + 2 * coordinate && point[0] == 4).then_some(())
    }

    fn rsa(&mut self) -> Option<()> {
        let (exponent, modulus) = (self.text()?, self.text()?);
        let is_odd = |number: &[u8]| number.last().is_some_and(|last| last % 2 == 1);
        let fits = (2..=64).contains(&bits(exponent)?) && RSA_BITS.contains(&bits(modulus)?);
        (fits && is_odd(exponent) && is_odd(modulus)).then_some(())
    }

    fn application(&mut self) -> Option<()> {
        self.text().filter(|name| name.starts_with(b"ssh:")).map(drop)
    }
}

/// Returns the number of bits of a positive `mpint` (RFC 4251, 5).
fn bits(number: &[u8]) -> Option<usize> {
    let number = match number {
        [0, rest @ ..] => rest,
        [first, ..] if first & 0x80 != 0 => return None,
        number => number,
    };
    let zeros = usize::try_from(number.first()?.leading_zeros()).ok()?;
    Some(number.len() * 8 - zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: &str, parts: &[&[u8]]) -> String {
        let mut blob = Vec::new();
        for part in std::iter::once(&kind.as_bytes()).chain(parts) {
            blob.extend(u32::try_from(part.len()).expect("the part is short").to_be_bytes());
            blob.extend(*part);
        }
        format!("{kind} {}", STANDARD.encode(blob))
    }

    fn rsa(bytes: usize, first: u8) -> String {
        let mut modulus = vec![0; bytes + 1];
        (modulus[1], modulus[bytes]) = (first, 1);
        line("ssh-rsa", &[&[1, 0, 1], &modulus])
    }

    #[test]
    fn only_keys_whose_content_matches_an_accepted_type_are_parsed() {
        let (point, longer) = ([4; 65], [4; 133]);
        for good in [
            line("ssh-ed25519", &[&[7; 32]]),
            line("ecdsa-sha2-nistp256", &[b"nistp256", &point]),
            line("ecdsa-sha2-nistp521", &[b"nistp521", &longer]),
            line("sk-ssh-ed25519@openssh.com", &[&[7; 32], b"ssh:"]),
            line("sk-ecdsa-sha2-nistp256@openssh.com", &[b"nistp256", &point, b"ssh:laptop"]),
            rsa(256, 0x80),
            rsa(512, 0xff),
        ] {
            assert_eq!(SshKey::parse(&good).map(|key| key.0), Ok(good.clone()));
        }
        let ed25519 = line("ssh-ed25519", &[&[7; 32]]);
        let encoded = ed25519.split_once(' ').expect("the line has two words").1;
        for bad in [
            String::new(),
            "ssh-ed25519".to_owned(),
            "ssh-ed25519 ???".to_owned(),
            format!("ssh-rsa {encoded}"),
            format!("command=\"/bin/sh\" {ed25519}"),
            format!("no-pty,{ed25519}"),
            format!("# {ed25519}"),
            line("ssh-ed25519", &[&[7; 31]]),
            line("ssh-ed25519", &[&[7; 32], b"more"]),
            line("ssh-dss", &[&[7; 32]]),
            line("ssh-ed25519-cert-v01@openssh.com", &[&[7; 32]]),
            line("ecdsa-sha2-nistp256", &[b"nistp384", &point]),
            line("ecdsa-sha2-nistp256", &[b"nistp256", &[2; 33]]),
            line("sk-ssh-ed25519@openssh.com", &[&[7; 32]]),
            rsa(128, 0x80),
            rsa(256, 0x40),
            format!("{ed25519} {}", "c".repeat(MAX_KEY_BYTES)),
        ] {
            assert!(SshKey::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_comment_becomes_one_short_line_without_control_characters() {
        let good = line("ssh-ed25519", &[&[7; 32]]);
        let parsed = SshKey::parse(&format!("  {good}\tann@laptop\u{7} \r\n{good}  ")).expect("the key is valid");
        assert!(parsed.line().starts_with(&format!("{good} ann@laptop ssh-ed25519 ")), "{parsed:?}");
        let long = SshKey::parse(&format!("{good} {}", "c".repeat(500))).expect("the key is valid");
        assert_eq!(long.line().len(), good.len() + 1 + COMMENT_MAX);
    }
}
