//! The mark of the owning ledger in a cluster: the ledger's id and its highest generation, signed with the seal's key.
//! The generation of the mark only rises, so a ledger that was rolled back is noticed.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{ED25519, UnparsedPublicKey};

use super::Sealer;
use crate::identity::{ClusterName, Uid};

/// Key of the ledger's id.
pub const LEDGER: &str = "ledger";
/// Key of the highest generation in use.
pub const HIGHEST: &str = "generation";
/// Key of [`Mark::uids`].
pub const UIDS: &str = "uids";
/// Key of the signature.
pub const SIGNATURE: &str = "seal";

/// The beginning of the signed bytes. With it, no other signature by the same key can pass for the signature of a mark.
const DOMAIN: &str = "bursar-mark-v1";

/// The content of a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub ledger: String,
    /// The ledger's highest generation in use.
    pub generation: u64,
    /// The highest uid that a workspace got from each range, and the uids of workspaces outside the ranges.
    pub uids: BTreeSet<Uid>,
}

impl Mark {
    /// Returns the data of the mark's ConfigMap in `cluster`. A copy in another cluster is invalid.
    #[must_use]
    pub fn signed(&self, cluster: &ClusterName, sealer: &Sealer) -> BTreeMap<String, String> {
        let signature = sealer.0.sign(&self.message(cluster));
        let mut data = BTreeMap::from([
            (LEDGER.to_owned(), self.ledger.clone()),
            (HIGHEST.to_owned(), self.generation.to_string()),
            (SIGNATURE.to_owned(), BASE64.encode(signature.as_ref())),
        ]);
        data.extend(self.uids_text().map(|uids| (UIDS.to_owned(), uids)));
        data
    }

    /// Returns the mark that the data of a ConfigMap prove under one of `public_keys`; `None` if the signature does not
    /// match or a value is malformed.
    #[must_use]
    pub fn verified(data: &BTreeMap<String, String>, cluster: &ClusterName, public_keys: &[[u8; 32]]) -> Option<Self> {
        let uids = data.get(UIDS).map_or("", String::as_str).split(',').filter(|uid| !uid.is_empty());
        let mark = Self {
            ledger: data.get(LEDGER)?.clone(),
            generation: data.get(HIGHEST)?.parse().ok()?,
            uids: uids.map(str::parse).collect::<Result<_, _>>().ok()?,
        };
        let signature = BASE64.decode(data.get(SIGNATURE)?).ok()?;
        let message = mark.message(cluster);
        let holds = |key: &[u8; 32]| UnparsedPublicKey::new(&ED25519, key).verify(&message, &signature).is_ok();
        public_keys.iter().any(holds).then_some(mark)
    }

    /// Returns the uids for the ConfigMap. `None` if there are no uids, so that marks made before workspaces had uids
    /// stay valid.
    fn uids_text(&self) -> Option<String> {
        let uids: Vec<String> = self.uids.iter().map(Uid::to_string).collect();
        (!uids.is_empty()).then(|| uids.join(","))
    }

    /// Returns the signed bytes. The length of each value precedes it, so that text cannot move from one value to the
    /// next.
    fn message(&self, cluster: &ClusterName) -> Vec<u8> {
        let mut message = DOMAIN.as_bytes().to_vec();
        let texts = [cluster.to_string(), self.ledger.clone(), self.generation.to_string()];
        for text in texts.into_iter().chain(self.uids_text()) {
            message.extend((text.len() as u64).to_be_bytes());
            message.extend(text.as_bytes());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_with_any_changed_value_is_invalid() {
        let sealer = Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed");
        let (prod, keys) = (ClusterName("prod".into()), [[0; 32], sealer.public_key()]);
        let uids = [70_000, 80_002].map(|uid| Uid::try_from(uid).expect("the number is in range")).into();
        let mark = Mark { ledger: "a1".to_owned(), generation: 1042, uids };
        let data = mark.signed(&prod, &sealer);
        assert_eq!(Mark::verified(&data, &prod, &keys), Some(mark));
        assert_eq!(Mark::verified(&data, &ClusterName("lab".into()), &keys), None);
        assert_eq!(Mark::verified(&data, &prod, &keys[..1]), None);
        for (key, value) in
            [(LEDGER, "a2"), (HIGHEST, "1043"), (HIGHEST, "x"), (UIDS, "70000"), (UIDS, ""), (SIGNATURE, "AAAA")]
        {
            let mut edited = data.clone();
            edited.insert(key.to_owned(), value.to_owned());
            assert_eq!(Mark::verified(&edited, &prod, &keys), None, "{key}");
        }
        assert_eq!(Mark::verified(&BTreeMap::new(), &prod, &keys), None);
        let without = Mark { ledger: "a1".to_owned(), generation: 1042, uids: BTreeSet::new() };
        let data = without.signed(&prod, &sealer);
        assert!(!data.contains_key(UIDS));
        assert_eq!(Mark::verified(&data, &prod, &keys), Some(without));
    }
}
