//! Comparable distinguished names: `CN=a\2Cb , DC=x` and `cn=a\,b,dc=x` are the same name.
//!
//! Follows the string form of RFC 4514, and accepts two older forms of RFC 2253: `;` as separator and values in double
//! quotes. Values are compared like most naming attributes (`caseIgnoreMatch`, RFC 4517): case is ignored, and a run of
//! spaces counts as one.

use std::collections::BTreeSet;

/// A distinguished name in its canonical spelling: names and values are folded, the values of a multi-valued part are
/// sorted, and `,` separates the parts. The name is a single string, because a read holds tens of thousands of names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dn(String);

impl Dn {
    /// Parses `text`. A text that is not a DN becomes a name with one nameless part, which equals only itself. Parsing
    /// cannot fail, so that one invalid member does not spoil a whole group.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.trim().is_empty() {
            Self(String::new())
        } else if is_plain(text) {
            Self(text.to_ascii_lowercase())
        } else {
            Self(canonical(text).unwrap_or_else(|| format!("={}", escape(&fold(text)))))
        }
    }

    /// Parses a `uniqueMember` value: a DN and an optional unique identifier, `cn=a,dc=x#'0101'B` (RFC 4517, 3.3.21).
    #[must_use]
    pub fn parse_with_optional_uid(text: &str) -> Self {
        let without = text
            .strip_suffix("'B")
            .and_then(|rest| rest.rsplit_once("#'"))
            .map(|(dn, bits)| if bits.bytes().all(|bit| matches!(bit, b'0' | b'1')) { dn } else { text });
        Self::parse(without.unwrap_or(text))
    }

    /// Whether the name is `base` or lies below it, as in a search with scope `subtree`.
    #[must_use]
    pub fn is_within(&self, base: &Self) -> bool {
        let Some(above) = self.0.strip_suffix(&base.0) else { return false };
        // The escaped comma in `uid=a\,ou=people` belongs to the value, so this name is not below `ou=people`.
        let separates = |above: &str| above.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0;
        above.is_empty() || base.0.is_empty() || above.strip_suffix(',').is_some_and(separates)
    }

    /// Returns the canonical name of the parent entry; empty if there is none.
    #[must_use]
    pub fn parent(&self) -> &str {
        let is_escaped = |at: usize| self.0[..at].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        let comma = self.0.match_indices(',').map(|(at, _)| at).find(|at| !is_escaped(*at));
        comma.map_or("", |at| &self.0[at + 1..])
    }

    /// Returns the value of `attribute` (in lower case) in the first part of the name. The value is folded.
    #[must_use]
    pub fn leaf(&self, attribute: &str) -> Option<String> {
        let (_, first) = parse_rdns(&self.0)?.into_iter().next()?.into_iter().find(|(name, _)| name == attribute)?;
        Some(first)
    }

    /// Returns the canonical spelling.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.0
    }
}

/// Whether `text` becomes canonical by a change of case alone, as nearly every DN from a server does.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'@');
    text.split(',').all(|part| {
        part.split_once('=').is_some_and(|(name, value)| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) && value.bytes().all(plain)
        })
    })
}

fn canonical(text: &str) -> Option<String> {
    let rdn = |parts: BTreeSet<(String, String)>| {
        parts.into_iter().map(|(name, value)| format!("{name}={}", escape(&value))).collect::<Vec<_>>().join("+")
    };
    Some(parse_rdns(text)?.into_iter().map(rdn).collect::<Vec<_>>().join(","))
}

/// Folds a value for comparison: lower case, single spaces, and no spaces at the ends.
#[must_use]
pub fn fold(value: &str) -> String {
    value.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Puts a backslash before each character of `value` that has a meaning in a DN.
#[must_use]
pub fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' | '#') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn parse_rdns(text: &str) -> Option<Vec<BTreeSet<(String, String)>>> {
    let mut rest = text;
    let mut rdns = Vec::new();
    let mut rdn = BTreeSet::new();
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim().to_lowercase();
        let name = name.strip_prefix("oid.").unwrap_or(&name);
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.') {
            return None;
        }
        let (value, separator, tail) = parse_value(after)?;
        rdn.insert((name.to_owned(), fold(&value)));
        if separator != Some('+') {
            rdns.push(std::mem::take(&mut rdn));
        }
        if separator.is_none() {
            return Some(rdns);
        }
        rest = tail;
    }
}

