//! Reads attributes with many values, which Active Directory sends in parts: `member;range=0-1499` (MS-ADTS
//! 3.1.1.3.1.3.3).
//!
//! Values can change between two parts. So each request begins with the last known value. If the answer begins with
//! another value, values were added or removed before it, and the attribute is read again from the beginning.

use std::time::Duration;

use ldap3::{Ldap, Scope};
use tokio::time::timeout;

use super::connection::{ReadError, meaning};
use super::raw;
use crate::entry::raw::RawEntry;

/// How often an attribute is read from the beginning before the read fails, because the group changes all the time.
const BEGINNINGS: u32 = 4;

/// A part of the values of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The name of the attribute without options, in lower case.
    pub(super) attribute: String,
    /// The index of the first value in this part.
    low: u32,
    /// The index of the last value in this part, if more values follow.
    pub(super) last: Option<u32>,
}

impl Part {
    /// Parses `member;range=0-1499` into `member`, 0 and 1499; `*` is the end. Returns `None` if the name has no range.
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        let at = name.iter().position(|byte| *byte == b';')?;
        let (attribute, option) = std::str::from_utf8(name).ok()?.split_at(at);
        let option = option.to_ascii_lowercase();
        let (low, high) = option.strip_prefix(";range=")?.split_once('-')?;
        let last = if high == "*" { None } else { Some(high.parse().ok()?) };
        Some(Self { attribute: attribute.to_ascii_lowercase(), low: low.parse().ok()?, last })
    }
}

/// Returns the option that requests values of `attribute` from index `low` on: `size` values, or as many as the server
/// sends.
pub(super) fn ask(attribute: &str, low: u32, size: Option<u32>) -> String {
    match size {
        Some(size) => format!("{attribute};range={low}-{}", low.saturating_add(size.saturating_sub(1))),
        None => format!("{attribute};range={low}-*"),
    }
}

/// Reads the values that are missing in `entry` after `part`.
pub(super) async fn complete(
    ldap: &mut Ldap,
    entry: &mut RawEntry,
    part: &Part,
    size: Option<u32>,
    limit: Duration,
) -> Result<(), ReadError> {
    let attribute = &part.attribute;
    let Some(mut last) = part.last else { return Ok(()) };
    let mut beginnings = 1;
    loop {
        let known = entry.values(attribute).last();
        // The request includes the last known value, so it asks for one more than `size`.
        let low = if known.is_some() { last } else { 0 };
        let asked = ask(attribute, low, size.map(|size| size.saturating_add(1)));
        let (part, answer) = read_part(ldap, &entry.dn, &asked, limit).await?;
        let follows = part.low == low && (known.is_none() || known == answer.values(attribute).next());
        let new = usize::from(known.is_some());
        if follows {
            let mut more = answer.values(attribute).skip(new).peekable();
            let stuck = more.peek().is_none();
            more.for_each(|value| entry.add(attribute.as_bytes(), value));
            match part.last {
                None => return Ok(()),
                Some(_) if stuck => {
                    return Err(ReadError::Answer(format!(
                        "the server sends no further values of {attribute} of {}",
                        entry.dn
                    )));
                }
                Some(end) => last = end,
            }
        } else if beginnings < BEGINNINGS {
            beginnings += 1;
            entry.remove(attribute);
            last = 0;
        } else {
            return Err(ReadError::Answer(format!("{attribute} of {} changed while it was read", entry.dn)));
        }
    }
}

async fn read_part(ldap: &mut Ldap, dn: &str, asked: &str, limit: Duration) -> Result<(Part, RawEntry), ReadError> {
    let search = ldap.search(dn, Scope::Base, "(objectClass=*)", vec![asked]);
    let ldap3::SearchResult(found, answer) =
        timeout(limit, search).await.map_err(|_| ReadError::Timeout(limit))?.map_err(ReadError::Lost)?;
    if answer.rc != 0 {
        return Err(ReadError::Answer(format!("{dn}: {}", meaning(&answer))));
    }
    for item in found.into_iter().filter(|item| !item.is_ref() && !item.is_intermediate()) {
        let mut part = None;
        let entry = raw(item.0, |came| part = Some(came)).ok_or(ReadError::Unparsable)?;
        if let Some(part) = part {
            return Ok((part, entry));
        }
    }
    // The server sent no values although more were announced. This counts as a changed attribute.
    Ok((Part { attribute: String::new(), low: u32::MAX, last: None }, RawEntry::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_options_are_parsed_and_written() {
        let parse = |name: &str| Part::parse(name.as_bytes()).map(|part| (part.attribute, part.low, part.last));
        assert_eq!(parse("member;range=0-1499"), Some(("member".to_owned(), 0, Some(1499))));
        assert_eq!(parse("Member;Range=1500-*"), Some(("member".to_owned(), 1500, None)));
        for wrong in
            ["member", "member;range=", "member;range=0", "member;range=a-1", "member;range=0-b", "member;x=0-1"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(ask("member", 1499, None), "member;range=1499-*");
        assert_eq!(ask("member", 0, Some(10)), "member;range=0-9");
        assert_eq!(ask("member", u32::MAX, Some(10)), "member;range=4294967295-4294967295");
    }
}
