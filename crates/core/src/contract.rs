//! What a namespace says of its tenant: label and annotation keys, and the seal, the daemon's signature over them.
//!
//! Daemon and webhook share [`identity_of`], the one function that reads the contract. An annotation that somebody
//! edited is no identity: the signature does not hold.

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

/// The level by which Kubernetes judges the pods of a namespace.
pub const POD_SECURITY_ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The field manager of everything the daemon applies, and the value of [`MANAGED_BY`].
pub const MANAGER: &str = "bursar";
/// Label on every object of ours (Kubernetes' recommended label).
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label on every namespace of a tenant: its class.
pub const CLASS: &str = "bursar.dev/class";
/// Label that somebody else sets to allow the daemon to adopt a foreign namespace.
pub const ADOPT: &str = "bursar.dev/adopt";
/// Every key of ours begins with it: on a tenant's namespace, only we write them.
pub const PREFIX: &str = "bursar.dev/";
/// Label of a pod: which of its containers are given the tenant's volumes (`none`, `containers`, `all`).
pub const INJECT: &str = "bursar.dev/inject";
/// The namespace of the webhook's self-test. It is nobody's, and stands for its own `{name}`.
pub const SELFTEST: &str = "bursar-selftest";
/// Label of a claim whose storage class nobody chooses for it: `true`.
pub const KEEP_STORAGE_CLASS: &str = "bursar.dev/keep-storage-class";
/// Annotation of a pod: how long it may live, counted from its start.
pub const LIFETIME: &str = "pod.kubernetes.io/lifetime";

/// Annotation of a pod whose people were told: when it ends (RFC 3339).
pub const ENDS_AT: &str = "bursar.dev/ends-at";

/// Annotation of a namespace that is to be left alone although nothing runs in it: `true`.
pub const KEEP: &str = "bursar.dev/keep";
/// Annotation of a namespace: when it was last used (RFC 3339), as a portal or a gateway of the site's says.
pub const LAST_USE: &str = "bursar.dev/last-use";
/// Annotation of a namespace in which nothing runs: when it is suspended if that stays so.
pub const IDLE_UNTIL: &str = "bursar.dev/idle-until";
/// Label of a pod and of what belongs to its job.
pub const JOB: &str = "job";

const ID: &str = "bursar.dev/id";
const DIRECTORY_ID: &str = "bursar.dev/directory-id";
const ACCOUNT: &str = "bursar.dev/account";
const UID: &str = "bursar.dev/uid";
const GID: &str = "bursar.dev/gid";
const GROUPS: &str = "bursar.dev/groups";
const GENERATION: &str = "bursar.dev/generation";
/// Annotation with the rules that the account is excepted from; absent: none.
const EXCEPTIONS: &str = "bursar.dev/exceptions";
/// Annotation with the state: `active` or `suspended`.
pub const STATE: &str = "bursar.dev/state";
/// Annotation of a certificate request: a namespace of the account that it is for. It proves nothing; it says where the
/// approver finds the seal that does.
pub const NAMESPACE_HINT: &str = "bursar.dev/namespace";
const SEAL: &str = "bursar.dev/seal";

/// Separates the seal from every other use of the key, and one version of its layout from the next.
const DOMAIN: &str = "bursar-seal-v1";

/// Everything a sealed namespace says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The cluster it is sealed for: a copy of the annotations elsewhere is worth nothing.
    pub cluster: ClusterName,
    /// The namespace it is sealed for.
    pub namespace: NamespaceName,
    /// The ledger's immutable id.
    pub id: AccountId,
    /// The directory's immutable id.
    pub directory_id: DirectoryId,
    /// `tool:foo`.
    pub account: AccountName,
    /// The class, which is a label so that selectors see it.
    pub class: String,
    /// What its pods run as; absent for a group without a uid.
    pub posix: Option<PosixIdentity>,
    /// The generation whose certificates are good.
    pub generation: u64,
    /// Whether new pods may start.
    pub state: TenantState,
    /// The rules that it is excepted from.
    pub exceptions: BTreeSet<ExceptedRule>,
}

/// The state of a tenant as its namespace shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantState {
    /// Works.
    Active,
    /// No new pods.
    Suspended,
}

/// Whether a namespace's manifest says that its tenant is suspended.
#[must_use]
pub fn is_sealed_as_suspended(manifest: &Value) -> bool {
    manifest["metadata"]["annotations"][STATE] == TenantState::Suspended.as_str()
}

impl TenantState {
    /// The annotation's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
        }
    }
}

