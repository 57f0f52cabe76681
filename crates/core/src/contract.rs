//! The metadata that identifies the tenant of a namespace: label and annotation keys, and the seal, which is the
//! daemon's signature over their values.
//!
//! Daemon and webhook share [`identity_of`], the only function that reads this metadata. If an annotation was edited,
//! the signature does not match, and the namespace has no identity.

pub mod exception;
pub mod mark;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use self::exception::ExceptedRule;
use crate::identity::{
    AccountId, AccountName, ClusterName, DirectoryId, Gid, IdentityError, NamespaceName, PosixIdentity, Uid,
};

/// The label that sets the Pod Security level of a namespace.
pub const POD_SECURITY_ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The field manager of everything the daemon applies, and the value of [`MANAGED_BY`].
pub const MANAGER: &str = "bursar";
/// Label on all of Bursar's objects (Kubernetes' recommended label).
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The prefix of our service accounts' names. The generation follows.
pub const SERVICE_ACCOUNT_PREFIX: &str = "bursar-g";
/// Label on every namespace of a tenant: its class.
pub const CLASS: &str = "bursar.dev/class";
/// Label with which an administrator allows the daemon to adopt an existing namespace.
pub const ADOPT: &str = "bursar.dev/adopt";
/// The prefix of Bursar's own keys. On a tenant's namespace, only Bursar and exempted users may write keys with this
/// prefix, except [`ADOPT`] and [`LAST_USE`].
pub const PREFIX: &str = "bursar.dev/";
/// Label of a pod: the containers that get the tenant's volumes (`none`, `containers`, `all`).
pub const INJECT: &str = "bursar.dev/inject";
/// The namespace of the webhook's self-test. The namespace has no tenant, and its name is also the value of `{name}`.
pub const SELFTEST: &str = "bursar-selftest";
/// Label of a claim: `true` keeps the webhook from choosing a storage class for the claim.
pub const KEEP_STORAGE_CLASS: &str = "bursar.dev/keep-storage-class";
/// Annotation of a pod: how long the pod may live, counted from its start.
pub const LIFETIME: &str = "pod.kubernetes.io/lifetime";

/// Annotation of a pod whose people were warned: when the pod will end (RFC 3339).
pub const ENDS_AT: &str = "bursar.dev/ends-at";

/// Annotation of a namespace: `true` keeps the namespace from being suspended although nothing runs in it.
pub const KEEP: &str = "bursar.dev/keep";
/// Annotation of a namespace: when it was last used (RFC 3339). A portal or a gateway of the site writes it.
pub const LAST_USE: &str = "bursar.dev/last-use";
/// Annotation of a namespace in which nothing runs: when the namespace is suspended, unless something runs in it before
/// then.
pub const IDLE_UNTIL: &str = "bursar.dev/idle-until";
/// Label that a pod and the other objects of its job share.
pub const JOB: &str = "job";

const ID: &str = "bursar.dev/id";
const DIRECTORY_ID: &str = "bursar.dev/directory-id";
const ACCOUNT: &str = "bursar.dev/account";
/// Annotations with the ids of the tenant's processes.
pub const UID: &str = "bursar.dev/uid";
/// See [`UID`].
pub const GID: &str = "bursar.dev/gid";
const GROUPS: &str = "bursar.dev/groups";
const GENERATION: &str = "bursar.dev/generation";
/// Annotation with the rules that the account is excepted from. It is absent if there are none.
const EXCEPTIONS: &str = "bursar.dev/exceptions";
/// Annotation with the state: `active` or `suspended`.
pub const STATE: &str = "bursar.dev/state";
/// Annotation of a certificate request: a namespace of the request's account. The annotation proves nothing; it tells
/// the approver where to find the seal.
pub const NAMESPACE_HINT: &str = "bursar.dev/namespace";
const SEAL: &str = "bursar.dev/seal";

/// The beginning of the signed bytes. With it, no other signature by the same key, and no seal with another layout, can
/// pass for a seal.
const DOMAIN: &str = "bursar-seal-v1";

