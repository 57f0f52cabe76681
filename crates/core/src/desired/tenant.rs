//! Builds the desired state of one account in one cluster.

use std::collections::{BTreeMap, BTreeSet};

use bursar_protocol::SuspensionNotice;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::adopted::{self, Adopted};
use super::class;
use super::workspace::{self, Holder};
use super::{
    DesiredNotice, DesiredObject, DesiredTenant, EndOfTenant, Place, credential, manifest, namespace, network, quota,
    rbac, volume,
};
use crate::contract::Sealer;
use crate::contract::exception::ExceptedRule;
use crate::digest::digest;
use crate::identity::{ClusterName, NamespaceName};
use crate::json_text::JsonText;
use crate::kinds::{ObjectKey, ObjectKind, Stage};
use crate::ledger::Account;
use crate::packed_text::DigestText;
use crate::policy::{Class, CredentialRule, DriftMode, PodSecurity, Policy};

/// The input of [`tenant`].
#[derive(Debug, Clone, Copy)]
pub(super) struct TenantInput<'a> {
    pub(super) cluster: &'a ClusterName,
    pub(super) account: &'a Account,
    /// Every class that takes the account in this cluster. If empty, the account is a former tenant whose class is
    /// gone.
    pub(super) classes: &'a [&'a Class],
    /// The class that the ledger has for the tenant. It is used for a tenant without classes.
    pub(super) remembered: &'a str,
    pub(super) namespace: Option<&'a NamespaceName>,
    pub(super) generation: u64,
    pub(super) suspended: bool,
    /// The notice that the account's kubeconfigs hold instead of a credential while the account is suspended.
    pub(super) notice: Option<&'a SuspensionNotice>,
    pub(super) idle_until: Option<Timestamp>,
    pub(super) end: Option<EndOfTenant>,
    pub(super) overrides: &'a quota::Overrides<'a>,
    /// The rules that the account is excepted from in this cluster. [`tenant`] drops exceptions that the class does not
    /// allow.
    pub(super) exceptions: &'a BTreeSet<ExceptedRule>,
    /// The amounts of the class's quota that the account's workspaces change.
    pub(super) granted: &'a BTreeMap<String, String>,
    /// The people of a workspace; empty for other accounts.
    pub(super) holders: &'a [Holder],
    /// The adopted namespaces that the account owns.
    pub(super) adopted: &'a [Adopted<'a>],
}

/// Builds the tenant. If several classes make an object with the same key, the object of the first class is kept.
pub(super) fn tenant(order: TenantInput<'_>, policy: &Policy, sealer: &Sealer) -> DesiredTenant {
    let TenantInput {
        cluster,
        account,
        classes,
        remembered,
        namespace,
        generation,
        suspended,
        notice,
        idle_until,
        end,
        overrides,
        exceptions,
        granted,
        holders,
        adopted,
    } = order;
    let main = class::main(classes);
    let class = main.map_or(remembered, |class| class.name.as_str());
    // The tenant has one credential: the credential of its main class. The bindings of all classes name the holder of
    // this credential.
    let rule = main.and_then(|class| class.credential.as_ref());
    let mut objects: BTreeMap<ObjectKey, DesiredObject> = BTreeMap::new();
    let mut directories = BTreeMap::new();
    let mut add = |manifest: Value, class: Option<&Class>| {
        let drift = class.map_or(DriftMode::Revert, |class| drift(class, &ObjectKind::of_manifest(&manifest)));
        let (key, mut object) = DesiredObject::new(cluster, manifest, drift);
        if drift == DriftMode::Adopt {
            object.locked = class.map(|class| class.quota_locked.clone()).unwrap_or_default();
        }
        if !(suspended && key.kind.stage() == Stage::Access) {
            objects.entry(key).or_insert(object);
        }
    };
    if let Some(namespace) = namespace.filter(|_| end != Some(EndOfTenant::Delete)) {
        let place = Place { cluster, namespace, account, class, generation, suspended, idle_until };
        let level = main.map_or(PodSecurity::Restricted, |main| main.pod_security);
        let excepts = |rule: &ExceptedRule| main.is_some_and(|class| class.excepts(*rule).is_ok());
        let exceptions = exceptions.iter().copied().filter(excepts).collect();
        add(namespace::namespace(&place, level, exceptions, sealer), main);
        if suspended {
            add(quota::no_pods(place.namespace), None);
        }
        if let Some(class) = quota::class_of(classes)
            && let Some(quota) = quota::resource_quota(place.namespace, class, granted, overrides)
        {
            add(quota, Some(class));
        }
        for class in classes.iter().filter(|class| class.namespace.is_some()) {
            for manifest in in_namespace(&place, class, rule, policy) {
                add(manifest, Some(class));
            }
            let bindings = |roles| workspace::role_bindings(&place, roles, holders);
            class.workspace().into_iter().flat_map(bindings).for_each(|manifest| add(manifest, Some(class)));
            let owner = account.posix.clone().or_else(|| workspace::owner(account, holders));
            directories.extend(volume::directories(&place, class, owner.as_ref()));
        }
        for manifest in rule.iter().filter(|_| !suspended).flat_map(|rule| credential::objects(&place, rule)) {
            add(manifest, None);
        }
    }
    let here = adopted.iter().filter(|(there, ..)| *there == cluster && end != Some(EndOfTenant::Delete));
    let levels = levels(here.clone());
    let everywhere = credential::holder(account, generation, None, rule);
    for (_, namespace, class) in here {
        let place = Place { cluster, namespace, account, class: &class.name, generation, suspended, idle_until: None };
        let owner = Some(&everywhere).filter(|_| adopted::works_elsewhere(rule));
        for manifest in adopted::objects(&place, class, owner, policy) {
            add(manifest, Some(class));
        }
    }
    for class in classes {
        for manifest in rbac::cluster_role_bindings(account, class, &everywhere) {
            add(manifest, Some(class));
        }
    }
    let credentials = main
        .filter(|class| class.home.is_some() && (!suspended || notice.is_some()))
        .and(rule.zip(policy.clusters.get(cluster)))
        .map(|(rule, cluster)| credential::credentials(account, rule, cluster, namespace, generation))
        .unwrap_or_default();
    DesiredTenant {
        class: class.to_owned(),
        namespace: namespace.cloned(),
        suspended,
        given_up: false,
        end,
        own: own(&order).into(),
        objects,
        levels,
        directories,
        keep_unknown: main.is_none(),
        holder: JsonText::from(&credential::holder(account, generation, namespace, rule)),
        notices: notice
            .map(|notice| credentials.iter().map(|it| DesiredNotice { notice: notice.clone(), credential: it.clone() }))
            .into_iter()
            .flatten()
            .collect(),
        credentials: if suspended { Vec::new() } else { credentials },
        home: main.and_then(|class| credential::home(account, class.home.as_ref()?, rule)),
    }
}