/// Returns the value at the start of `text`, the separator that ended it, and the rest.
fn parse_value(text: &str) -> Option<(String, Option<char>, &str)> {
    let text = text.trim_start_matches(' ');
    let mut bytes = Vec::new();
    let mut kept = 0; // Trailing spaces count only if they are escaped.
    let mut quoted = text.starts_with('"');
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => {
                let (_, first) = characters.next()?;
                if let Some(high) = first.to_digit(16) {
                    let (_, second) = characters.next()?;
                    bytes.push(u8::try_from(high * 16 + second.to_digit(16)?).ok()?);
                } else {
                    bytes.extend_from_slice(first.encode_utf8(&mut [0; 4]).as_bytes());
                }
                kept = bytes.len();
            }
            '"' if quoted => {
                quoted = false;
                kept = bytes.len();
            }
            ',' | ';' | '+' if !quoted => {
                bytes.truncate(kept);
                return Some((String::from_utf8(bytes).ok()?, Some(character), &text[at + 1..]));
            }
            other => {
                bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                if other != ' ' || quoted {
                    kept = bytes.len();
                }
            }
        }
    }
    bytes.truncate(kept);
    (!quoted).then_some((String::from_utf8(bytes).ok()?, None, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_of_one_name_are_equal() {
        let plain = Dn::parse("cn=Smith\\, John,ou=People,dc=example,dc=org");
        for other in [
            "CN=smith\\2c john , OU=people, DC=Example,dc=ORG",
            "cn=\"Smith, John\",ou=people;dc=example;dc=org",
            "cn=Smith\\,  John ,ou=People,dc=example,dc=org",
        ] {
            assert_eq!(plain, Dn::parse(other), "{other}");
        }
        assert_ne!(plain, Dn::parse("cn=John Smith,ou=people,dc=example,dc=org"));
    }

    #[test]
    fn the_order_of_the_values_of_a_multi_valued_part_does_not_matter() {
        assert_eq!(Dn::parse("cn=a+uid=b,dc=x"), Dn::parse("UID=b + CN=a,dc=x"));
        assert_ne!(Dn::parse("cn=a+uid=b,dc=x"), Dn::parse("cn=a,uid=b,dc=x"));
    }

    #[test]
    fn utf_8_may_be_written_in_hex() {
        assert_eq!(Dn::parse("cn=Lu\\C4\\8Di\\C4\\87"), Dn::parse("cn=Lučić"));
    }

    #[test]
    fn a_name_is_within_a_base_only_by_whole_parts() {
        let base = Dn::parse("ou=people,dc=example");
        assert!(Dn::parse("uid=a,ou=People,dc=example").is_within(&base));
        assert!(base.is_within(&base));
        assert!(!Dn::parse("uid=a,ou=morepeople,dc=example").is_within(&base));
        assert!(!Dn::parse("uid=a\\,ou=people,dc=example").is_within(&base));
    }

    #[test]
    fn the_optional_uid_of_a_unique_member_is_ignored() {
        assert_eq!(Dn::parse_with_optional_uid("cn=a,dc=x#'0110'B"), Dn::parse("cn=a,dc=x"));
        assert_eq!(Dn::parse_with_optional_uid("cn=a,dc=x"), Dn::parse("cn=a,dc=x"));
    }

    proptest! {
        #[test]
        fn the_fast_path_is_canonical(text in "([A-Za-z]{1,3}=[A-Za-z0-9._@-]{0,4},){0,3}[a-z]{1,3}=[A-Z]{1,3}") {
            prop_assert!(is_plain(&text));
            prop_assert_eq!(Some(Dn::parse(&text).0), canonical(&text));
        }

        #[test]
        fn any_text_can_be_parsed(text in "\\PC{0,60}") {
            let dn = Dn::parse(&text);
            prop_assert_eq!(&dn, &Dn::parse(&text));
        }

        #[test]
        fn the_canonical_spelling_is_stable(value in "[a-z ,+\"\\\\<>;=#é]{1,12}", other in "[a-z]{1,5}") {
            let dn = Dn::parse(&format!("cn={},ou={other}", escape(value.trim())));
            prop_assert_eq!(Dn::parse(dn.canonical()), dn.clone());
            let above = Dn::parse(&format!("OU={other}"));
            prop_assert!(dn.is_within(&above));
            prop_assert_eq!(dn.leaf("cn"), Some(fold(value.trim())));
        }
    }
}
