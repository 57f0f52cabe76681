//! Makes every container of a pod run with the tenant's uid, gid and groups, and refuses every way to another uid.
//!
//! A value that a container does not set comes from its pod, and a value that the pod does not set comes from the
//! image. Therefore the webhook fills in all values of new pods.

use std::collections::BTreeSet;

use super::decision::{Decision, Finding, Rule};
use super::json::{Malformed, at, entry, field, list, number, object, quoted, set_absent, switch, text, texts};
use super::pod::{Container, Pod};
use super::tenant::Tenant;
use super::value::{Json, Object};
use crate::identity::PosixIdentity;
use crate::rules::Mode;

const STRICT: &str = "Strict";
const ESCALATION: &str = "allowPrivilegeEscalation";
/// The only capability that a container may add. Pod Security accepts only this spelling, too. Every other capability
/// leads to another uid, or bypasses file permissions.
const HARMLESS_CAPABILITY: &str = "NET_BIND_SERVICE";

/// The fields of `spec.securityContext` (`PodSecurityContext`) of Kubernetes 1.36. Each is checked here or by Pod
/// Security. A field of a later version could name another identity.
const OF_A_POD: [&str; 13] = [
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxChangePolicy",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
    "windowsOptions",
];
/// The fields of a container's `securityContext` (`SecurityContext`).
const OF_A_CONTAINER: [&str; 12] = [
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
    "windowsOptions",
];

/// Everything that the check of one security context needs.
struct Judge<'a> {
    tenant: &'a Tenant<'a>,
    posix: &'a PosixIdentity,
    pod: &'a Pod<'a>,
    /// `None` for the security context of the pod itself.
    container: Option<&'a Container<'a>>,
    decision: &'a mut Decision,
}

/// Checks the security contexts that are new or changed.
pub(super) fn check(
    pod: &Pod<'_>,
    containers: &[Container<'_>],
    tenant: &Tenant<'_>,
    decision: &mut Decision,
) -> Result<(), Malformed> {
    let mode = tenant.rules.uid.mode;
    if mode == Mode::Off {
        return Ok(());
    }
    let Some(posix) = tenant.posix() else {
        if pod.is_new() || (pod.is_template() && pod.differs(&["spec"])) {
            decision.found(mode, without_uid(tenant));
        }
        return Ok(());
    };
    let provided = provided(pod, posix)?;
    let mut of_pod = Judge { tenant, posix, pod, container: None, decision: &mut *decision };
    if let Some(context) = pod.changed_context()? {
        of_pod.pod(&context)?;
    }
    if let Some(system) = pod.changed(&["spec", "os", "name"]).filter(|system| system.as_str() != Some("linux")) {
        of_pod.windows(system);
    }
    let moved = pod.differs(&["spec", "securityContext"]);
    for container in containers {
        let mut of_container = Judge { tenant, posix, pod, container: Some(container), decision: &mut *decision };
        if let Some(context) = container.changed_context()? {
            of_container.container(&context)?;
        }
        let lost =
            container.old.is_none_or(|old| field(old, "securityContext") != field(container.value, "securityContext"));
        let says = at(container.value, &["securityContext", "runAsUser"]).is_some();
        if !says && !provided && (lost || moved) && !can_fill(pod, container, mode) {
            of_container.silent();
        }
        if loses_escalation(pod, container, mode) {
            of_container.may_escalate();
        }
    }
    Ok(())
}

/// Whether a container without `runAsUser` runs as the tenant. Returns true for a template, because each pod made from
/// it is checked itself.
fn provided(pod: &Pod<'_>, posix: &PosixIdentity) -> Result<bool, Malformed> {
    let mut own = Vec::new();
    for context in contexts(pod) {
        own.push(if context.is_null() { None } else { number(context, "runAsUser")? });
    }
    // If a new pod has a uid other than the tenant's, one finding for the pod is enough.
    let told = pod.is_new() && own.iter().any(Option::is_some);
    Ok(pod.is_template() || told || own.iter().all(|own| *own == Some(i64::from(posix.uid.get()))))
}

/// Returns the security context of the pod itself, in the new object and, if there is one, in the old object. The
/// context of an existing pod cannot change: in requests to `ephemeralcontainers` and `resize`, the API server silently
/// drops all other fields. So a value counts only if both objects have it.
fn contexts<'a>(pod: &Pod<'a>) -> impl Iterator<Item = &'a Json<'a>> {
    let context = |pod: &'a Json<'a>| &pod["spec"]["securityContext"];
    [Some(pod.object), pod.old].into_iter().flatten().map(context)
}

/// Whether the webhook fills in the container: all containers of a new pod, and new ephemeral ones of an existing pod.
fn can_fill(pod: &Pod<'_>, container: &Container<'_>, mode: Mode) -> bool {
    mode == Mode::Enforce && (pod.is_new() || is_added(pod, container))
}

fn is_added(pod: &Pod<'_>, container: &Container<'_>) -> bool {
    !pod.is_template() && container.old.is_none() && container.list == "ephemeralContainers"
}

