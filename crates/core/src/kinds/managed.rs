//! The table of the kinds that Bursar creates: one row per kind. Code outside this module that treats kinds
//! differently reads a column or matches exhaustively on [`ManagedKind`].

/// Declares the enum and the list of its variants together, so that no kind is missing from the list.
macro_rules! managed_kinds {
    ($($(#[$attribute:meta])* $kind:ident),* $(,)?) => {
        /// A kind of object that Bursar creates for tenants.
        ///
        /// The order of the variants is the order in which roles and the daemon's admission policy list them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ManagedKind {
            $($(#[$attribute])* $kind),*
        }

        impl ManagedKind {
            /// Every kind, in the order of the variants.
            pub const ALL: &[Self] = &[$($(#[$attribute])* Self::$kind),*];
        }
    };
}

managed_kinds! {
    Namespace,
    RoleBinding,
    ResourceQuota,
    LimitRange,
    PersistentVolume,
    PersistentVolumeClaim,
    NetworkPolicy,
    ClusterRoleBinding,
    ServiceAccount,
    Secret,
    // This kind has no row, so `make new-kind` fails and lists the places where the compiler asks for one.
    #[cfg(bursar_new_kind)]
    NewKind,
}

/// The properties that all objects of a kind share.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column of its own")]
pub struct Row {
    /// `v1`, `rbac.authorization.k8s.io/v1`.
    pub api_version: &'static str,
    /// `RoleBinding`.
    pub kind: &'static str,
    /// `rolebindings`.
    pub plural: &'static str,
    pub namespaced: bool,
    /// When objects are applied and deleted.
    pub stage: Stage,
    /// The key of a class's `drift` that applies to edits by others.
    pub drift: DriftKey,
    /// The word for one object in plans, such as `quota`.
    pub noun: &'static str,
    /// The word for several objects in plans.
    pub nouns: &'static str,
    /// The sort order of the kind in a plan's lists. Kinds with the same number keep the order of the actions.
    pub place_in_text: u8,
    pub watch: Watch,
    /// The verbs that the daemon's role grants.
    pub verbs: &'static [&'static str],
    /// Whether the daemon creates objects of this kind in namespaces that a class adopts.
    pub in_adopted: bool,
    pub data: Data,
    pub detail: Detail,
    /// Whether the role `bursar-tenant` has all verbs that the role `edit` of the same API server has. If not, tenants
    /// may only read.
    pub tenants_may_write: bool,
    /// Whether a class may have manifests of this kind.
    pub site_may_bring: bool,
}

/// When objects of a kind are applied. Deletion uses the reverse order. A namespace comes before its content, and
/// access comes last, so that nobody can work in a namespace whose quota and policies are still missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Namespace,
    Limits,
    Volume,
    Content,
    /// Bindings. A suspension removes them, and the hash by which an administrator approves a removal covers them.
    Access,
}

impl Stage {
    /// Whether objects of the stage are the namespace, limit tenants or grant access.
    #[must_use]
    pub const fn is_essential(self) -> bool {
        match self {
            Self::Namespace | Self::Limits | Self::Access => true,
            Self::Volume | Self::Content => false,
        }
    }
}

/// A key of `[class.NAME.drift]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DriftKey {
    Namespace,
    Quota,
    Limits,
    Network,
    Roles,
    Volumes,
    Manifests,
}

/// How the daemon watches the objects of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// All objects with Bursar's label, in every cluster.
    ByLabel,
    /// Each object by its name, so that the daemon needs no right to read other objects of the kind (RBAC
    /// `resourceNames`).
    ByName,
    /// All objects with Bursar's label, only in clusters where the configuration or the ledger has some.
    IfUsed,
}

/// The data that a deletion can destroy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    None,
    Volume,
    Claim,
}

/// The part of an applied object that the ledger stores in addition to its digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    None,
    /// `spec.hard`.
    QuotaHard,
    /// The fields of a volume that Kubernetes makes immutable.
    VolumeFixed,
    /// The subjects of a binding.
    Subjects,
    /// The class in the label of a namespace.
    Class,
}

/// The verbs for kinds that the daemon watches, applies (creates and patches) and deletes.
pub const MANAGED_VERBS: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

impl ManagedKind {
    /// Returns the kind with this API version and name.
    #[must_use]
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.row().kind == kind && known.row().api_version == api_version)
    }

    /// Returns the kind with this name in any API.
    pub(super) fn named(kind: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.row().kind == kind)
    }

    /// Returns the API group; empty for the core group.
    #[must_use]
    pub fn group(self) -> &'static str {
        super::group(self.row().api_version)
    }

    #[must_use]
    pub const fn row(self) -> &'static Row {
        match self {
            Self::Namespace => &NAMESPACE,
            Self::RoleBinding => &ROLE_BINDING,
            Self::ResourceQuota => &RESOURCE_QUOTA,
            Self::LimitRange => &LIMIT_RANGE,
            Self::PersistentVolume => &PERSISTENT_VOLUME,
            Self::PersistentVolumeClaim => &PERSISTENT_VOLUME_CLAIM,
            Self::NetworkPolicy => &NETWORK_POLICY,
            Self::ClusterRoleBinding => &CLUSTER_ROLE_BINDING,
            Self::ServiceAccount => &SERVICE_ACCOUNT,
            Self::Secret => &SECRET,
        }
    }
}

