//! Stores texts that are nearly always hexadecimal, such as digests, as the bytes that they encode. This takes less
//! than half of the memory, and no allocation.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The hexadecimal text of a SHA-256 digest.
pub type DigestText = PackedText<32, false>;
/// The id of an account, which is half a digest.
pub type IdText = PackedText<16, false>;
/// A UUID, such as `metadata.uid`.
pub type UuidText = PackedText<16, true>;

/// A text that encodes `BYTES` bytes in lower-case hexadecimal, with or without the dashes of a UUID. Any other text is
/// stored unchanged.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PackedText<const BYTES: usize, const IS_UUID: bool>(Form<BYTES>);

/// The stored form. A text is packed whenever possible, so equal texts have equal forms.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Form<const BYTES: usize> {
    Packed([u8; BYTES]),
    Other(Box<str>),
}

/// The number of digits before each dash of a UUID, and in the whole UUID.
const GROUPS: [usize; 5] = [8, 12, 16, 20, 32];

impl<const BYTES: usize, const IS_UUID: bool> PackedText<BYTES, IS_UUID> {
    /// Whether the text is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unpacked().is_some_and(str::is_empty)
    }

    /// Returns the text if it does not encode `BYTES` bytes.
    #[must_use]
    pub fn unpacked(&self) -> Option<&str> {
        match &self.0 {
            Form::Packed(_) => None,
            Form::Other(text) => Some(text),
        }
    }

    fn pack(text: &str) -> Option<[u8; BYTES]> {
        let length = 2 * BYTES + if IS_UUID { GROUPS.len() - 1 } else { 0 };
        if text.len() != length || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let mut bytes = [0; BYTES];
        if IS_UUID {
            let groups: Vec<&str> = text.split('-').collect();
            let lengths = GROUPS.iter().scan(0, |before, end| Some(end - std::mem::replace(before, *end)));
            if !groups.iter().map(|group| group.len()).eq(lengths) {
                return None;
            }
            hex::decode_to_slice(groups.concat(), &mut bytes).ok()?;
        } else {
            hex::decode_to_slice(text, &mut bytes).ok()?;
        }
        Some(bytes)
    }
}

impl<const BYTES: usize, const IS_UUID: bool> From<&str> for PackedText<BYTES, IS_UUID> {
    fn from(text: &str) -> Self {
        Self(Self::pack(text).map_or_else(|| Form::Other(text.into()), Form::Packed))
    }
}

impl<const BYTES: usize, const IS_UUID: bool> From<String> for PackedText<BYTES, IS_UUID> {
    fn from(text: String) -> Self {
        Self(Self::pack(&text).map_or_else(|| Form::Other(text.into()), Form::Packed))
    }
}

impl<const BYTES: usize, const IS_UUID: bool> Default for PackedText<BYTES, IS_UUID> {
    fn default() -> Self {
        Self::from("")
    }
}

impl<const BYTES: usize, const IS_UUID: bool> fmt::Display for PackedText<BYTES, IS_UUID> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match &self.0 {
            Form::Packed(bytes) => bytes,
            Form::Other(text) => return f.write_str(text),
        };
        let text = hex::encode(bytes);
        if !IS_UUID {
            return f.write_str(&text);
        }
        let mut from = 0;
        for to in GROUPS {
            f.write_str(if from == 0 { "" } else { "-" })?;
            f.write_str(&text[from..to])?;
            from = to;
        }
        Ok(())
    }
}

impl<const BYTES: usize, const IS_UUID: bool> fmt::Debug for PackedText<BYTES, IS_UUID> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<const BYTES: usize, const IS_UUID: bool> PartialEq<str> for PackedText<BYTES, IS_UUID> {
    fn eq(&self, text: &str) -> bool {
        match &self.0 {
            Form::Packed(bytes) => Self::pack(text).is_some_and(|packed| packed == *bytes),
            Form::Other(known) => **known == *text,
        }
    }
}

impl<const BYTES: usize, const IS_UUID: bool> PartialEq<&str> for PackedText<BYTES, IS_UUID> {
    fn eq(&self, text: &&str) -> bool {
        *self == **text
    }
}

impl<const BYTES: usize, const IS_UUID: bool> PartialEq<String> for PackedText<BYTES, IS_UUID> {
    fn eq(&self, text: &String) -> bool {
        *self == **text
    }
}

impl<const BYTES: usize, const IS_UUID: bool> PartialOrd for PackedText<BYTES, IS_UUID> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Compares the texts. If both are packed, the bytes have the same order.
impl<const BYTES: usize, const IS_UUID: bool> Ord for PackedText<BYTES, IS_UUID> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Form::Packed(one), Form::Packed(other)) => one.cmp(other),
            (Form::Other(one), Form::Other(other)) => one.cmp(other),
            _ => self.to_string().cmp(&other.to_string()),
        }
    }
}

impl<const BYTES: usize, const IS_UUID: bool> Serialize for PackedText<BYTES, IS_UUID> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const BYTES: usize, const IS_UUID: bool> Deserialize<'de> for PackedText<BYTES, IS_UUID> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    const UUID: &str = "0b0c1d2e-0000-4000-8000-0000000000ff";

    #[test]
    fn digests_and_uuids_are_packed_and_other_texts_are_kept() {
        assert!(matches!(DigestText::from(DIGEST).0, Form::Packed(_)));
        assert!(matches!(UuidText::from(UUID).0, Form::Packed(_)));
        let upper = DIGEST.to_uppercase();
        let moved = "0b0c1d2-e0000-4000-8000-0000000000ff";
        for text in ["", "released", UUID, &upper, &DIGEST[1..]] {
            assert!(matches!(DigestText::from(text).0, Form::Other(_)), "{text}");
        }
        for text in ["", "u", DIGEST, moved, &UUID.to_uppercase(), "0b0c1d2e-0000-4000-8000-0000000000fg"] {
            assert!(matches!(UuidText::from(text).0, Form::Other(_)), "{text}");
        }
        assert!(DigestText::default().is_empty() && !DigestText::from(DIGEST).is_empty());
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            "[0-9a-f]{64}",
            "[0-9a-f]{32}",
            "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
            "[0-9a-fA-F-]{0,70}",
            ".{0,5}"
        ]
    }

    proptest! {
        #[test]
        fn a_packed_text_prints_compares_and_serializes_like_the_text(one in text(), other in text()) {
            fn check<const BYTES: usize, const IS_UUID: bool>(one: &str, other: &str) {
                let (first, second) =
                    (PackedText::<BYTES, IS_UUID>::from(one), PackedText::<BYTES, IS_UUID>::from(other.to_owned()));
                assert_eq!(first.to_string(), one);
                assert_eq!(first.cmp(&second), one.cmp(other));
                assert_eq!((first == second, first == *other), (one == other, one == other));
                let json = serde_json::to_string(&first).expect("a text becomes JSON");
                assert_eq!(serde_json::from_str::<PackedText<BYTES, IS_UUID>>(&json).expect("the JSON parses"), first);
            }
            check::<32, false>(&one, &other);
            check::<16, false>(&one, &other);
            check::<16, true>(&one, &other);
        }
    }
}
