//! Security identifiers of Windows domains.
//!
//! `objectSid` holds SIDs as bytes (MS-DTYP 2.4.2.2); administrators write SIDs as text (MS-DTYP 2.4.2.1).

use std::fmt;

/// A security identifier: its authority, and the numbers below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sid {
    authority: u64,
    numbers: Vec<u32>,
}

/// The most numbers in one SID (MS-DTYP 2.4.2.2, `SubAuthorityCount`).
const NUMBERS_MAX: usize = 15;
/// The authority of the SIDs of domains: `SECURITY_NT_AUTHORITY`.
const NT_AUTHORITY: u64 = 5;
/// The first number of the SID of a domain: `SECURITY_NT_NON_UNIQUE`.
const DOMAIN: u32 = 21;

impl Sid {
    /// Parses the binary form: revision, count, authority (48 bits, big-endian), and the numbers (32 bits each,
    /// little-endian).
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (header, numbers) = bytes.split_at_checked(8)?;
        if header[0] != 1 || usize::from(header[1]) > NUMBERS_MAX || numbers.len() != 4 * usize::from(header[1]) {
            return None;
        }
        let authority = header[2..].iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        let number = |four: &[u8]| four.iter().rev().fold(0, |sum: u32, byte| (sum << 8) | u32::from(*byte));
        Some(Self { authority, numbers: numbers.chunks_exact(4).map(number).collect() })
    }

    /// Parses `S-1-5-21-…`. The authority must be decimal: hex is used only for authorities of 2^32 and more, which
    /// domains do not have.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("S-1-").or_else(|| text.strip_prefix("s-1-"))?.split('-');
        let plain = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let authority = parts.next().filter(plain)?.parse().ok().filter(|authority| *authority < 1 << 48)?;
        let numbers: Option<Vec<u32>> = parts.map(|part| Some(part).filter(plain)?.parse().ok()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() <= NUMBERS_MAX)?;
        Some(Self { authority, numbers })
    }

    /// Parses a value of `objectSid`: bytes from a server, or text from a handwritten file.
    #[must_use]
    pub fn of_value(value: &[u8]) -> Option<Self> {
        Self::from_bytes(value).or_else(|| Self::parse(std::str::from_utf8(value).ok()?.trim()))
    }

    /// Whether this is the SID of a domain itself, `S-1-5-21-a-b-c`.
    #[must_use]
    pub fn is_domain(&self) -> bool {
        self.authority == NT_AUTHORITY && self.numbers.len() == 4 && self.numbers[0] == DOMAIN
    }

    /// Returns the domain that the SID belongs to, and its number in the domain (RID); `None` for the well-known SIDs,
    /// which every domain has.
    #[must_use]
    pub fn in_domain(&self) -> Option<(Self, u32)> {
        let (rid, domain) = self.numbers.split_last()?;
        let domain = Self { authority: self.authority, numbers: domain.to_vec() };
        domain.is_domain().then_some((domain, *rid))
    }

    /// Returns the SID with this RID in the domain `self`.
    #[must_use]
    pub fn with_rid(&self, rid: u32) -> Self {
        Self { authority: self.authority, numbers: self.numbers.iter().copied().chain([rid]).collect() }
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S-1-{}", self.authority)?;
        self.numbers.iter().try_for_each(|number| write!(f, "-{number}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADMINISTRATOR: [u8; 28] =
        [1, 5, 0, 0, 0, 0, 0, 5, 21, 0, 0, 0, 123, 0, 0, 0, 200, 1, 0, 0, 21, 3, 0, 0, 0xf4, 1, 0, 0];

    #[test]
    fn bytes_and_text_are_one_sid() {
        let sid = Sid::from_bytes(&ADMINISTRATOR).expect("the bytes are a SID");
        assert_eq!(sid.to_string(), "S-1-5-21-123-456-789-500");
        assert_eq!(Sid::parse("S-1-5-21-123-456-789-500"), Some(sid.clone()));
        assert_eq!(Sid::of_value(b"S-1-5-21-123-456-789-500"), Some(sid.clone()));
        let (domain, rid) = sid.in_domain().expect("the SID belongs to a domain");
        assert_eq!((domain.to_string().as_str(), rid), ("S-1-5-21-123-456-789", 500));
        assert_eq!(domain.with_rid(500), sid);
    }

    #[test]
    fn well_known_sids_belong_to_no_domain() {
        for text in ["S-1-5-32-544", "S-1-1-0", "S-1-5-21-1-2-3", "S-1-5-21-1-2-3-4-5", "S-1-16-21-1-2-3-4"] {
            assert_eq!(Sid::parse(text).expect(text).in_domain(), None, "{text}");
        }
    }

    #[test]
    fn a_malformed_sid_is_refused() {
        for text in
            ["", "S-1-", "S-2-5-21", "S-1-5-", "S-1-5-4294967296", "S-1-5-+1", "S-1-5--1", "S-1-281474976710656"]
        {
            assert_eq!(Sid::parse(text), None, "{text}");
        }
        for length in 0..ADMINISTRATOR.len() {
            assert_eq!(Sid::from_bytes(&ADMINISTRATOR[..length]), None, "{length}");
        }
        assert_eq!(Sid::from_bytes(&[2, 0, 0, 0, 0, 0, 0, 5]), None);
    }

    proptest! {
        #[test]
        fn no_value_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC{0,40}") {
            let _ = Sid::of_value(&bytes);
            let _ = Sid::parse(&text);
        }

        #[test]
        fn text_parses_as_written(authority in 0..1_u64 << 48, numbers in proptest::collection::vec(any::<u32>(), 0..15)) {
            let sid = Sid { authority, numbers };
            prop_assert_eq!(Sid::parse(&sid.to_string()), Some(sid));
        }
    }
}