const NAMESPACE: Row = Row {
    api_version: "v1",
    kind: "Namespace",
    plural: "namespaces",
    namespaced: false,
    stage: Stage::Namespace,
    drift: DriftKey::Namespace,
    noun: "namespace",
    nouns: "namespaces",
    place_in_text: 0,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: false,
    data: Data::None,
    detail: Detail::Class,
    tenants_may_write: true,
    site_may_bring: false,
};

const ROLE_BINDING: Row = Row {
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "RoleBinding",
    plural: "rolebindings",
    namespaced: true,
    stage: Stage::Access,
    drift: DriftKey::Roles,
    noun: "role binding",
    nouns: "role bindings",
    place_in_text: 7,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: true,
    data: Data::None,
    detail: Detail::Subjects,
    tenants_may_write: true,
    site_may_bring: true,
};

const RESOURCE_QUOTA: Row = Row {
    api_version: "v1",
    kind: "ResourceQuota",
    plural: "resourcequotas",
    namespaced: true,
    stage: Stage::Limits,
    drift: DriftKey::Quota,
    noun: "quota",
    nouns: "quota",
    place_in_text: 1,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: true,
    data: Data::None,
    detail: Detail::QuotaHard,
    tenants_may_write: false,
    site_may_bring: true,
};

const LIMIT_RANGE: Row = Row {
    api_version: "v1",
    kind: "LimitRange",
    plural: "limitranges",
    namespaced: true,
    stage: Stage::Limits,
    drift: DriftKey::Limits,
    noun: "limits",
    nouns: "limits",
    place_in_text: 2,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: true,
    data: Data::None,
    detail: Detail::None,
    tenants_may_write: false,
    site_may_bring: true,
};

const PERSISTENT_VOLUME: Row = Row {
    api_version: "v1",
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    namespaced: false,
    stage: Stage::Volume,
    drift: DriftKey::Volumes,
    noun: "volume",
    nouns: "volumes",
    place_in_text: 4,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: false,
    data: Data::Volume,
    detail: Detail::VolumeFixed,
    tenants_may_write: true,
    site_may_bring: false,
};

const PERSISTENT_VOLUME_CLAIM: Row = Row {
    api_version: "v1",
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    namespaced: true,
    stage: Stage::Content,
    drift: DriftKey::Volumes,
    noun: "claim",
    nouns: "claims",
    place_in_text: 5,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: false,
    data: Data::Claim,
    detail: Detail::VolumeFixed,
    tenants_may_write: true,
    site_may_bring: true,
};

const NETWORK_POLICY: Row = Row {
    api_version: "networking.k8s.io/v1",
    kind: "NetworkPolicy",
    plural: "networkpolicies",
    namespaced: true,
    stage: Stage::Limits,
    drift: DriftKey::Network,
    noun: "network policy",
    nouns: "network policies",
    place_in_text: 3,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: true,
    data: Data::None,
    detail: Detail::None,
    tenants_may_write: false,
    site_may_bring: true,
};

const CLUSTER_ROLE_BINDING: Row = Row {
    api_version: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    namespaced: false,
    stage: Stage::Access,
    drift: DriftKey::Roles,
    noun: "cluster role binding",
    nouns: "cluster role bindings",
    place_in_text: 7,
    watch: Watch::ByLabel,
    verbs: MANAGED_VERBS,
    in_adopted: false,
    data: Data::None,
    detail: Detail::Subjects,
    tenants_may_write: true,
    site_may_bring: false,
};

const SERVICE_ACCOUNT: Row = Row {
    api_version: "v1",
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    namespaced: true,
    stage: Stage::Content,
    drift: DriftKey::Manifests,
    noun: "service account",
    nouns: "service accounts",
    place_in_text: OTHERS_IN_TEXT,
    watch: Watch::IfUsed,
    verbs: MANAGED_VERBS,
    in_adopted: false,
    data: Data::None,
    detail: Detail::None,
    tenants_may_write: true,
    site_may_bring: true,
};

const SECRET: Row = Row {
    api_version: "v1",
    kind: "Secret",
    plural: "secrets",
    namespaced: true,
    stage: Stage::Content,
    drift: DriftKey::Manifests,
    noun: "secret",
    nouns: "secrets",
    place_in_text: OTHERS_IN_TEXT,
    watch: Watch::ByName,
    verbs: MANAGED_VERBS,
    in_adopted: false,
    data: Data::None,
    detail: Detail::None,
    tenants_may_write: true,
    site_may_bring: true,
};

/// [`Row::place_in_text`] of service accounts, Secrets and kinds without a row.
pub(super) const OTHERS_IN_TEXT: u8 = 6;

impl DriftKey {
    /// Every key.
    pub const ALL: [Self; 7] =
        [Self::Namespace, Self::Quota, Self::Limits, Self::Network, Self::Roles, Self::Volumes, Self::Manifests];

    /// Returns the name of the key in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Quota => "quota",
            Self::Limits => "limits",
            Self::Network => "network",
            Self::Roles => "roles",
            Self::Volumes => "volumes",
            Self::Manifests => "manifests",
        }
    }

    /// Returns the key with this name in the configuration.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_kinds_share_api_and_name() {
        for kind in ManagedKind::ALL {
            assert_eq!(ManagedKind::of(kind.row().api_version, kind.row().kind), Some(*kind));
        }
    }

    #[test]
    fn manifests_of_a_class_have_only_namespaced_kinds() {
        let wide = ManagedKind::ALL.iter().filter(|kind| kind.row().site_may_bring && !kind.row().namespaced);
        assert_eq!(wide.count(), 0);
    }
}
