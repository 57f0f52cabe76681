//! The example site of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use regex::Regex;
use serde_json::json;

use super::prod;
use crate::policy::{
    Adopts, Class, Cluster, CredentialKind, CredentialRule, Endpoint, From, HomeRule, Limit, Limits, NetworkProfile,
    NfsVolume, Pattern, Peer, PodSecurity, Policy, Port, Range, Selector, Volume, VolumeKind, When, Who, Workspace,
};

/// Returns the policy of the example site: tools, admins, and students with volumes and templates.
pub fn policy() -> Policy {
    let endpoint = Endpoint {
        url: "https://k8s.example.org:6443".to_owned(),
        ca_pem: "CA".to_owned(),
        tls_server_name: None,
        proxy: None,
    };
    let cluster = Cluster {
        default_endpoint: "internal".to_owned(),
        endpoints: BTreeMap::from([("internal".to_owned(), endpoint)]),
        senders: crate::rules::senders::Senders::default(),
    };
    let range = Range::parse("192.0.2.0/24").expect("the range is valid");
    let outside =
        Peer { who: Who::Addresses { range, except: Vec::new() }, ports: [443, 8443].map(Port::tcp).to_vec() };
    let lab = NetworkProfile {
        default_deny: true,
        allow_ingress: vec![Peer::own_namespace(), Peer::namespace("ingress-nginx")],
        allow_egress: vec![Peer::dns(), outside],
    };
    let classes = [tool(), admin(), student()];
    Policy {
        contact: None,
        sources: BTreeSet::from([super::SOURCE.to_owned()]),
        site: "example".to_owned(),
        classes: classes.into_iter().map(|class| (class.name.clone(), class)).collect(),
        networks: BTreeMap::from([
            ("open".to_owned(), NetworkProfile::open()),
            ("isolated".to_owned(), NetworkProfile::isolated()),
            ("lab".to_owned(), lab),
        ]),
        clusters: BTreeMap::from([(prod(), cluster)]),
        limits: limits(),
        lifecycle: crate::policy::LifecycleDelays {
            absent_for: Duration::from_hours(24),
            retention: Duration::from_hours(40 * 24),
            delete_after: Duration::ZERO,
            revoke_on_member_removed: true,
        },
        home_prefixes: vec!["/data/project".into(), "/home".into()],
        reapers: crate::policy::Reapers::default(),
        require_confinement: false,
        strict_egress: false,
        exempt: Vec::new(),
    }
}

fn limits() -> Limits {
    let limit = |count, percent| Limit { count, percent };
    Limits {
        suspend_per_cycle: limit(5, Some(1)),
        suspend_per_day: limit(20, Some(3)),
        disable_per_cycle: limit(5, Some(1)),
        disable_per_day: limit(20, Some(3)),
        remove_access_per_cycle: limit(5, Some(1)),
        remove_access_per_day: limit(20, Some(3)),
        delete_per_cycle: limit(1, None),
        delete_per_day: limit(5, None),
        remove_members_per_cycle: limit(20, Some(5)),
        remove_members_per_day: limit(60, Some(10)),
        realm_disable_per_cycle: limit(5, Some(1)),
        realm_disable_per_day: limit(20, Some(3)),
        realm_remove_roles_per_cycle: limit(20, Some(5)),
        realm_remove_roles_per_day: limit(60, Some(10)),
        resume_per_cycle: limit(20, None),
        resume_per_day: limit(60, None),
        change_per_cycle: limit(50, None),
    }
}

