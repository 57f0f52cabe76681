//! The part of the daemon admission policy for adopted namespaces, which others create. There the daemon may bind the
//! roles of the class and write its limits, with objects that carry the daemon's label, and change nothing else. PURE:
//! no runtime, no client, no file system, no clock.

use super::{text, texts};
use crate::bootstrap::needs::{Adopting, Needs};
use crate::bootstrap::roles::OWN_NAMESPACES;
use crate::contract::{CLASS, MANAGED_BY, MANAGER};
use crate::desired::volume::PERSONAL_NAMESPACE;
use crate::kinds::ManagedKind;
use crate::policy::Requirement;

const LABELS: &str = "namespaceObject.metadata.?labels.orValue({})";

/// The objects with our label that the daemon may delete in any namespace. A namespace that is no longer adopted has no
/// label that shows that it once was.
pub(super) fn left_behind() -> String {
    let kinds = ManagedKind::ALL.iter().map(|kind| kind.row()).filter(|row| row.in_adopted);
    format!("request.resource.resource in {}", texts(kinds.map(|row| row.plural)))
}

/// The condition of requests that the daemon may make in an adopted namespace. A namespace with our labels belongs to a
/// tenant or to Bursar. The daemon chooses labels and level of some of these itself, so a selector must not match them.
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

fn request(class: &Adopting) -> String {
    let selected: Vec<String> = class.selector.requirements().iter().map(requirement).collect();
    let (own, all) = (texts(&class.service_account_roles), texts(&class.roles));
    format!(
        "{} && ((variables.isBinding && (!variables.writes || (variables.empties && variables.role in {own} + {all}) || \
         (variables.subjects.all(s, s.kind == 'ServiceAccount') ? variables.role in {own} : variables.role in {all}))) || \
         (!variables.isBinding && request.resource.resource in {}))",
        selected.join(" && "),
        texts(&class.resources),
    )
}

fn requirement(requirement: &Requirement) -> String {
    let is_one = |key: &str, values: &[String]| {
        format!("({key} in {LABELS} && {LABELS}[{key}] in {})", texts(values), key = text(key))
    };
    match requirement {
        Requirement::In(key, values) => is_one(key, values),
        Requirement::NotIn(key, values) => format!("!{}", is_one(key, values)),
        Requirement::Exists(key) => format!("{} in {LABELS}", text(key)),
        Requirement::Absent(key) => format!("!({} in {LABELS})", text(key)),
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