/// Returns the Pod Security level that each adopted namespace gets if it has none, with the class that asks for it.
fn levels<'a>(adopted: impl Iterator<Item = &'a Adopted<'a>>) -> BTreeMap<NamespaceName, (String, PodSecurity)> {
    let level = |class: &Class| class.adopts().and_then(|adopts| adopts.pod_security);
    adopted
        .filter_map(|(_, namespace, class)| Some(((*namespace).clone(), (class.name.clone(), level(class)?))))
        .collect()
}

/// Returns the state of a place that no class gives any more, while the removal there is refused or held. Nothing
/// determines which objects should be there.
pub(super) fn given_up(order: &TenantInput<'_>) -> DesiredTenant {
    let TenantInput { account, classes, remembered, namespace, generation, .. } = order;
    let rule = classes.iter().find_map(|class| class.credential.as_ref());
    DesiredTenant {
        class: (*remembered).to_owned(),
        namespace: namespace.cloned(),
        suspended: false,
        given_up: true,
        end: None,
        own: DigestText::default(),
        objects: BTreeMap::new(),
        directories: BTreeMap::new(),
        levels: BTreeMap::new(),
        keep_unknown: true,
        credentials: Vec::new(),
        notices: Vec::new(),
        holder: JsonText::from(&credential::holder(account, *generation, *namespace, rule)),
        home: None,
    }
}

/// Returns the digest of everything in the tenant's objects and homes that comes from the account and not from the
/// policy.
fn own(order: &TenantInput<'_>) -> String {
    let TenantInput {
        cluster,
        account,
        classes: _,
        remembered: _,
        namespace,
        generation,
        suspended,
        notice: _,
        idle_until,
        end: _,
        overrides,
        exceptions,
        granted,
        holders,
        adopted,
    } = order;
    let overrides: BTreeMap<&str, &str> =
        overrides.iter().map(|(resource, given)| (*resource, given.amount.as_str())).collect();
    let mut own = json!([
        account.account_name(),
        account.directory_id,
        account.posix,
        account.home,
        namespace,
        generation,
        suspended,
        overrides,
        granted,
        idle_until,
        holders,
    ]);
    // Added only if there are keys, so that the digest of an account without keys does not depend on this field.
    if let (Some(own), false) = (own.as_array_mut(), account.ssh_keys.is_empty()) {
        own.push(json!(account.ssh_keys));
    }
    if let (Some(own), false) = (own.as_array_mut(), exceptions.is_empty()) {
        own.push(json!({"exceptions": exceptions}));
    }
    // Added only for adopted namespaces, so that the digest of an account without any does not depend on them.
    for (_, namespace, class) in adopted.iter().filter(|(there, ..)| there == cluster) {
        own.as_array_mut().into_iter().for_each(|own| own.push(json!([namespace, class.name])));
    }
    digest(&own)
}

fn in_namespace(place: &Place<'_>, class: &Class, rule: Option<&CredentialRule>, policy: &Policy) -> Vec<Value> {
    let mut manifests: Vec<Value> = Vec::new();
    manifests.extend(quota::limit_range(place.namespace, class));
    if let Some(profile) = policy.networks.get(&class.network) {
        manifests.extend(network::network_policies(place.namespace, profile));
    }
    manifests.extend(volume::volumes(place, class));
    let holders = credential::holder(place.account, place.generation, Some(place.namespace), rule);
    manifests.extend(rbac::role_bindings(place, class, Some(&holders)));
    manifests.extend(class.manifests.iter().filter_map(|template| manifest::render(template, place)));
    manifests
}

fn drift(class: &Class, kind: &ObjectKind) -> DriftMode {
    class.drift.get(&kind.drift()).copied().unwrap_or(DriftMode::Revert)
}
