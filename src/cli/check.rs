//! `bursar check`: checks the configuration without contacting anything.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;

use nix::unistd::{Uid, User};
use serde_json::{Value, json};

use super::context::{Context, become_bursar};
use super::exit::{Exit, Failure};
use super::output;
use crate::admission::existing::grace_of;
use crate::desired::quota::{DEFAULTS, traps};
use crate::ledger::LedgerState;
use crate::policy::{Class, Policy};
use crate::privilege::USER;
use crate::rules::AllowedVolume;
use crate::rules::server::LONGEST_GRACE;
use crate::settings::{Egress, Names, Settings, SettingsErrors, egress};

pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    match judged(context) {
        Err(Failure { exit, text }) if context.global.json => {
            output::json(&json!({"ok": false, "errors": text.lines().collect::<Vec<_>>()}))?;
            Ok(exit)
        }
        judged => judged,
    }
}

fn judged(context: &Context) -> Result<Exit, Failure> {
    let settings = context.offline_settings()?;
    let (errors, credentials) = settings.missing_files();
    if !errors.is_empty() {
        return Err(SettingsErrors(errors).into());
    }
    let (errors, unreadable) = only_root_reads(context)?;
    if !errors.is_empty() {
        return Err(SettingsErrors(errors).into());
    }
    let policy = &settings.policy;
    let egress = of_egress(&egress(&settings, Names::AsWritten));
    let warnings = [settings.warnings.clone(), credentials, unreadable, warnings(policy), egress].concat();
    let sources: Vec<&str> = settings.source_names().collect();
    if context.global.json {
        output::json(&json!({
            "ok": true,
            "site": settings.site,
            "sources": sources,
            "clusters": policy.clusters.keys().collect::<Vec<_>>(),
            "classes": policy.classes.keys().collect::<Vec<_>>(),
            "warnings": warnings,
        }))?;
        return Ok(Exit::Done);
    }
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    output::line(format!(
        "{}: valid: {}, {}, {}",
        context.global.config.display(),
        count(sources.len(), "source"),
        count(policy.clusters.len(), "cluster"),
        if policy.classes.len() == 1 { "1 class".to_owned() } else { format!("{} classes", policy.classes.len()) },
    ));
    if sources.is_empty() {
        output::line(
            "There is no [[source]], so Bursar knows no account; examples are in /usr/share/doc/bursar/examples.",
        );
    }
    if policy.clusters.is_empty() {
        output::line("There is no [cluster.NAME].");
    }
    if policy.classes.is_empty() {
        output::line("There is no [class.NAME], so no account becomes a tenant.");
    }
    for warning in warnings {
        output::line(format!("warning: {warning}"));
    }
    Ok(Exit::Done)
}

/// Returns errors and warnings about files that the daemon cannot read. A process of root becomes user `bursar` and reads
/// every file again. For any other user than `bursar`, there is nothing to compare.
pub(super) fn only_root_reads(context: &Context) -> Result<(Vec<String>, Vec<String>), Failure> {
    let path = &context.global.config;
    let text = fs::read_to_string(path).unwrap_or_default();
    become_bursar()?;
    let own = User::from_name(USER).ok().flatten();
    if own.is_none_or(|user| user.uid != Uid::effective()) {
        return Ok((Vec::new(), Vec::new()));
    }
    let (mut errors, mut warnings) = match Settings::parse_offline(path, &text) {
        Ok(settings) => settings.unreadable_secrets(),
        Err(SettingsErrors(errors)) => (errors, Vec::new()),
    };
    if File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        let path = path.display();
        let why = format!("user bursar may not read {path}; run: chown root:bursar {path}; chmod 0640 {path}");
        // A file that somebody names may be a draft that is not for the daemon yet.
        if context.global.config_is_named { warnings.push(why) } else { errors.push(why) }
    }
    Ok((errors, warnings))
}

