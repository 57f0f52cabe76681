//! Checks the host patterns of classes (`admission.hosts.allow`): their syntax, and that no host belongs to two
//! tenants.

use super::table::Table;
use crate::identity::is_dns_label;
use crate::policy::Class;

const NAME: &str = "{name}";

/// Whether a pattern consists of lower-case labels or `{name}`. The first label may be `*`.
pub(super) fn is_host(pattern: &str) -> bool {
    let plain = pattern.strip_prefix("*.").unwrap_or(pattern);
    plain.len() <= 200 && plain.contains('.') && plain.split('.').all(|label| label == NAME || is_dns_label(label))
}

/// Whether `{name}` is a whole label. With other text in its label it would be ambiguous: with `{name}-dev` and
/// `{name}`, `foo-dev` would belong to tool foo and to tool foo-dev.
pub(super) fn has_name_as_label(pattern: &str) -> bool {
    pattern.split('.').any(|label| label == NAME)
}

/// Records an error for every pattern of `class` with which a host would belong to two tenants of a cluster.
pub(super) fn one_owner(table: &Table<'_>, class: &Class, others: &[Class]) {
    let wrong = |why: String| table.section("admission").section("hosts").wrong("allow", why);
    let hosts = &patterns(class);
    for (index, host) in hosts.iter().enumerate() {
        if let Some(earlier) = hosts.iter().take(index).find(|earlier| have_two_owners(host, earlier)) {
            wrong(format!(
                "{host:?} and {earlier:?} overlap: a host could belong to two tenants; put {{name}} in one place"
            ));
        }
    }
    let shared = |other: &&Class| other.clusters.iter().any(|cluster| class.clusters.contains(cluster));
    for other in others.iter().filter(shared) {
        // If both classes have the same pattern for namespaces, two accounts with one name share a namespace, so they
        // are one tenant.
        let are_strangers = other.namespace != class.namespace;
        for host in hosts {
            for theirs in &patterns(other) {
                if host == theirs && are_strangers {
                    wrong(format!(
                        "{host:?} is also listed in class {}: two accounts with the same name would share it",
                        other.name
                    ));
                } else if have_two_owners(host, theirs) || (are_strangers && meet(host, theirs)) {
                    let domain = "give each class a domain of its own";
                    wrong(format!("{host:?} overlaps {theirs:?} of class {}: {domain}", other.name));
                }
            }
        }
    }
}

/// Returns the patterns with `{name}` as the placeholder, also those of adopted namespaces.
fn patterns(class: &Class) -> Vec<String> {
    match class.adopts() {
        Some(adopts) => adopts.admission.host_patterns().collect(),
        None => class.admission.hosts.allow.clone(),
    }
}

/// Whether a host could belong to one tenant by one pattern and to another tenant by the other.
fn have_two_owners(one: &str, other: &str) -> bool {
    let place = |pattern: &str| pattern.rsplit('.').position(|label| label == NAME);
    place(one) != place(other) && meet(one, other)
}

/// Whether both patterns match a common host. In routes of the Gateway API a wildcard matches several labels, so a
/// first label `*` stands for one or more labels.
fn meet(one: &str, other: &str) -> bool {
    let parts = |pattern: &'_ str| -> (bool, Vec<String>) {
        let rest = pattern.strip_prefix("*.");
        (rest.is_some(), rest.unwrap_or(pattern).rsplit('.').map(str::to_owned).collect())
    };
    let ((one_is_wild, one), (other_is_wild, other)) = (parts(one), parts(other));
    let has_room = match (one_is_wild, other_is_wild) {
        (true, true) => true,
        (true, false) => other.len() > one.len(),
        (false, true) => one.len() > other.len(),
        (false, false) => one.len() == other.len(),
    };
    has_room && one.iter().zip(&other).all(|(one, other)| one == other || one == NAME || other == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_labels() {
        assert!(is_host("{name}.tools.example.org") && is_host("*.{name}.example.org"));
        for wrong in [
            "{name}",
            "{name}.Example.org",
            "{name}.example.org.",
            "a.*.{name}.org",
            "{name}_x.example.org",
            "t-{name}.example.org",
            "{name}-dev.example.org",
            "{name}{name}.example.org",
        ] {
            assert!(!is_host(wrong), "{wrong}");
        }
    }

    #[test]
    fn patterns_meet_if_one_host_matches_both() {
        for (one, other) in [
            ("{name}.example.org", "{name}.example.org"),
            ("{name}.tools.example.org", "www.{name}.example.org"),
            ("*.{name}.example.org", "{name}.tools.example.org"),
            ("*.{name}.example.org", "{name}.b.tools.example.org"),
            ("*.{name}.example.org", "*.a.{name}.example.org"),
        ] {
            assert!(meet(one, other) && meet(other, one), "{one} {other}");
        }
        for (one, other) in [
            ("{name}.tools.example.org", "{name}.users.example.org"),
            ("{name}.example.org", "{name}.tools.example.org"),
            ("*.{name}.tools.example.org", "{name}.tools.example.org"),
            ("*.{name}.tools.example.org", "*.{name}.users.example.org"),
        ] {
            assert!(!meet(one, other) && !meet(other, one), "{one} {other}");
        }
    }

    /// Returns every list of `length` words.
    fn lists(words: &[&str], length: usize) -> Vec<String> {
        let longer = |lists: Vec<String>| -> Vec<String> {
            let each = lists.iter().flat_map(|list| words.iter().map(move |word| format!("{list}.{word}")));
            each.collect()
        };
        (1..length).fold(words.iter().map(|word| (*word).to_owned()).collect(), |lists, _| longer(lists))
    }

    #[test]
    fn no_host_has_two_owners_with_accepted_patterns() {
        let covers = |pattern: &str, host: &str| match pattern.strip_prefix('*') {
            Some(rest) => host.len() > rest.len() && host.ends_with(rest),
            None => host == pattern,
        };
        let words = ["a", "b", NAME];
        let plain: Vec<String> = [lists(&words, 2), lists(&words, 3)].concat();
        let wild = plain.iter().map(|pattern| format!("*.{pattern}"));
        let patterns: Vec<String> =
            plain.iter().cloned().chain(wild).filter(|pattern| pattern.matches(NAME).count() == 1).collect();
        let hosts: Vec<String> = (2..=4).flat_map(|length| lists(&["a", "b", "c"], length)).collect();
        for one in &patterns {
            for other in &patterns {
                let owners = |pattern: &str, host: &str| -> Vec<&str> {
                    let names = ["a", "b", "c"].into_iter();
                    names.filter(|name| covers(&pattern.replace(NAME, name), host)).collect()
                };
                for host in &hosts {
                    let (here, there) = (owners(one, host), owners(other, host));
                    assert!(meet(one, other) || here.is_empty() || there.is_empty(), "{one} {other} {host}");
                    let same = here.is_empty() || there.is_empty() || here == there;
                    assert!(have_two_owners(one, other) || same, "{one} {other} {host}");
                }
            }
        }
    }
}