/// The content of a sealed namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The cluster that the seal names. In another cluster, a copy of the annotations is invalid.
    pub cluster: ClusterName,
    /// The namespace that the seal names.
    pub namespace: NamespaceName,
    /// The immutable id that the ledger gave the account.
    pub id: AccountId,
    /// The immutable id that the directory gave the account.
    pub directory_id: DirectoryId,
    /// The account's name, such as `tool:foo`.
    pub account: AccountName,
    /// The class. It is a label, so that selectors can match it.
    pub class: String,
    /// The uid, gid and groups of the tenant's pods; `None` for a group without a uid.
    pub posix: Option<PosixIdentity>,
    /// The generation whose certificates are valid.
    pub generation: u64,
    /// Whether new pods may start.
    pub state: TenantState,
    /// The rules that the account is excepted from.
    pub exceptions: BTreeSet<ExceptedRule>,
}

/// The state of a tenant, as the namespace's annotation gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantState {
    /// Pods may start.
    Active,
    /// No new pods may start.
    Suspended,
}

/// Whether a namespace's manifest marks the tenant as suspended.
#[must_use]
pub fn is_sealed_as_suspended(manifest: &Value) -> bool {
    manifest["metadata"]["annotations"][STATE] == TenantState::Suspended.as_str()
}

impl TenantState {
    /// Returns the annotation's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
        }
    }
}

/// Why a namespace's metadata does not prove an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// An annotation or the class label is absent.
    #[error("annotation {0} is missing")]
    Missing(&'static str),
    #[error("annotation {key} is malformed")]
    Invalid {
        key: &'static str,
        #[source]
        source: IdentityError,
    },
    /// A value is not one of the known values.
    #[error("annotation {key} has the unknown value {value:?}")]
    Unknown { key: &'static str, value: String },
    /// The signature does not match these values under any known key.
    #[error("the seal does not match: somebody edited the namespace's bursar.dev annotations or its class")]
    Broken,
}

/// The daemon's signing key. It never leaves the process, and `Debug` does not show it.
pub struct Sealer(Ed25519KeyPair);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(..)")
    }
}

/// A text that is not an Ed25519 seed (RFC 8032).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 key of 32 bytes")]
pub struct BadKey;

impl Sealer {
    /// Reads the 32 bytes of `seal.key` (an RFC 8032 private key).
    pub fn from_seed(seed: &[u8]) -> Result<Self, BadKey> {
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(|_| BadKey)
    }

    /// Returns the 32 bytes with which the webhook verifies seals.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        key
    }
}

/// Returns the annotations, including the seal, of a namespace that belongs to `identity`. The class is not among them,
/// because it is the label [`CLASS`].
#[must_use]
pub fn annotate(identity: &Identity, sealer: &Sealer) -> BTreeMap<String, String> {
    let mut annotations = unsealed(identity);
    let seal = sealer.0.sign(&message(identity));
    annotations.insert(SEAL.to_owned(), BASE64.encode(seal.as_ref()));
    annotations
}

/// Parses the annotation [`LIFETIME`] (`90m`, `1h 30m`, `7d`). Returns `None` if it is zero or not a duration.
#[must_use]
pub fn lifetime(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|lifetime| !lifetime.is_zero())
}

/// Whether an annotation changes with every generation. Such annotations are left out of a plan's hash.
#[must_use]
pub fn follows_the_generation(annotation: &str) -> bool {
    matches!(annotation, GENERATION | SEAL)
}

/// Returns the generation in a namespace's annotations, without verifying the seal.
#[must_use]
pub fn says_generation(annotations: &BTreeMap<String, String>) -> Option<u64> {
    annotations.get(GENERATION)?.parse().ok()
}

/// Returns the identity that a namespace's metadata proves under one of `public_keys` (several during a rollover).
pub fn identity_of(
    cluster: &ClusterName,
    namespace: &NamespaceName,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    public_keys: &[[u8; 32]],
) -> Result<Identity, ContractError> {
    let identity = claimed(cluster, namespace, labels, annotations)?;
    let seal = BASE64.decode(get(annotations, SEAL)?).map_err(|_| ContractError::Broken)?;
    let message = message(&identity);
    public_keys
        .iter()
        .any(|key| UnparsedPublicKey::new(&ED25519, key).verify(&message, &seal).is_ok())
        .then_some(identity)
        .ok_or(ContractError::Broken)
}

