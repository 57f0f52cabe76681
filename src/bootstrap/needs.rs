//! Derives what a configuration needs in one cluster: roles, namespaces, kinds and credentials.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::webhook::server_rules::Given;
use crate::desired::credential;
pub use crate::desired::rbac::ARCHIVE_ROLE;
use crate::desired::rbac::impersonation_role;
use crate::desired::watched::site_kinds;
use crate::identity::{ClusterName, HostName, NamespaceName, name_in};
use crate::kinds::{ManagedKind, ObjectKind, WatchedKind};
use crate::ledger::LedgerState;
use crate::policy::{Class, CredentialKind, PodSecurity, Policy, Selector};

/// The role that `init` derives from this server's `edit`.
pub const TENANT_ROLE: &str = "bursar-tenant";
/// The user that administrators impersonate. `init` binds it to `cluster-admin`.
pub const CLUSTER_ADMIN_USER: &str = "bursar:cluster-admin";

/// What a class may do in the namespaces that it adopts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopting {
    /// Selects the namespaces.
    pub selector: Selector,
    /// ClusterRoles that are bound to the owners of the namespaces.
    pub roles: BTreeSet<String>,
    /// ClusterRoles that are bound to the `default` service accounts of the namespaces.
    pub service_account_roles: BTreeSet<String>,
    /// The level of Pod Security for namespaces without one.
    pub pod_security: Option<PodSecurity>,
    /// Resources that the class makes there besides role bindings: `resourcequotas`, `limitranges`, `networkpolicies`.
    pub resources: BTreeSet<String>,
}

/// What an administrator chose at `init` or `approver install`. The configuration cannot set it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Names of the accounts that may have admin and impersonation roles; empty to allow every account.
    pub administrators: BTreeSet<String>,
    /// Whether an approver approves the daemon's certificate requests. If so, the daemon may not approve them.
    pub approver: bool,
}

/// What the classes of one cluster need.
#[expect(clippy::struct_excessive_bools, reason = "each is an independent need")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// ClusterRoles that are bound to tenants in their namespaces.
    pub roles: BTreeSet<String>,
    /// ClusterRoles that are bound to the `default` service accounts of namespaces.
    pub service_account_roles: BTreeSet<String>,
    /// What is bound in adopted namespaces, by class.
    pub adopted: BTreeMap<String, Adopting>,
    /// ClusterRoles that are bound cluster-wide to administrators.
    pub admin_roles: BTreeSet<String>,
    /// Classes with [`Self::admin_roles`] that bind generation groups, because their accounts have certificates.
    pub admin_groups: BTreeSet<String>,
    /// Templates (with `{name}`) of the user names that an issuer gives to accounts of a class with
    /// [`Self::admin_roles`].
    pub admin_users: BTreeSet<String>,
    /// Pod Security levels of the classes with namespaces, and always `restricted`, which namespaces without a class
    /// have.
    pub levels: BTreeSet<&'static str>,
    /// The longest lifetime of a client certificate that a class requests.
    pub lifetime: Duration,
    /// The users that each class may impersonate, by class.
    pub impersonated: BTreeMap<String, Vec<String>>,
    /// The kinds that site manifests create or created, except Secrets.
    pub manifest_kinds: BTreeSet<ObjectKind>,
    /// Names of Secrets for site manifests, personal volumes and tokens of hosts.
    pub secrets: BTreeSet<String>,
    /// External hosts that have tokens of service accounts.
    pub hosts: BTreeSet<HostName>,
    /// Templates (with `{name}`) of the user names that an issuer gives to people.
    pub users: BTreeSet<String>,
    /// Whether claims outlive their account, in a separate namespace.
    pub personal_storage: bool,
    /// Names of tenants' namespaces, as templates with `{name}` where possible. Only claims in these get a volume.
    pub namespaces: BTreeSet<String>,
    /// Whether pods end automatically, with the other objects of their job.
    pub reaps_pods: bool,
    /// Whether people are warned before their pods end.
    pub warns_of_pods: bool,
    /// Whether unused namespaces are suspended, after a warning.
    pub reaps_namespaces: bool,
    /// The input of the rules' policies.
    pub rules: Given,
}