/// Why a namespace's metadata is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// A key is not there.
    #[error("annotation {0} is missing")]
    Missing(&'static str),
    /// A value does not parse.
    #[error("annotation {key}")]
    Invalid {
        /// Which.
        key: &'static str,
        /// Why.
        #[source]
        source: IdentityError,
    },
    /// A value is none of those it may be.
    #[error("annotation {key} has the unknown value {value:?}")]
    Unknown {
        /// Which.
        key: &'static str,
        /// What stands there.
        value: String,
    },
    /// No known key made this signature over these values.
    #[error("the seal does not hold: somebody edited the namespace's bursar.dev annotations or its class")]
    Broken,
}

/// The daemon's signing key. It never leaves the process and prints nothing.
pub struct Sealer(Ed25519KeyPair);

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(..)")
    }
}

/// A key of 32 bytes that is no Ed25519 seed (RFC 8032).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 key of 32 bytes")]
pub struct BadKey;

impl Sealer {
    /// From the 32 bytes of `seal.key` (an RFC 8032 private key).
    pub fn from_seed(seed: &[u8]) -> Result<Self, BadKey> {
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(|_| BadKey)
    }

    /// What the webhook needs to check seals: 32 bytes.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key.copy_from_slice(self.0.public_key().as_ref());
        key
    }
}

/// The annotations of a namespace that belongs to `identity`, seal included. Its class goes to the label [`CLASS`].
#[must_use]
pub fn annotate(identity: &Identity, sealer: &Sealer) -> BTreeMap<String, String> {
    let mut annotations = unsealed(identity);
    let seal = sealer.0.sign(&message(identity));
    annotations.insert(SEAL.to_owned(), BASE64.encode(seal.as_ref()));
    annotations
}

/// How long a pod with this [`LIFETIME`] lives (`90m`, `1h 30m`, `7d`); `None` if it says no time, or none at all.
#[must_use]
pub fn lifetime(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok().filter(|lifetime| !lifetime.is_zero())
}

/// Whether an annotation changes with every generation: the hash of a plan must not.
#[must_use]
pub fn follows_the_generation(annotation: &str) -> bool {
    matches!(annotation, GENERATION | SEAL)
}

/// The generation that a namespace's metadata names, unproved.
#[must_use]
pub fn says_generation(annotations: &BTreeMap<String, String>) -> Option<u64> {
    annotations.get(GENERATION)?.parse().ok()
}

/// The identity that a namespace's metadata proves under one of `public_keys` (several during a rollover).
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
    // Most have none, and a seal that is older than exceptions stays good.
    if !identity.exceptions.is_empty() {
        annotations.insert(EXCEPTIONS.to_owned(), exception::text_of(&identity.exceptions));
    }
    annotations
}

/// What is signed: every value with its length before it, so that no value can borrow from its neighbour.
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
            let gid = |number| Gid::try_from(number).expect("in range");
            Identity {
                cluster: ClusterName("prod".to_owned()),
                namespace: NamespaceName::try_from(format!("tool-{name}")).expect("a label"),
                id: AccountId("0a1b".into()),
                directory_id: DirectoryId("c3d4".to_owned()),
                account: format!("tool:{name}").parse().expect("an account"),
                class,
                posix: with_posix.then(|| PosixIdentity {
                    uid: Uid::try_from(uid).expect("in range"),
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
        fn identity_survives_the_contract(identity in identity()) {
            prop_assert_eq!(read(&identity, &annotate(&identity, &sealer())), Ok(identity));
        }

        #[test]
        fn no_edited_annotation_is_an_identity(identity in identity(), key in 0_usize..10, edit in "[0-9a-z]{1,6}") {
            let mut annotations = annotate(&identity, &sealer());
            let key = annotations.keys().nth(key % annotations.len()).cloned().expect("below the length");
            let before = annotations.insert(key, edit.clone());
            prop_assume!(before != Some(edit));
            prop_assert!(read(&identity, &annotations).is_err());
        }
    }

    #[test]
    fn no_exception_is_added_or_taken_away_without_the_seal() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let identity = identity().new_tree(&mut runner).expect("a value").current();
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
    fn a_lifetime_is_a_time() {
        assert_eq!(lifetime("1h30m"), Some(Duration::from_mins(90)));
        assert_eq!(["", "0s", "-1h", "soon", "3600", "1e99h"].map(lifetime), [None; 6]);
    }

    #[test]
    fn a_seal_is_worth_nothing_in_another_namespace() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let identity = identity().new_tree(&mut runner).expect("a value").current();
        let annotations = annotate(&identity, &sealer());
        let other = NamespaceName::try_from("tool-other".to_owned()).expect("a label");
        assert_eq!(read(&Identity { namespace: other, ..identity }, &annotations), Err(ContractError::Broken));
    }
}