/// Whether `allowPrivilegeEscalation` is absent in a container that is new or had the field before, and the webhook
/// will not fill it in.
fn loses_escalation(pod: &Pod<'_>, container: &Container<'_>, mode: Mode) -> bool {
    let says = |container: &Json<'_>| at(container, &["securityContext", ESCALATION]).is_some();
    let had = container.old.is_none_or(says);
    !pod.is_template() && had && !says(container.value) && !can_fill(pod, container, mode)
}

fn without_uid(tenant: &Tenant<'_>) -> Finding {
    Finding {
        rule: Rule::Uid,
        what: "the pod would run as its image's user".to_owned(),
        why: format!("{} has no uid", tenant.who()),
        remedy: "ask an administrator for one (`bursar status` says what is missing)".to_owned(),
    }
}

impl Judge<'_> {
    fn found(&mut self, what: String, why: String, remedy: String) {
        self.decision.found(self.tenant.rules.uid.mode, Finding { rule: Rule::Uid, what, why, remedy });
    }

    /// Whether one more finding would be dropped, so that its text need not be built.
    fn leaves_out(&mut self) -> bool {
        self.decision.leaves_out(self.tenant.rules.uid.mode, Rule::Uid)
    }

    /// Returns the name of the checked part in messages, such as `container "web"`.
    fn subject(&self) -> String {
        match self.container {
            Some(container) => container.who(),
            None if self.pod.is_template() => "a pod of the template".to_owned(),
            None => "the pod".to_owned(),
        }
    }

    /// Returns the path of the security context in messages, with a dot at the end.
    fn path(&self) -> String {
        if self.container.is_some() {
            "securityContext.".to_owned()
        } else {
            format!("{}spec.securityContext.", self.pod.path)
        }
    }

    fn runs_as(&self) -> String {
        format!("{} runs as {}", self.tenant.who(), self.posix.uid)
    }

    fn has_gid(&self) -> String {
        format!("{} has gid {}", self.tenant.who(), self.posix.gid)
    }

    fn remove(&self, key: &str) -> String {
        format!("remove {}{key}", self.path())
    }

    fn pod(&mut self, context: &Json<'_>) -> Result<(), Malformed> {
        self.both(context, &OF_A_POD)?;
        if let Some(gid) = number(context, "fsGroup")?.filter(|gid| *gid != i64::from(self.posix.gid.get())) {
            let what = format!("the volumes of {} would belong to gid {gid}", self.subject());
            self.found(what, self.has_gid(), self.remove("fsGroup"));
        }
        let own: BTreeSet<i64> =
            self.posix.groups.iter().chain([&self.posix.gid]).map(|gid| i64::from(gid.get())).collect();
        for group in list(context, "supplementalGroups")? {
            let group = group.as_i64().ok_or_else(|| {
                Malformed("supplementalGroups contains an item that is not a whole number".to_owned())
            })?;
            if !own.contains(&group) && !self.leaves_out() {
                let groups = own.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
                let what = format!("{} would be in group {group}", self.subject());
                let why = format!("{} has the groups {groups}", self.tenant.who());
                self.found(what, why, format!("remove {group} from {}supplementalGroups", self.path()));
            }
        }
        let policy = text(context, "supplementalGroupsPolicy")?;
        if self.tenant.rules.uid.strict_groups && !policy.is_empty() && policy != STRICT {
            let what = format!("{} would be in the groups that its images name", self.subject());
            let why = format!("{} has the groups of the directory", self.tenant.who());
            self.found(what, why, self.remove("supplementalGroupsPolicy"));
        }
        Ok(())
    }

    fn container(&mut self, context: &Json<'_>) -> Result<(), Malformed> {
        self.both(context, &OF_A_CONTAINER)?;
        let asks = switch(context, ESCALATION)? == Some(true);
        let is_privileged = switch(context, "privileged")? == Some(true);
        let added = match field(context, "capabilities") {
            Some(_) if object(context, "capabilities")?.is_some() => texts(&context["capabilities"], "add")?,
            _ => Vec::new(),
        };
        if self.tenant.rules.uid.privilege_escalation {
            return Ok(());
        }
        if asks {
            self.found(format!("{} asks for {ESCALATION}", self.subject()), self.stays(), self.remove(ESCALATION));
        }
        // If the rule `host` refuses this already, one message is enough.
        if is_privileged && self.tenant.rules.host < self.tenant.rules.uid.mode {
            self.found(format!("{} asks to be privileged", self.subject()), self.stays(), self.remove("privileged"));
        }
        for capability in added.into_iter().filter(|capability| *capability != HARMLESS_CAPABILITY) {
            if self.leaves_out() {
                continue;
            }
            let capability = quoted(capability);
            let what = format!("{} adds the capability {capability}", self.subject());
            self.found(what, self.stays(), format!("remove {capability} from {}capabilities.add", self.path()));
        }
        Ok(())
    }

    /// Returns the reason in findings about ways to another uid.
    fn stays(&self) -> String {
        format!("with it, a process can get a uid other than {}, the uid of {}", self.posix.uid, self.tenant.who())
    }

    fn may_escalate(&mut self) {
        if !self.tenant.rules.uid.privilege_escalation {
            let what = format!("{} does not set {ESCALATION}", self.subject());
            let why = format!("a setuid file of its image can then run with a uid other than {}", self.posix.uid);
            self.found(what, why, format!("set {}{ESCALATION} to false", self.path()));
        }
    }

    fn both(&mut self, context: &Json<'_>, known: &[&str]) -> Result<(), Malformed> {
        let fields = context.as_object().into_iter().flat_map(Object::iter);
        for (key, _) in fields.filter(|(key, value)| !value.is_null() && !known.contains(key)) {
            let what = format!("{} has {}{}", self.subject(), self.path(), quoted(key).trim_matches('"'));
            let why = "this webhook does not know what that does".to_owned();
            self.found(what, why, "remove it, or ask an administrator for the webhook of a newer Bursar".to_owned());
        }
        if let Some(uid) = number(context, "runAsUser")?.filter(|uid| *uid != i64::from(self.posix.uid.get())) {
            self.found(format!("{} would run as uid {uid}", self.subject()), self.runs_as(), self.remove("runAsUser"));
        }
        if let Some(gid) = number(context, "runAsGroup")?.filter(|gid| *gid != i64::from(self.posix.gid.get())) {
            self.found(format!("{} would run as gid {gid}", self.subject()), self.has_gid(), self.remove("runAsGroup"));
        }
        if switch(context, "runAsNonRoot")? == Some(false) {
            self.found(
                format!("{} says that it may run as root", self.subject()),
                self.runs_as(),
                self.remove("runAsNonRoot"),
            );
        }
        if object(context, "windowsOptions")?.is_some() {
            let what = format!("{} names a Windows user", self.subject());
            self.found(what, self.runs_as(), self.remove("windowsOptions"));
        }
        Ok(())
    }

    fn windows(&mut self, system: &Json<'_>) {
        let what = format!("{} is for {}", self.subject(), quoted(system.as_str().unwrap_or_default()));
        let remedy = format!("remove {}os", self.path().trim_end_matches("securityContext."));
        self.found(what, format!("{}, and only Linux knows uids", self.runs_as()), remedy);
    }

    fn silent(&mut self) {
        let what = format!("{} would run as its image's user", self.subject());
        self.found(what, self.runs_as(), format!("set {}runAsUser to {}", self.path(), self.posix.uid));
    }
}