impl Needs {
    /// Returns the needs of `policy` in `cluster`. `ledger` knows the kinds that site manifests created there before.
    #[must_use]
    pub fn of(policy: &Policy, cluster: &ClusterName, ledger: &LedgerState) -> Self {
        let mut needs = Self {
            reaps_pods: policy.reapers.pods.is_some(),
            warns_of_pods: policy.reapers.warn_of_pods(),
            reaps_namespaces: policy.reapers.namespaces.is_some(),
            levels: BTreeSet::from([PodSecurity::Restricted.as_str()]),
            rules: Given::of(policy, cluster, ledger),
            ..Self::default()
        };
        for WatchedKind { kind, only } in site_kinds(policy, ledger, cluster) {
            match only {
                Some(name) => drop(needs.secrets.insert(name)),
                None => drop(needs.manifest_kinds.insert(kind)),
            }
        }
        for class in policy.classes.values().filter(|class| class.clusters.contains(cluster)) {
            needs.add(class);
        }
        needs.add_namespaces(cluster, ledger);
        needs
    }

    /// Adds the namespaces of existing tenants that no class would name today: their names are frozen, or an
    /// administrator adopted them.
    fn add_namespaces(&mut self, cluster: &ClusterName, ledger: &LedgerState) {
        let mut former: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
        for ((id, at), tenant) in &ledger.tenants {
            let Some(namespace) = tenant.namespace.as_ref().filter(|_| at == cluster).map(NamespaceName::as_str) else {
                continue;
            };
            let known = |pattern: &String| pattern == namespace || name_in(pattern, namespace).is_some();
            if self.namespaces.iter().any(known) {
                continue;
            }
            let name = ledger.accounts.get(id).map(|account| account.kubernetes_name.as_str());
            let before = name.and_then(|name| namespace.strip_suffix(name)).filter(|before| !before.is_empty());
            former.entry(before).or_default().push(namespace);
        }
        for (before, namespaces) in former {
            match before {
                // Names of the same former pattern become one entry, because the API server limits the length of the
                // policy's expressions. A single name is kept as it is: the namespace may be an adopted one, and a
                // pattern from its name would permit namespaces of others.
                Some(before) if namespaces.len() > 1 => drop(self.namespaces.insert(format!("{before}{{name}}"))),
                _ => self.namespaces.extend(namespaces.into_iter().map(str::to_owned)),
            }
        }
    }

    fn add(&mut self, class: &Class) {
        if let Some(adopts) = class.adopts() {
            let adopting = Adopting {
                selector: adopts.selector.clone(),
                pod_security: adopts.pod_security,
                roles: class.roles.iter().cloned().collect(),
                service_account_roles: class.service_account_roles.iter().cloned().collect(),
                resources: ManagedKind::ALL
                    .iter()
                    .filter(|kind| kind.row().in_adopted && limits(class, **kind))
                    .map(|kind| kind.row().plural.to_owned())
                    .collect(),
            };
            self.adopted.insert(class.name.clone(), adopting);
        } else if let Some(namespace) = &class.namespace {
            self.namespaces.insert(namespace.clone());
            self.levels.insert(class.pod_security.as_str());
            let workspace = class.workspace().into_iter().flat_map(|roles| roles.members.iter().chain(&roles.managers));
            self.roles.extend(class.roles.iter().chain(workspace).cloned());
            self.service_account_roles.extend(class.service_account_roles.iter().cloned());
        } else {
            self.admin_roles.extend(class.roles.iter().cloned());
        }
        if !class.impersonate.is_empty() {
            self.impersonated.insert(class.name.clone(), class.impersonate.clone());
            self.admin_roles.insert(impersonation_role(&class.name));
        }
        match class.credential.as_ref().map(|rule| &rule.kind) {
            Some(CredentialKind::ServiceAccount { hosts, .. }) => {
                self.hosts.extend(hosts.iter().cloned());
                self.secrets.extend(hosts.iter().map(credential::secret));
            }
            Some(CredentialKind::Oidc(oidc)) => drop(self.users.insert(oidc.user.clone())),
            Some(CredentialKind::Certificate { lifetime }) => self.lifetime = self.lifetime.max(*lifetime),
            None => {}
        }
        if class.has_cluster_roles() {
            match class.credential.as_ref().map(|rule| &rule.kind) {
                Some(CredentialKind::Oidc(oidc)) => drop(self.admin_users.insert(oidc.user.clone())),
                _ => drop(self.admin_groups.insert(class.name.clone())),
            }
        }
        let personal = class.volumes.iter().any(|volume| volume.kind.is_personal());
        self.personal_storage |= personal;
    }