/// Returns warnings about servers that tenants' pods should not reach.
fn of_egress(Egress { reached, unknown }: &Egress) -> Vec<String> {
    let reached = reached.iter().map(|(class, what)| {
        format!(
            "class.{class}.network: pods reach {what}; NFS trusts any uid that a client claims, so exclude the server with \
             except, ports or another profile"
        )
    });
    let unknown = unknown.iter().map(|server| {
        format!(
            "{server} is not an address, and this command does not resolve names; `bursar doctor` checks whether pods reach it"
        )
    });
    reached.chain(unknown).collect()
}

/// Returns warnings about settings that are valid but weaken the protection.
fn warnings(policy: &Policy) -> Vec<String> {
    let may_escalate = |class: &&Class| class.admission.uid.privilege_escalation;
    let escalation = |class: &Class| {
        format!(
            "class.{}.admission.uid.privilege_escalation: with a setuid file in an image or an added capability, a pod can \
             take any uid, and NFS trusts it; remove the key if the pods of the class do not need it",
            class.name
        )
    };
    let trap = |class: &Class| {
        let nothing = LedgerState::default();
        let of_cluster = |cluster| traps(class, policy, &nothing, cluster);
        let resources: BTreeSet<&str> = class.clusters.iter().flat_map(of_cluster).collect();
        (!resources.is_empty()).then(|| {
            format!(
                "class.{}.quota: pods that do not name {} themselves are refused; give defaults, for example {DEFAULTS}",
                class.name,
                resources.into_iter().collect::<Vec<_>>().join(", ")
            )
        })
    };
    let classes = policy.classes.values();
    let volumes = classes.clone().flat_map(volumes);
    let opened = classes.clone().filter_map(opened);
    let escalation = classes.clone().filter(may_escalate).map(escalation);
    let grace = classes.clone().filter_map(long_grace).chain(classes.clone().flat_map(refused_manifests));
    escalation.chain(volumes).chain(opened).chain(grace).chain(classes.filter_map(trap)).collect()
}

/// Warns about a class whose pods may run for long after their deletion has begun.
fn long_grace(class: &Class) -> Option<String> {
    let longest = class.admission.server.longest_grace;
    (longest > LONGEST_GRACE).then(|| {
        format!(
            "class.{}.admission.max_grace_period: a pod whose deletion has begun may go on for {longest} s after its account was \
             suspended or removed; allow only what the operators of the class need",
            class.name
        )
    })
}

/// Returns warnings about manifests that the policy on grace periods refuses.
fn refused_manifests(class: &Class) -> impl Iterator<Item = String> {
    let longest = class.admission.server.longest_grace;
    let asked = class.manifests.iter().map(|manifest| (manifest, grace_of(manifest)));
    asked.filter(move |(_, asked)| *asked > longest && class.namespace.is_some()).map(move |(manifest, asked)| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "class.{}.admission.max_grace_period: {} {} in its manifests asks for {asked} s, so the API server refuses it; \
             allow this time, or ask for at most {longest} s",
            class.name,
            text(&manifest["kind"]),
            text(&manifest["metadata"]["name"])
        )
    })
}

/// Warns about a class that lets people or pods write network policies. Policies add up, so a policy of theirs opens the
/// namespace although Bursar's own policies stay.
fn opened(class: &Class) -> Option<String> {
    let dangerous = |role: &&String| !["bursar-tenant", "view"].contains(&role.as_str());
    let role = class.roles_in_namespaces().find(dangerous)?;
    (class.network != "open").then(|| {
        format!(
            "class.{}.network: if role {role} lets people write NetworkPolicies, as edit does, they can allow what {:?} \
             forbids, because policies add up; use the role bursar-tenant instead",
            class.name, class.network
        )
    })
}