fn claimed(
    cluster: &ClusterName,
    namespace: &NamespaceName,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Result<Identity, ContractError> {
    let posix = match annotations.get(UID) {
        None => None,
        Some(_) => Some(PosixIdentity {
            uid: parse::<Uid>(annotations, UID)?,
            gid: parse::<Gid>(annotations, GID)?,
            groups: groups_of(get(annotations, GROUPS)?)?,
        }),
    };
    let generation = get(annotations, GENERATION)?;
    let state = get(annotations, STATE)?;
    Ok(Identity {
        cluster: cluster.clone(),
        namespace: namespace.clone(),
        id: AccountId(get(annotations, ID)?.into()),
        directory_id: DirectoryId(get(annotations, DIRECTORY_ID)?.to_owned()),
        account: parse::<AccountName>(annotations, ACCOUNT)?,
        class: labels.get(CLASS).ok_or(ContractError::Missing(CLASS))?.clone(),
        posix,
        generation: generation
            .parse()
            .map_err(|_| ContractError::Unknown { key: GENERATION, value: generation.to_owned() })?,
        state: [TenantState::Active, TenantState::Suspended]
            .into_iter()
            .find(|known| known.as_str() == state)
            .ok_or_else(|| ContractError::Unknown { key: STATE, value: state.to_owned() })?,
        exceptions: match annotations.get(EXCEPTIONS) {
            None => BTreeSet::new(),
            Some(text) => {
                exception::read(text).map_err(|_| ContractError::Unknown { key: EXCEPTIONS, value: text.clone() })?
            }
        },
    })
}

fn unsealed(identity: &Identity) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([
        (ID.to_owned(), identity.id.0.to_string()),
        (DIRECTORY_ID.to_owned(), identity.directory_id.0.clone()),
        (ACCOUNT.to_owned(), identity.account.to_string()),
        (GENERATION.to_owned(), identity.generation.to_string()),
        (STATE.to_owned(), identity.state.as_str().to_owned()),
    ]);
    if let Some(posix) = &identity.posix {
        annotations.insert(UID.to_owned(), posix.uid.to_string());
        annotations.insert(GID.to_owned(), posix.gid.to_string());
        annotations.insert(GROUPS.to_owned(), groups_text(&posix.groups));
    }
    // Left out if there are none, so that seals that were made before this field existed stay valid.
    if !identity.exceptions.is_empty() {
        annotations.insert(EXCEPTIONS.to_owned(), exception::text_of(&identity.exceptions));
    }
    annotations
}

/// Returns the signed bytes. The length of each value precedes it, so that text cannot move from one value to the next.
fn message(identity: &Identity) -> Vec<u8> {
    let mut message = DOMAIN.as_bytes().to_vec();
    let mut add = |text: &str| {
        message.extend((text.len() as u64).to_be_bytes());
        message.extend(text.as_bytes());
    };
    add(&identity.cluster.0);
    add(identity.namespace.as_str());
    add(&identity.class);
    for (key, value) in unsealed(identity) {
        add(&key);
        add(&value);
    }
    message
}

fn groups_text(groups: &BTreeSet<Gid>) -> String {
    groups.iter().map(Gid::to_string).collect::<Vec<_>>().join(",")
}

fn groups_of(text: &str) -> Result<BTreeSet<Gid>, ContractError> {
    text.split(',')
        .filter(|gid| !gid.is_empty())
        .map(|gid| gid.parse().map_err(|source| ContractError::Invalid { key: GROUPS, source }))
        .collect()
}

fn get<'a>(annotations: &'a BTreeMap<String, String>, key: &'static str) -> Result<&'a str, ContractError> {
    annotations.get(key).map(String::as_str).ok_or(ContractError::Missing(key))
}

