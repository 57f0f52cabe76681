//! The part of the daemon admission policy for adopted namespaces, which others create. There the daemon may bind the
//! roles of the class and write its limits, with objects that carry the daemon's label, and change nothing else.

use super::{text, texts};
use crate::bootstrap::needs::{Adopting, Needs};
use crate::bootstrap::roles::OWN_NAMESPACES;
use crate::contract::{CLASS, MANAGED_BY, MANAGER, POD_SECURITY_ENFORCE};
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::kinds::ManagedKind;
use crate::policy::Requirement;

const LABELS: &str = "namespaceObject.metadata.?labels.orValue({})";
const OLD_LABELS: &str = "oldObject.metadata.?labels.orValue({})";

/// The objects with our label that the daemon may delete in any namespace, because no label shows that a namespace was
/// adopted before.
pub(super) fn left_behind() -> String {
    let kinds = ManagedKind::ALL.iter().map(|kind| kind.row()).filter(|row| row.in_adopted);
    format!("request.resource.resource in {}", texts(kinds.map(|row| row.plural)))
}

/// The condition of requests that the daemon may make in an adopted namespace. A namespace with our labels belongs to a
/// tenant or to Bursar, and the daemon may choose its labels and its level. Such a namespace is therefore excluded,
/// even if a selector matches it.
pub(super) fn place(needs: &Needs) -> String {
    let classes: Vec<String> = needs.adopted.values().map(|class| format!("({})", request(class))).collect();
    let any = if classes.is_empty() { "false".to_owned() } else { classes.join(" || ") };
    format!(
        "variables.namespaced && !(variables.place in {own}) && !({class} in {labels}) && namespaceObject.metadata.?labels[?{by}].orValue('') != {manager} && \
         variables.sub == '' && variables.managedNow && (variables.managedBefore || variables.empties) && ({any})",
        own = texts(OWN_NAMESPACES.into_iter().chain([PERSONAL_NAMESPACE])),
        class = text(CLASS),
        labels = LABELS,
        by = text(MANAGED_BY),
        manager = text(MANAGER),
    )
}

/// The condition that the request gives a foreign namespace without a Pod Security level the level of its class, and
/// changes nothing else.
pub(super) fn levels(needs: &Needs) -> String {
    let class = |class: &Adopting| {
        let level = class.pod_security?;
        let requirements = class.selector.requirements().iter();
        let selected: Vec<String> = requirements.map(|one| requirement(OLD_LABELS, one)).collect();
        Some(format!(
            "({} && object.metadata.labels[{}] == {})",
            selected.join(" && "),
            text(POD_SECURITY_ENFORCE),
            text(level.as_str())
        ))
    };
    let classes: Vec<String> = needs.adopted.values().filter_map(class).collect();
    if classes.is_empty() {
        return "false".to_owned();
    }
    let same = ["annotations", "finalizers", "ownerReferences"]
        .map(|field| format!("object.metadata.?{field} == oldObject.metadata.?{field}"));
    format!(
        "variables.isNamespace && variables.sub == '' && variables.writes && variables.old && !({class} in {OLD_LABELS}) && \
         {OLD_LABELS}[?{by}].orValue('') != {manager} && !({enforce} in {OLD_LABELS}) && \
         {enforce} in object.metadata.?labels.orValue({{}}) && {OLD_LABELS}.all(k, k in object.metadata.labels) && \
         object.metadata.labels.all(k, k == {enforce} || (k in {OLD_LABELS} && {OLD_LABELS}[k] == object.metadata.labels[k])) && \
         {same} && object.?spec == oldObject.?spec && ({any})",
        class = text(CLASS),
        by = text(MANAGED_BY),
        manager = text(MANAGER),
        enforce = text(POD_SECURITY_ENFORCE),
        same = same.join(" && "),
        any = classes.join(" || "),
    )
}

fn request(class: &Adopting) -> String {
    let selected: Vec<String> = class.selector.requirements().iter().map(|one| requirement(LABELS, one)).collect();
    let (own, all) = (texts(&class.service_account_roles), texts(&class.roles));
    format!(
        "{} && ((variables.isBinding && (!variables.writes || (variables.role in {own} + {all} && \
         variables.subjects.all(s, variables.role in (s.kind == 'ServiceAccount' ? {own} : {all}))))) || \
         (!variables.isBinding && request.resource.resource in {}))",
        selected.join(" && "),
        texts(&class.resources),
    )
}

fn requirement(labels: &str, requirement: &Requirement) -> String {
    let is_one = |key: &str, values: &[String]| {
        format!("({key} in {labels} && {labels}[{key}] in {})", texts(values), key = text(key))
    };
    match requirement {
        Requirement::In(key, values) => is_one(key, values),
        Requirement::NotIn(key, values) => format!("!{}", is_one(key, values)),
        Requirement::Exists(key) => format!("{} in {labels}", text(key)),
        Requirement::Absent(key) => format!("!({} in {labels})", text(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the text changed, the policy would differ from the one in existing clusters.
    #[test]
    fn leftovers_in_adopted_namespaces_follow_the_order_of_the_table() {
        let resources = "['rolebindings', 'resourcequotas', 'limitranges', 'networkpolicies']";
        assert_eq!(left_behind(), format!("request.resource.resource in {resources}"));
    }
}
