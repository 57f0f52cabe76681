//! An entry as a source returned it, not interpreted yet.

use bursar_core::snapshot::freshness::Stamp;

/// A DN, and attributes with their values. A read holds tens of thousands of entries, so names and values are stored
/// contiguously in one buffer. Two entries are equal if their DNs and values are equal; their `stamp` may differ.
#[derive(Debug, Clone, Eq, Default)]
pub struct RawEntry {
    pub dn: String,
    /// Pairs of an attribute's name and one value, without separators.
    bytes: Vec<u8>,
    /// The positions in `bytes` at which the name and the value of each pair end.
    ends: Vec<(usize, usize)>,
    /// When the entry was last changed, if the read requested that.
    pub(crate) stamp: Option<Stamp>,
}

impl PartialEq for RawEntry {
    fn eq(&self, other: &Self) -> bool {
        let Self { dn, bytes, ends, stamp: _ } = self;
        (dn, bytes, ends) == (&other.dn, &other.bytes, &other.ends)
    }
}

impl RawEntry {
    /// Returns an entry without attributes.
    #[must_use]
    pub fn new(dn: String) -> Self {
        Self { dn, bytes: Vec::with_capacity(256), ends: Vec::with_capacity(16), stamp: None }
    }

    /// Returns an entry with these attributes and values.
    #[must_use]
    pub fn from_texts(dn: &str, pairs: &[(&str, &str)]) -> Self {
        let mut entry = Self::new(dn.to_owned());
        for (name, value) in pairs {
            entry.add(name.as_bytes(), value.as_bytes());
        }
        entry
    }

    /// Adds a value of the attribute `name`.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        self.bytes.extend(name.iter().map(u8::to_ascii_lowercase));
        let name_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((name_end, self.bytes.len()));
    }

    /// Returns the entry without spare capacity, for long-term storage.
    #[must_use]
    pub(crate) fn shrunk(mut self) -> Self {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self
    }

    /// Removes all values of `attribute` (in any case).
    pub(crate) fn remove(&mut self, attribute: &str) {
        let mut kept = Self { stamp: self.stamp, ..Self::new(std::mem::take(&mut self.dn)) };
        for (name, value) in self.pairs().filter(|(name, _)| !name.eq_ignore_ascii_case(attribute.as_bytes())) {
            kept.add(name, value);
        }
        *self = kept;
    }

    /// Returns every value with the name of its attribute in lower case.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(name_end, end)| {
            let pair = (&self.bytes[start..*name_end], &self.bytes[*name_end..*end]);
            start = *end;
            pair
        })
    }

    /// Returns the values of `attribute` (in any case).
    pub fn values(&self, attribute: &str) -> impl Iterator<Item = &[u8]> {
        let named = |name: &[u8]| name.eq_ignore_ascii_case(attribute.as_bytes());
        self.pairs().filter(move |(name, _)| named(name)).map(|(_, value)| value)
    }

    /// Returns the values of `attribute` (in any case) that are text.
    pub fn texts(&self, attribute: &str) -> impl Iterator<Item = &str> {
        self.values(attribute).filter_map(|value| std::str::from_utf8(value).ok())
    }

    /// Whether the entry has a value of `attribute`.
    #[must_use]
    pub fn has(&self, attribute: &str) -> bool {
        self.values(attribute).next().is_some()
    }

    /// Whether the entry has one of these object classes.
    #[must_use]
    pub fn is_a(&self, classes: &[&str]) -> bool {
        self.texts("objectclass").any(|value| classes.iter().any(|class| value.eq_ignore_ascii_case(class)))
    }

    /// Returns the only value of `attribute`; `Err` if there are several, or if it is not text.
    pub fn only(&self, attribute: &str) -> Result<Option<&str>, String> {
        let mut values = self.values(attribute);
        match (values.next(), values.count()) {
            (None, _) => Ok(None),
            (Some(value), 0) => std::str::from_utf8(value).map(Some).map_err(|_| format!("{attribute} is not text")),
            (Some(_), others) => Err(format!("{attribute} has {} values", others + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_in_any_case() {
        let mut entry = RawEntry::from_texts("cn=a", &[("CN", "a"), ("objectClass", "top"), ("cn", "b"), ("sn", "")]);
        entry.add(b"Photo", &[0xff]);
        assert_eq!(entry.texts("cN").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(entry.values("photo").collect::<Vec<_>>(), [[0xff]]);
        assert_eq!(entry.texts("photo").count(), 0);
        assert!(entry.has("SN") && !entry.has("s") && !entry.has("description"));
        assert!(entry.is_a(&["person", "TOP"]) && !entry.is_a(&["person"]));
    }

    #[test]
    fn removing_an_attribute_keeps_the_others() {
        let mut entry = RawEntry::from_texts("cn=a", &[("cn", "a"), ("member", "b"), ("member", "c"), ("sn", "d")]);
        entry.remove("MEMBER");
        assert_eq!(entry, RawEntry::from_texts("cn=a", &[("cn", "a"), ("sn", "d")]));
    }

    #[test]
    fn several_values_and_binary_values_are_refused() {
        let mut entry = RawEntry::from_texts("cn=a", &[("cn", "a"), ("cn", "b"), ("sn", "c")]);
        entry.add(b"photo", &[0xff]);
        assert_eq!(entry.only("sn"), Ok(Some("c")));
        assert_eq!(entry.only("mail"), Ok(None));
        assert_eq!(entry.only("cn"), Err("cn has 2 values".to_owned()));
        assert_eq!(entry.only("photo"), Err("photo is not text".to_owned()));
    }
}