    /// Roles that `init` creates itself. All others must exist.
    #[must_use]
    pub fn made(&self) -> BTreeSet<String> {
        let impersonation = self.impersonated.keys().map(|class| impersonation_role(class));
        impersonation.chain([TENANT_ROLE.to_owned(), ARCHIVE_ROLE.to_owned()]).collect()
    }

    /// All roles that the daemon may bind.
    #[must_use]
    pub fn bindable(&self) -> BTreeSet<String> {
        let adopted = self.adopted.values().flat_map(|class| class.roles.iter().chain(&class.service_account_roles));
        let named = self.roles.iter().chain(&self.service_account_roles).chain(&self.admin_roles);
        named.chain(adopted).cloned().chain([ARCHIVE_ROLE.to_owned()]).collect()
    }
}

/// Whether the class limits a namespace with an object of this kind. Role bindings grant rights and limit nothing.
fn limits(class: &Class, kind: ManagedKind) -> bool {
    match kind {
        ManagedKind::ResourceQuota => !class.quota.is_empty(),
        ManagedKind::LimitRange => class.limit_range.is_some(),
        ManagedKind::NetworkPolicy => class.network != "open",
        ManagedKind::Namespace
        | ManagedKind::RoleBinding
        | ManagedKind::PersistentVolume
        | ManagedKind::PersistentVolumeClaim
        | ManagedKind::ClusterRoleBinding
        | ManagedKind::ServiceAccount
        | ManagedKind::Secret => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;
    use crate::ledger::Tenant;
    use crate::plan::testing::{World, prod};

    #[test]
    fn namespaces_of_classes_and_of_the_ledger_may_get_volumes() {
        let mut world = World::new();
        let tools = ["foo", "bar", "web", "app"].map(|name| world.add(AccountKind::Tool, name, None));
        let tenant = |namespace: &str| Tenant {
            class: "tool".to_owned(),
            namespace: Some(NamespaceName::try_from(namespace.to_owned()).expect("the name is valid")),
            created_at: world.now,
        };
        // Two names of a former pattern, two adopted ones, and one in another cluster.
        let elsewhere = ClusterName("other".into());
        let [foo, bar, web, app] = tools;
        for (id, cluster, tenant) in [
            (&foo, prod(), tenant("old-foo")),
            (&bar, prod(), tenant("old-bar")),
            (&web, prod(), tenant("legacy")),
            (&app, prod(), tenant("team-app")),
            (&foo, elsewhere, tenant("gone")),
        ] {
            world.ledger.tenants.insert((id.clone(), cluster), tenant);
        }
        let namespaces = Needs::of(&world.policy, &prod(), &world.ledger).namespaces;
        let wanted = ["legacy", "old-{name}", "team-app", "tool-{name}", "user-{name}"];
        assert_eq!(namespaces.into_iter().collect::<Vec<_>>(), wanted);
    }
}