/// Fills in what is absent: the pod's own security context if the pod is new, and, in containers, the values that
/// cannot be inherited from the pod.
pub(super) fn fill<'a>(spec: &mut Json<'a>, pod: &Pod<'a>, containers: &[Container<'a>], tenant: &Tenant<'a>) {
    let (rules, Some(posix)) = (tenant.rules, tenant.posix()) else { return };
    if rules.uid.mode != Mode::Enforce {
        return;
    }
    if pod.is_new()
        && let Some(context) = entry(spec, "securityContext")
    {
        set_absent(context, "runAsUser", posix.uid.get());
        set_absent(context, "runAsGroup", posix.gid.get());
        set_absent(context, "fsGroup", posix.gid.get());
        set_absent(context, "runAsNonRoot", true);
        if !posix.groups.is_empty() {
            let groups = posix.groups.iter().map(|gid| gid.get().into()).collect();
            set_absent(context, "supplementalGroups", Json::List(groups));
        }
        if rules.uid.strict_groups {
            set_absent(context, "supplementalGroupsPolicy", STRICT);
        }
        if rules.restricted {
            set_absent(context, "seccompProfile", runtime_default());
        }
    }
    for container in containers {
        let added = is_added(pod, container);
        if !pod.is_new() && !added {
            continue;
        }
        let Some(container) = container.of(spec) else { continue };
        let lacks = |key: &str| added && contexts(pod).any(|context| field(context, key).is_none());
        let differs = |key: &str, own: &Json<'_>| added && contexts(pod).any(|context| context.get(key) != Some(own));
        let mut wanted: Vec<(&str, Json<'_>)> = Vec::new();
        for (key, own) in [("runAsUser", Json::from(posix.uid.get())), ("runAsGroup", posix.gid.get().into())] {
            if differs(key, &own) {
                wanted.push((key, own));
            }
        }
        if lacks("runAsNonRoot") {
            wanted.push(("runAsNonRoot", true.into()));
        }
        if rules.restricted || !rules.uid.privilege_escalation {
            wanted.push((ESCALATION, false.into()));
        }
        if rules.restricted && lacks("seccompProfile") {
            wanted.push(("seccompProfile", runtime_default()));
        }
        if wanted.is_empty() {
            continue;
        }
        let Some(context) = entry(container, "securityContext") else { continue };
        for (key, value) in wanted {
            set_absent(context, key, value);
        }
        if rules.restricted
            && let Some(capabilities) = entry(context, "capabilities")
        {
            set_absent(capabilities, "drop", Json::List(vec!["ALL".into()]));
        }
    }
}

fn runtime_default() -> Json<'static> {
    Json::object([("type", "RuntimeDefault".into())])
}
