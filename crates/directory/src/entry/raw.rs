//! One entry as a source answered it: nothing interpreted yet. PURE: no runtime, no client, no file system, no clock.

use bursar_core::snapshot::freshness::Stamp;

/// A DN and the values of attributes. A read holds tens of thousands of these at once, so that names and values stand
/// end to end in one piece of memory. Two are equal if they say the same, whenever that was written.
#[derive(Debug, Clone, Eq, Default)]
pub struct RawEntry {
    /// Where it is.
    pub dn: String,
    /// The name of an attribute, one value of it, the next name, and so on.
    bytes: Vec<u8>,
    /// Where the name and the value of each pair end.
    ends: Vec<(usize, usize)>,
    /// When it was changed last, if that was asked for.
    pub(crate) stamp: Option<Stamp>,
}

impl PartialEq for RawEntry {
    fn eq(&self, other: &Self) -> bool {
        let Self { dn, bytes, ends, stamp: _ } = self;
        (dn, bytes, ends) == (&other.dn, &other.bytes, &other.ends)
    }
}

impl RawEntry {
    /// An entry that shows nothing but its name.
    #[must_use]
    pub fn new(dn: String) -> Self {
        Self { dn, bytes: Vec::with_capacity(256), ends: Vec::with_capacity(16), stamp: None }
    }

    /// An entry of these attributes and values.
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

    /// The same without room for more, for who keeps it.
    #[must_use]
    pub(crate) fn shrunk(mut self) -> Self {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        self
    }

    /// Takes all values of `attribute` (any case) away.
    pub(crate) fn remove(&mut self, attribute: &str) {
        let mut kept = Self { stamp: self.stamp, ..Self::new(std::mem::take(&mut self.dn)) };
        for (name, value) in self.pairs().filter(|(name, _)| !name.eq_ignore_ascii_case(attribute.as_bytes())) {
            kept.add(name, value);
        }
        *self = kept;
    }

    /// Every value, after the name of its attribute in lower case.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |(name_end, end)| {
            let pair = (&self.bytes[start..*name_end], &self.bytes[*name_end..*end]);
            start = *end;
            pair
        })
    }

    /// The values of `attribute` (any case).
    pub fn values(&self, attribute: &str) -> impl Iterator<Item = &[u8]> {
        let named = |name: &[u8]| name.eq_ignore_ascii_case(attribute.as_bytes());
        self.pairs().filter(move |(name, _)| named(name)).map(|(_, value)| value)
    }

    /// The values of `attribute` (any case) that are text.
    pub fn texts(&self, attribute: &str) -> impl Iterator<Item = &str> {
        self.values(attribute).filter_map(|value| std::str::from_utf8(value).ok())
    }

    /// Whether it has any value of `attribute`.
    #[must_use]
    pub fn has(&self, attribute: &str) -> bool {
        self.values(attribute).next().is_some()
    }

    /// Whether it has one of these object classes.
    #[must_use]
    pub fn is_a(&self, classes: &[&str]) -> bool {
        self.texts("objectclass").any(|value| classes.iter().any(|class| value.eq_ignore_ascii_case(class)))
    }

    /// The only value of `attribute`; `Err` says what is wrong if there are several.
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
    fn several_values_are_not_one() {
        let mut entry = RawEntry::from_texts("cn=a", &[("cn", "a"), ("cn", "b"), ("sn", "c")]);
        entry.add(b"photo", &[0xff]);
        assert_eq!(entry.only("sn"), Ok(Some("c")));
        assert_eq!(entry.only("mail"), Ok(None));
        assert_eq!(entry.only("cn"), Err("cn has 2 values".to_owned()));
        assert_eq!(entry.only("photo"), Err("photo is not text".to_owned()));
    }
}
