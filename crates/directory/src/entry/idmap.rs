//! Computes numbers for accounts that have a SID and no `uidNumber`, by the algorithm of SSSD. Files that a pod writes
//! therefore belong to the uid that the same person has on hosts with SSSD.
//!
//! The algorithm is described in sssd-ad(5), ID MAPPING. The numbers from `lower` to `upper` are divided into slices of
//! `size`. The hash of a domain's SID selects its slice, and the RID is the offset in it. RIDs beyond the slice are in
//! further slices. The hash that selects a further slice is made from the domain's SID and the first RID in the slice.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::sid::Sid;

/// The range of numbers: `ldap_idmap_range_min`, `_max` and `_size` of SSSD. If SSSD runs with other values, they must
/// be set here too; otherwise files get wrong owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first number.
    pub lower: u32,
    /// One more than the last number.
    pub upper: u32,
    /// The size of each slice.
    pub size: u32,
}

impl Default for IdRange {
    /// The defaults of SSSD: 10,000 slices of 200,000.
    fn default() -> Self {
        Self { lower: 200_000, upper: 2_000_200_000, size: 200_000 }
    }
}

impl IdRange {
    /// Returns the number of whole slices; 0 if the range is invalid.
    #[must_use]
    pub fn slices(&self) -> u32 {
        self.upper.checked_sub(self.lower).and_then(|all| all.checked_div(self.size)).unwrap_or(0)
    }
}

/// The number of further slices that SSSD reserves for a domain at once (`ldap_idmap_helper_table_size`). The first 10
/// further slices of a domain avoid the first slices of that domain and of the domains registered before it. All
/// further slices after these avoid the first slices of every domain.
const HELPERS: u32 = 10;
/// The seed of SSSD's hash.
const SEED: u32 = 0xdead_beef;

/// The slice of each domain of a source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IdMap {
    range: IdRange,
    /// The slices of domains, in the order in which they were assigned.
    taken: Vec<u32>,
    /// The index in `taken` by domain; `Err` names the domain that already has the same slice.
    domains: BTreeMap<Sid, Result<usize, Sid>>,
}

impl IdMap {
    /// Assigns slices. The default domain (`ldap_idmap_default_domain_sid`) gets slice 0. Each domain in `listed` gets
    /// the first free slice from its hash on. Each other domain in `seen` gets the slice of its hash.
    ///
    /// If the hash of a domain selects a slice that another domain has, the result of SSSD depends on which domain it
    /// saw first. Bursar does not guess: the domain gets no numbers until `listed` gives the order.
    #[must_use]
    pub fn new(range: IdRange, default: Option<&Sid>, listed: &[Sid], seen: &BTreeSet<Sid>) -> Self {
        let mut map = Self { range, taken: Vec::new(), domains: BTreeMap::new() };
        if range.slices() == 0 {
            return map;
        }
        if let Some(default) = default {
            map.take(default, 0);
        }
        for domain in listed {
            if !map.domains.contains_key(domain) {
                let slice = map.next_free(map.hash(&domain.to_string()), map.taken.len());
                map.take(domain, slice);
            }
        }
        for domain in seen {
            if map.domains.contains_key(domain) {
                continue;
            }
            let slice = map.hash(&domain.to_string());
            match map.taken.iter().position(|taken| *taken == slice) {
                None => map.take(domain, slice),
                Some(place) => {
                    let holder = map.domains.iter().find(|(_, held)| **held == Ok(place)).map(|(sid, _)| sid.clone());
                    map.domains.insert(domain.clone(), Err(holder.unwrap_or_else(|| domain.clone())));
                }
            }
        }
        map
    }

    /// Returns the number that SSSD gives to `sid`, or why there is none.
    pub fn id(&self, sid: &Sid) -> Result<u32, String> {
        let (domain, rid) = sid.in_domain().ok_or_else(|| format!("{sid} belongs to no domain"))?;
        let place = match self.domains.get(&domain) {
            Some(Ok(place)) => *place,
            Some(Err(other)) => {
                return Err(format!(
                    "domains {other} and {domain} have the same slice of numbers; list both in idmap.domain_sids, in \
                     the order in which SSSD first saw them"
                ));
            }
            None => return Err(format!("domain {domain} has no slice of the numbers")),
        };
        let block = rid / self.range.size;
        let slice = if block == 0 {
            self.taken[place]
        } else {
            let known = if block <= HELPERS { place + 1 } else { self.taken.len() };
            self.next_free(self.hash(&format!("{domain}-{}", block * self.range.size)), known)
        };
        let first = u64::from(self.range.lower) + u64::from(slice) * u64::from(self.range.size);
        u32::try_from(first + u64::from(rid % self.range.size)).map_err(|_| format!("{sid} has no number below 2^32"))
    }

