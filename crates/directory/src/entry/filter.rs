//! Evaluates search filters (RFC 4515) for sources without a server.
//!
//! Presence, equality, substrings, `&`, `|` and `!` are supported, and comparisons ignore case. The presets and most
//! sites need no more. Ordering, approximate and extensible matches need the server's schema, so filters with them are
//! refused.

use bursar_core::snapshot::dn::fold;

use crate::entry::raw::RawEntry;

/// A filter that can be evaluated for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// `(&(a)(b))`; true if empty.
    And(Vec<Filter>),
    /// `(|(a)(b))`; false if empty.
    Or(Vec<Filter>),
    /// `(!(a))`.
    Not(Box<Filter>),
    /// `(attribute=*)`.
    Present(String),
    /// `(attribute=value)`.
    Equal(String, String),
    /// `(attribute=first*middle*last)`: the pieces; the first and the last may be empty.
    Substring(String, Vec<String>),
}

impl Filter {
    /// Parses `text`; returns `None` if it is malformed or needs a server.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (filter, rest) = parse_filter(text.trim(), 0)?;
        rest.is_empty().then_some(filter)
    }

    /// Whether the filter matches `entry`.
    #[must_use]
    pub fn matches(&self, entry: &RawEntry) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.matches(entry)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(entry)),
            Self::Not(part) => !part.matches(entry),
            Self::Present(attribute) => entry.has(attribute),
            Self::Equal(attribute, wanted) => entry.texts(attribute).any(|value| fold(value) == *wanted),
            Self::Substring(attribute, pieces) => entry.texts(attribute).any(|value| has_pieces(&fold(value), pieces)),
        }
    }
}

fn has_pieces(value: &str, pieces: &[String]) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(mut rest) = value.strip_prefix(first.as_str()) else { return false };
    for piece in middle {
        let Some((_, after)) = rest.split_once(piece.as_str()) else { return false };
        rest = after;
    }
    rest.ends_with(last.as_str())
}

/// The deepest nesting that is parsed. A deeper filter is a mistake, and its recursion could overflow the stack.
const DEPTH: usize = 64;

fn parse_filter(text: &str, depth: usize) -> Option<(Filter, &str)> {
    let inner = text.strip_prefix('(').filter(|_| depth < DEPTH)?;
    let (filter, rest) = match inner.chars().next()? {
        '&' => parse_list(&inner[1..], depth).map(|(parts, rest)| (Filter::And(parts), rest))?,
        '|' => parse_list(&inner[1..], depth).map(|(parts, rest)| (Filter::Or(parts), rest))?,
        '!' => parse_filter(&inner[1..], depth + 1).map(|(part, rest)| (Filter::Not(Box::new(part)), rest))?,
        _ => {
            let end = inner.find(')')?;
            (parse_item(&inner[..end])?, &inner[end..])
        }
    };
    Some((filter, rest.strip_prefix(')')?))
}

fn parse_list(mut text: &str, depth: usize) -> Option<(Vec<Filter>, &str)> {
    let mut parts = Vec::new();
    while text.starts_with('(') {
        let (part, rest) = parse_filter(text, depth + 1)?;
        parts.push(part);
        text = rest;
    }
    Some((parts, text))
}

fn parse_item(text: &str) -> Option<Filter> {
    let (attribute, value) = text.split_once('=')?;
    let attribute = attribute.trim().to_lowercase();
    if attribute.is_empty() || !attribute.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b';'))
    {
        return None; // for example `>=`, `<=`, `~=` or `:=`
    }
    if value == "*" {
        return Some(Filter::Present(attribute));
    }
    let mut pieces = value.split('*').map(unescape).collect::<Option<Vec<_>>>()?;
    if pieces.len() == 1 {
        Some(Filter::Equal(attribute, pieces.remove(0)))
    } else {
        Some(Filter::Substring(attribute, pieces))
    }
}

/// Decodes escapes such as `\2a` (RFC 4515, 3).
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escaped)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        bytes.push(u8::from_str_radix(escaped.get(..2)?, 16).ok()?);
        rest = &escaped[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok().map(|text| fold(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(filter: &str) -> Option<bool> {
        let entry = RawEntry::from_texts(
            "cn=tools.foo,dc=x",
            &[("objectClass", "posixAccount"), ("objectClass", "top"), ("cn", "tools.Foo"), ("description", "a*b")],
        );
        Filter::parse(filter).map(|filter| filter.matches(&entry))
    }

    #[test]
    fn filters_match_entries() {
        for yes in [
            "(cn=*)",
            "(CN=TOOLS.foo)",
            "(cn=tools.*)",
            "(cn=*s.f*o)",
            "(description=a\\2ab)",
            "(&(objectClass=posixAccount)(!(cn=tools.bar)))",
            "(|(cn=x)(objectclass=TOP))",
            "(&)",
        ] {
            assert_eq!(holds(yes), Some(true), "{yes}");
        }
        for no in ["(sn=*)", "(cn=foo)", "(cn=tools.foo*foo)", "(!(cn=*))", "(|)", "(&(cn=*)(sn=*))"] {
            assert_eq!(holds(no), Some(false), "{no}");
        }
    }

    #[test]
    fn a_filter_that_needs_a_schema_is_refused() {
        for wrong in ["", "cn=a", "(cn=a", "(cn=a))", "(uidNumber>=5)", "(cn~=a)", "(cn:dn:=a)", "(cn=\\zz)", "(!)"] {
            assert_eq!(holds(wrong), None, "{wrong}");
        }
        assert_eq!(Filter::parse(&"(!".repeat(100_000)), None);
    }
}
