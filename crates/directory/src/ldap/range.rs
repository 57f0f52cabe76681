//! Attributes of many values, which Active Directory gives in parts: `member;range=0-1499` (MS-ADTS 3.1.1.3.1.3.3).
//!
//! Values can change between two parts. Each part is therefore asked for from the last known value on: if that is not
//! the first value of the answer, values came or went before it, and the attribute is read again from its beginning.

use std::time::Duration;

use ldap3::{Ldap, Scope};
use tokio::time::timeout;

use super::connection::{ReadError, meaning};
use super::raw;
use crate::entry::raw::RawEntry;

/// Beginnings before the server's answer is said to be none: a group that changes more often is not at rest today.
const BEGINNINGS: u32 = 4;

/// A part of the values of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The attribute's own name, in lower case.
    pub(super) attribute: String,
    /// Place of the first value that came.
    low: u32,
    /// Place of the last one, if there are more.
    pub(super) last: Option<u32>,
}

impl Part {
    /// `member;range=0-1499` is `member`, from 0 to 1499; `*` is the end.
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        let at = name.iter().position(|byte| *byte == b';')?;
        let (attribute, option) = std::str::from_utf8(name).ok()?.split_at(at);
        let option = option.to_ascii_lowercase();
        let (low, high) = option.strip_prefix(";range=")?.split_once('-')?;
        let last = if high == "*" { None } else { Some(high.parse().ok()?) };
        Some(Self { attribute: attribute.to_ascii_lowercase(), low: low.parse().ok()?, last })
    }
}

/// The option that asks for values of `attribute` from `low`, `size` of them or as many as the server gives.
pub(super) fn ask(attribute: &str, low: u32, size: Option<u32>) -> String {
    match size {
        Some(size) => format!("{attribute};range={low}-{}", low.saturating_add(size.saturating_sub(1))),
        None => format!("{attribute};range={low}-*"),
    }
}

/// Reads what is missing after `part` in `entry`.
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
        // From the value that is known, so one more than is new.
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
                    return Err(ReadError::Answer(format!("{attribute} of {} does not go on", entry.dn)));
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
    // No values where some were asked for: as if others had come.
    Ok((Part { attribute: String::new(), low: u32::MAX, last: None }, RawEntry::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_asked_for() {
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