/// Returns warnings about allowed volumes whose name does not determine what is mounted.
fn volumes(class: &Class) -> Vec<String> {
    let warned = class.admission.volumes.allow.iter().filter_map(|volume| {
        let why = match volume {
            AllowedVolume::HostPath(path) => {
                let (own, beneath) = path.rsplit_once('}')?;
                let folder = format!("{own}}}{}", beneath.split_once('/')?.0);
                format!(
                    "a user who can write in {folder} can put a link there to any place of the node, so pods may mount nothing \
                     beneath it; allow {folder}, and mount what is beneath it by subPath"
                )
            }
            AllowedVolume::Csi(_) | AllowedVolume::Source(_) => {
                "pods say which server and path are mounted, and no rule checks that; allow it only if everything that it can \
                 mount is for all tenants of the class"
                    .to_owned()
            }
            AllowedVolume::Nfs { .. } | AllowedVolume::Token(_) => return None,
        };
        Some(format!("class.{}.admission.volumes.allow: {volume}: {why}", class.name))
    });
    warned.chain(of_anybody(class)).collect()
}

/// Returns warnings about volumes that pods of adopted namespaces mount, because nothing restricts the uid of these
/// pods.
fn of_anybody(class: &Class) -> impl Iterator<Item = String> {
    let allowed = class.adopts().into_iter().flat_map(|adopts| &adopts.admission.allowed_volumes);
    let is_mounted = |volume: &&AllowedVolume| !matches!(volume, AllowedVolume::Token(_));
    allowed.filter(is_mounted).map(|volume| {
        format!(
            "class.{}.admission.volumes.allow: {volume}: pods of adopted namespaces choose their uid, so they read and write \
             there as any user; allow only what is for all of them",
            class.name
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{course, policy, profile, workspace_of};
    use crate::policy::From;

    #[test]
    fn a_warning_names_exports_that_adopted_namespaces_mount_as_any_user() {
        let mut policy = policy();
        let mut class = profile();
        let From::Adopted(adopts) = &mut class.from else { panic!("the class adopts namespaces") };
        let export = AllowedVolume::Nfs { server: "nfs.example.org".to_owned(), path: "/srv/".to_owned() };
        adopts.admission.allowed_volumes = vec![export, AllowedVolume::Token("istio-ca".to_owned())];
        policy.classes.insert(class.name.clone(), class);
        let said = warnings(&policy);
        let [one] = &*said else { panic!("{said:?}") };
        assert!(
            one.starts_with("class.profile.admission.volumes.allow: nfs.example.org:/srv/: pods of adopted"),
            "{one}"
        );
    }

    #[test]
    fn a_warning_names_volumes_that_do_not_determine_what_is_mounted() {
        let mut policy = policy();
        let mut said = |volume: AllowedVolume| {
            let class = policy.classes.get_mut("student").expect("the sample has this class");
            class.admission.volumes.allow = vec![volume];
            warnings(&policy).join("\n")
        };
        let path = |path: &str| AllowedVolume::HostPath(path.to_owned());
        for folder in ["/scratch/{name}/", "/scratch/{name}/data"] {
            assert!(said(path(folder)).contains("allow /scratch/{name}, and mount"), "{folder}");
        }
        for fine in ["/scratch/{name}", "/scratch/of-{name}", "/public/dumps/"] {
            assert_eq!(said(path(fine)), "", "{fine}");
        }
        assert!(said(AllowedVolume::Csi("nfs.csi.k8s.io".to_owned())).contains("allow: csi:nfs.csi.k8s.io: pods say"));
        assert_eq!(said(AllowedVolume::Token("vault".to_owned())), "");
    }

    #[test]
    fn a_warning_names_a_role_that_may_write_network_policies() {
        let mut policy = policy();
        policy.classes.insert("profile".to_owned(), profile());
        let mut said = |network: &str, role: &str| {
            let class = policy.classes.get_mut("profile").expect("the policy has this class");
            (class.network, class.roles) = (network.to_owned(), vec![role.to_owned()]);
            warnings(&policy).join("\n")
        };
        assert_eq!((said("isolated", "bursar-tenant"), said("open", "edit")), (String::new(), String::new()));
        assert!(said("isolated", "edit").starts_with("class.profile.network: if role edit lets people write"));
        assert_eq!(said("isolated", "view"), "");

        let tool = policy.classes.get_mut("tool").expect("the policy has this class");
        tool.service_account_roles = vec!["edit".to_owned()];
        let mut workspaces = course();
        workspaces.network = "isolated".to_owned();
        workspace_of(&mut workspaces).managers = vec!["admin".to_owned()];
        policy.classes.insert("course".to_owned(), workspaces);
        let said = warnings(&policy);
        assert!(
            matches!(&*said, [course, tool] if course.starts_with("class.course.network: if role admin lets")
                && tool.starts_with("class.tool.network: if role edit lets")),
            "{said:?}"
        );
    }

    #[test]
    fn a_warning_names_a_class_with_long_grace_periods() {
        let mut policy = policy();
        let class = policy.classes.get_mut("student").expect("the sample has this class");
        class.admission.server.longest_grace = 7 * 24 * 60 * 60;
        let said = warnings(&policy);
        assert!(
            matches!(&*said, [one] if one.starts_with("class.student.admission.max_grace_period: ") && one.contains("for 604800 s ")),
            "{said:?}"
        );
    }

    #[test]
    fn a_warning_names_a_manifest_that_asks_for_a_longer_grace_period_than_the_class_allows() {
        let mut policy = policy();
        let class = policy.classes.get_mut("student").expect("the sample has this class");
        let spec = json!({"containers": [{"livenessProbe": {"terminationGracePeriodSeconds": 600}}]});
        class.manifests = vec![
            json!({"kind": "Deployment", "metadata": {"name": "proxy"}, "spec": {"template": {"spec": spec}}}),
            json!({"kind": "ConfigMap", "metadata": {"name": "settings"}}),
        ];
        let said = warnings(&policy);
        assert!(
            matches!(&*said, [one] if one.contains("Deployment proxy in its manifests asks for 600 s")),
            "{said:?}"
        );
        policy.classes.get_mut("student").expect("the sample has this class").admission.server.longest_grace = 600;
        let said = warnings(&policy);
        assert!(matches!(&*said, [one] if one.contains("may go on for 600 s")), "{said:?}");
    }

    #[test]
    fn a_warning_names_a_quota_without_a_default() {
        let mut policy = policy();
        let class = policy.classes.get_mut("student").expect("the sample has this class");
        class.quota = [("limits.memory".to_owned(), "8Gi".to_owned()), ("pods".to_owned(), "4".to_owned())].into();
        class.limit_range = None;
        let said = warnings(&policy);
        assert!(matches!(&*said, [one] if one.contains("do not name limits.memory themselves")), "{said:?}");
        let class = policy.classes.get_mut("student").expect("the sample has this class");
        class.quota.insert("requests.memory".to_owned(), "4Gi".to_owned());
        class.limit_range = Some(json!([{"type": "Container", "default": {"memory": "512Mi"}}]));
        assert_eq!(warnings(&policy), Vec::<String>::new());
        let class = policy.classes.get_mut("student").expect("the sample has this class");
        class.limit_range = Some(json!([{"type": "Pod", "max": {"memory": "512Mi"}}]));
        assert!(warnings(&policy)[0].contains("limits.memory, requests.memory"));
    }

    #[test]
    fn a_warning_names_a_class_with_privilege_escalation() {
        let mut policy = policy();
        assert_eq!(warnings(&policy), Vec::<String>::new());
        let class = policy.classes.get_mut("student").expect("the sample has this class");
        class.admission.uid.privilege_escalation = true;
        let said = warnings(&policy);
        assert!(
            matches!(&*said, [one] if one.starts_with("class.student.admission.uid.privilege_escalation: ")),
            "{said:?}"
        );
    }
}