    fn take(&mut self, domain: &Sid, slice: u32) {
        self.domains.insert(domain.clone(), Ok(self.taken.len()));
        self.taken.push(slice);
    }

    fn hash(&self, text: &str) -> u32 {
        murmur3(text.as_bytes(), SEED) % self.range.slices()
    }

    /// Returns the first slice at or after `slice` that none of the first `known` domains has.
    fn next_free(&self, slice: u32, known: usize) -> u32 {
        let taken = &self.taken[..known];
        let slices = self.range.slices();
        let free = (0..slices).map(|step| (slice + step) % slices).find(|slice| !taken.contains(slice));
        free.unwrap_or(slice)
    }
}

/// `MurmurHash3_x86_32` (Austin Appleby, public domain).
fn murmur3(bytes: &[u8], seed: u32) -> u32 {
    let word = |part: &[u8]| part.iter().rev().fold(0, |sum: u32, byte| (sum << 8) | u32::from(*byte));
    let mixed = |word: u32| word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let chunks = bytes.chunks_exact(4);
    let rest = word(chunks.remainder());
    let mut hash = chunks.fold(seed, |hash, chunk| {
        (hash ^ mixed(word(chunk))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    hash ^= mixed(rest);
    // MurmurHash3 defines the length as a 32-bit number.
    hash ^= u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sid(text: &str) -> Sid {
        Sid::parse(text).expect("the text is a SID")
    }

    #[test]
    fn numbers_agree_with_those_of_sssd() {
        let mut compared = 0;
        for line in include_str!("../../../../tests/data/sss_idmap.txt").lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| fields[at].parse::<u32>().expect("the field is a number");
            let range = IdRange { lower: number(0), upper: number(1), size: number(2) };
            let domains: Vec<Sid> = fields[3].split(',').map(sid).collect();
            let map = IdMap::new(range, None, &domains, &BTreeSet::new());
            assert_eq!(map.id(&sid(fields[4])).ok(), fields[5].parse().ok(), "{line}");
            compared += 1;
        }
        assert!(compared > 180, "{compared}");
    }

    #[test]
    fn the_slice_of_a_domain_is_the_hash_of_its_sid() {
        let map = IdMap::new(IdRange::default(), None, &[], &BTreeSet::from([sid("S-1-5-21-123-456-789")]));
        assert_eq!(map.taken, [9212]);
        assert_eq!(map.id(&sid("S-1-5-21-123-456-789-1103")), Ok(200_000 + 9212 * 200_000 + 1103));
        assert!(map.id(&sid("S-1-5-32-544")).is_err_and(|why| why.contains("belongs to no domain")));
        assert!(map.id(&sid("S-1-5-21-1-2-3-500")).is_err_and(|why| why.contains("has no slice")));
    }

    #[test]
    fn the_default_domain_has_the_first_slice() {
        let domain = sid("S-1-5-21-123-456-789");
        let map = IdMap::new(IdRange::default(), Some(&domain), &[], &BTreeSet::from([domain.clone()]));
        assert_eq!(map.id(&domain.with_rid(1103)), Ok(201_103));
    }

    #[test]
    fn two_domains_with_the_same_slice_need_configuration() {
        let (first, second) = (sid("S-1-5-21-123-456-789"), sid("S-1-5-21-1-2-10082"));
        let range = IdRange { lower: 10_000, upper: 30_000, size: 10_000 };
        let both = BTreeSet::from([first.clone(), second.clone(), sid("S-1-5-21-1-2-3")]);
        let untold = IdMap::new(range, None, &[], &both);
        let refused: Vec<_> = both.iter().filter_map(|domain| untold.id(&domain.with_rid(500)).err()).collect();
        assert!(!refused.is_empty() && refused[0].contains("idmap.domain_sids"), "{refused:?}");
        let told = IdMap::new(range, None, &[first.clone(), second.clone()], &BTreeSet::new());
        assert_ne!(told.id(&first.with_rid(500)), told.id(&second.with_rid(500)));
        assert!(told.id(&second.with_rid(500)).is_ok());
    }

    #[test]
    fn a_range_without_a_slice_gives_no_numbers() {
        for (lower, upper, size) in [(5, 4, 1), (0, 10, 0), (0, 9, 10)] {
            let map = IdMap::new(IdRange { lower, upper, size }, None, &[sid("S-1-5-21-1-2-3")], &BTreeSet::new());
            assert!(map.id(&sid("S-1-5-21-1-2-3-500")).is_err());
        }
    }
}