fn class(name: &str, from: From) -> Class {
    Class {
        name: name.to_owned(),
        from,
        when: None,
        clusters: vec![prod()],
        name_pattern: Pattern(Regex::new("^[a-z]").expect("the pattern is a valid regex")),
        namespace: None,
        home: Some(HomeRule {
            prefix: "/home".into(),
            kubeconfig: ".kube/config".into(),
            create: false,
            ssh_keys: false,
            replace_unparsable: false,
        }),
        roles: Vec::new(),
        service_account_roles: Vec::new(),
        impersonate: Vec::new(),
        drift: BTreeMap::new(),
        pod_security: PodSecurity::Restricted,
        quota: BTreeMap::new(),
        quota_locked: BTreeSet::new(),
        limit_range: None,
        network: "open".to_owned(),
        credential: Some(CredentialRule {
            kind: CredentialKind::Certificate { lifetime: Duration::from_hours(168) },
            endpoints: vec!["internal".to_owned()],
        }),
        volumes: Vec::new(),
        admission: crate::policy::Admission::default(),
        provision: crate::policy::Provision::default(),
        manifests: Vec::new(),
    }
}

fn tool() -> Class {
    let quota = [("requests.cpu", "2"), ("limits.memory", "8Gi"), ("pods", "16"), ("services.nodeports", "0")];
    Class {
        namespace: Some("tool-{name}".to_owned()),
        home: Some(HomeRule {
            prefix: "/data/project".into(),
            kubeconfig: ".kube/config".into(),
            create: false,
            ssh_keys: false,
            replace_unparsable: false,
        }),
        roles: vec!["bursar-tenant".to_owned()],
        quota: quota.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        limit_range: Some(json!([{"type": "Container", "default": {"cpu": "500m", "memory": "512Mi"}}])),
        network: "isolated".to_owned(),
        ..class("tool", From::Tools)
    }
}

fn admin() -> Class {
    Class {
        when: Some(When::Group("k8s-admins".to_owned())),
        roles: vec!["view".to_owned()],
        impersonate: vec!["bursar:cluster-admin".to_owned()],
        ..class("admin", From::Users(None))
    }
}

fn student() -> Class {
    Class {
        when: Some(When::Base("ou=students,dc=example,dc=org".to_owned())),
        namespace: Some("user-{name}".to_owned()),
        roles: vec!["bursar-tenant".to_owned()],
        service_account_roles: vec!["view".to_owned()],
        pod_security: PodSecurity::Baseline,
        network: "lab".to_owned(),
        volumes: vec![Volume {
            name: "home".to_owned(),
            kind: VolumeKind::Static(NfsVolume {
                server: "nfs.example.org".to_owned(),
                path: "/srv/home/{name}".to_owned(),
                options: Vec::new(),
                directory: None,
            }),
            mount: Some("/home/{name}".to_owned()),
        }],
        manifests: vec![json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "about-{name}", "namespace": "kube-system"},
            "data": {"who": "{account} is {uid}:{gid} in {namespace} ({class})", "left": "{alone} {", "{class}": "key"},
        })],
        ..class("student", From::Users(None))
    }
}

/// Returns a class that makes each group a tenant.
pub fn course() -> Class {
    let named = |roles: &[&str]| roles.iter().map(|role| (*role).to_owned()).collect();
    let workspace = Workspace {
        members: named(&["bursar-tenant"]),
        managers: named(&["bursar-tenant", "workspace-manager"]),
        member_quota: BTreeMap::from([("requests.cpu".to_owned(), "2".to_owned())]),
        ..Workspace::default()
    };
    Class {
        namespace: Some("workspace-{name}".to_owned()),
        home: None,
        credential: None,
        ..class("course", From::Groups(workspace))
    }
}

/// Returns the rights and quotas that a class of groups gives to its people.
pub fn workspace_of(class: &mut Class) -> &mut Workspace {
    let From::Groups(workspace) = &mut class.from else { panic!("class {} is not from groups", class.name) };
    workspace
}

/// Returns a class that adopts foreign namespaces.
pub fn profile() -> Class {
    let selector = Selector::parse("part-of=profiles").expect("the selector is valid");
    Class {
        home: None,
        credential: None,
        roles: vec!["bursar-tenant".to_owned()],
        service_account_roles: vec!["view".to_owned()],
        quota: BTreeMap::from([("pods".to_owned(), "9".to_owned())]),
        ..class(
            "profile",
            From::Adopted(Adopts {
                selector,
                owner_annotation: "owner".to_owned(),
                admission: Box::default(),
                pod_security: None,
            }),
        )
    }
}