fn parse<T: std::str::FromStr<Err = IdentityError>>(
    annotations: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<T, ContractError> {
    get(annotations, key)?.parse().map_err(|source| ContractError::Invalid { key, source })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::*;

    fn sealer() -> Sealer {
        Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed")
    }

    prop_compose! {
        fn identity()(
            name in "[a-z][a-z0-9-]{0,20}[a-z0-9]",
            uid in 1000_i64..=2_147_483_646,
            groups in prop::collection::btree_set(100_i64..=2_147_483_646, 0..5),
            with_posix: bool,
            generation: u64,
            suspended: bool,
            class in "[a-z]{1,10}",
            exceptions in prop::sample::subsequence(ExceptedRule::ALL.to_vec(), 0..=4),
        ) -> Identity {
            let gid = |number| Gid::try_from(number).expect("the number is in range");
            Identity {
                cluster: ClusterName("prod".into()),
                namespace: NamespaceName::try_from(format!("tool-{name}")).expect("the name is a DNS label"),
                id: AccountId("0a1b".into()),
                directory_id: DirectoryId("c3d4".to_owned()),
                account: format!("tool:{name}").parse().expect("the name is an account's"),
                class,
                posix: with_posix.then(|| PosixIdentity {
                    uid: Uid::try_from(uid).expect("the number is in range"),
                    gid: gid(500),
                    groups: groups.into_iter().map(gid).collect(),
                }),
                generation,
                state: if suspended { TenantState::Suspended } else { TenantState::Active },
                exceptions: exceptions.into_iter().collect(),
            }
        }
    }

    fn read(identity: &Identity, annotations: &BTreeMap<String, String>) -> Result<Identity, ContractError> {
        let labels = BTreeMap::from([(CLASS.to_owned(), identity.class.clone())]);
        identity_of(&identity.cluster, &identity.namespace, &labels, annotations, &[[0; 32], sealer().public_key()])
    }

    proptest! {
        #[test]
        fn an_identity_survives_sealing_and_reading(identity in identity()) {
            prop_assert_eq!(read(&identity, &annotate(&identity, &sealer())), Ok(identity));
        }

        #[test]
        fn an_edited_annotation_proves_no_identity(identity in identity(), key in 0_usize..10, edit in "[0-9a-z]{1,6}") {
            let mut annotations = annotate(&identity, &sealer());
            let key = annotations.keys().nth(key % annotations.len()).cloned().expect("the index is below the length");
            let before = annotations.insert(key, edit.clone());
            prop_assume!(before != Some(edit));
            prop_assert!(read(&identity, &annotations).is_err());
        }
    }

    #[test]
    fn an_edited_list_of_exceptions_proves_no_identity() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let identity = identity().new_tree(&mut runner).expect("the strategy filters nothing").current();
        for exceptions in [BTreeSet::new(), BTreeSet::from([ExceptedRule::Images])] {
            let identity = Identity { exceptions, ..identity.clone() };
            let sealed = annotate(&identity, &sealer());
            for forged in [None, Some(""), Some("images"), Some("images,volumes"), Some("uid")] {
                let mut annotations = sealed.clone();
                annotations.remove(EXCEPTIONS);
                annotations.extend(forged.map(|text| (EXCEPTIONS.to_owned(), text.to_owned())));
                assert_eq!(read(&identity, &annotations).is_ok(), annotations == sealed, "{forged:?}");
            }
        }
    }

    #[test]
    fn a_lifetime_is_a_duration_above_zero() {
        assert_eq!(lifetime("1h30m"), Some(Duration::from_mins(90)));
        assert_eq!(["", "0s", "-1h", "soon", "3600", "1e99h"].map(lifetime), [None; 6]);
    }

    #[test]
    fn a_seal_is_invalid_in_another_namespace() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let identity = identity().new_tree(&mut runner).expect("the strategy filters nothing").current();
        let annotations = annotate(&identity, &sealer());
        let other = NamespaceName::try_from("tool-other".to_owned()).expect("the name is a DNS label");
        assert_eq!(read(&Identity { namespace: other, ..identity }, &annotations), Err(ContractError::Broken));
    }
}
