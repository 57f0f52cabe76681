//! Turns the merged tree into [`Settings`]. Large sections have their own modules; this module reads the small ones,
//! with their defaults. `config/bursar.toml` documents the same defaults.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bursar_directory::source::SourceConfig;
use croner::parser::{CronParser, Seconds};

use super::SecretPlace;
use super::class::{Known, absolute};
use super::table::{Table, ValueKind, absolute_path};
use super::{
    Homes, Schedule, Settings, admission, class, cluster, host, manifests, network, realm, reaper, source, uid_range,
};
use crate::policy::{Class, LifecycleDelays, Limit, Limits, Policy};

const SECTIONS: [&str; 17] = [
    "site",
    "contact",
    "state_dir",
    "source",
    "cluster",
    "class",
    "network",
    "webhook",
    "security",
    "limits",
    "lifecycle",
    "schedule",
    "archive",
    "reaper",
    "realm",
    "homes",
    "metrics",
];
const CRON: ValueKind = ValueKind("a five-field cron expression", "\"30 3 * * *\"");
const SOCKET: &str = "an absolute path of at most 107 bytes";
const CONTACT: ValueKind = ValueKind("an address, one line of text", "\"help@example.org\"");
const ADDRESS: ValueKind = ValueKind("an address with a port", "\"127.0.0.1:9746\"");
const AGE: ValueKind = ValueKind(
    "a recipient of age",
    "\"age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p\", as age-keygen prints it",
);
const DAY: u64 = 24;

/// Reads the tree of the file at `path`. Relative paths start at its folder. If this returns `None`, an error was
/// recorded.
pub(super) fn settings(root: &Table<'_>, path: &Path) -> Option<Settings> {
    let (file, folder) = (path.to_path_buf(), path.parent().unwrap_or(Path::new("")));
    root.only(&[&SECTIONS[..], &["control"]].concat());
    let site = root.required("site", "example");
    let state_dir = root.parsed("state_dir", absolute_path("\"/var/lib/bursar\""), absolute);
    let state_dir = state_dir.unwrap_or_else(|| PathBuf::from(super::STATE_DIR));
    let homes = homes(&root.section("homes"));
    let (clusters, kubeconfigs) = cluster::clusters(root, folder, &state_dir);
    cluster::one_entry_each(root, &clusters);
    let networks = network::networks(root);
    let known = Known {
        clusters: &clusters,
        clusters_misspelt: root.misspells("cluster"),
        networks: networks.keys().cloned().collect(),
        prefixes: &homes.prefixes,
    };
    let classes = classes(root, folder, &known);
    let control = root.section("control");
    control.only(&["socket"]);
    root.section("security").only(&["require_confinement", "strict_egress"]);
    let mut reapers = reaper::reapers(&root.section("reaper"), folder, &clusters);
    admission::reaped(root, &mut reapers, &classes);
    let mut policy = Policy {
        site: site.clone().unwrap_or_default(),
        contact: root.parsed("contact", CONTACT, |text| bursar_protocol::is_plain(text).then(|| text.to_owned())),
        sources: BTreeSet::new(),
        classes: classes.into_iter().map(|class| (class.name.clone(), class)).collect(),
        networks,
        clusters,
        limits: limits(&root.section("limits")),
        lifecycle: lifecycle(&root.section("lifecycle")),
        home_prefixes: homes.prefixes.clone(),
        reapers,
        require_confinement: security(root, "require_confinement"),
        strict_egress: security(root, "strict_egress"),
        exempt: exempt(&root.section("webhook")),
    };
    let archive = root.section("archive");
    archive.only(&["recipient"]);
    let metrics = root.section("metrics");
    metrics.only(&["listen"]);
    let mut sources = source::sources(root, folder);
    managers(root, &policy, &mut sources);
    policy.sources = sources.iter().map(|(source, _)| source.name.clone()).collect();
    Some(Settings {
        file,
        warnings: Vec::new(),
        realm: realm::realm(root, folder, &sources).map(Box::new),
        sources,
        policy,
        clusters: kubeconfigs,
        schedule: schedule(&root.section("schedule")),
        homes,
        metrics: metrics.parsed("listen", ADDRESS, |text| text.parse().ok()),
        control_socket: control
            .parsed("socket", ValueKind(SOCKET, "\"/run/bursar/control.sock\""), socket_path)
            .unwrap_or_else(|| PathBuf::from(super::CONTROL_SOCKET)),
        archive_recipient: archive.parsed("recipient", AGE, |text| text.parse().ok()),
        webhook_image: root.section("webhook").text("image"),
        state_dir,
        site: site?,
    })
}

/// Parses the path of a Unix socket, which has at most 107 bytes (unix(7), `sun_path`).
fn socket_path(text: &str) -> Option<PathBuf> {
    absolute(text).filter(|_| text.len() <= 107)
}

/// Adds the attribute that names the managers of groups, from the classes, to every source.
fn managers(root: &Table<'_>, policy: &Policy, sources: &mut [(SourceConfig, Option<SecretPlace>)]) {
    let mut named = policy.classes.values().filter_map(|class| Some((class, class.workspace()?.named_by.as_ref()?)));
    let Some((_, attribute)) = named.next() else { return };
    for (class, _) in named.filter(|(_, other)| *other != attribute) {
        let why = format!(
            "another class has {attribute:?}; if directories differ, set managers in [source.attributes] instead"
        );
        root.section("class").section(&class.name).wrong("managers", why);
    }
    for (source, _) in sources {
        source.attributes.managers.get_or_insert_with(|| attribute.clone());
    }
}

fn classes(root: &Table<'_>, folder: &Path, known: &Known<'_>) -> Vec<Class> {
    let tables = root.named("class");
    let names: Vec<String> = tables.iter().map(|(name, _)| name.clone()).collect();
    manifests::strays(root, folder, &names);
    let mut classes: Vec<Class> = Vec::new();
    for (name, table) in tables {
        let Some(mut class) = class::class(&name, &table, known) else { continue };
        class.manifests = manifests::manifests(root, folder, &name);
        let other = classes.iter().find(|other| {
            other.from.account_kind() != class.from.account_kind()
                && other.namespace.is_some()
                && other.namespace == class.namespace
                && other.clusters.iter().any(|cluster| class.clusters.contains(cluster))
        });
        if let Some(other) = other {
            let why = format!(
                "class {} has the same for another kind of account: two accounts with one name would share it",
                other.name
            );
            table.wrong("namespace", why);
        }
        admission::escalation_needs_a_lower_level(&table, &class);
        host::one_owner(&table, &class, &classes);
        classes.push(class);
    }
    uid_range::one_identity(root, &classes);
    classes
}

/// Reads a switch of `[security]`.
fn security(root: &Table<'_>, key: &str) -> bool {
    root.section("security").switch(key, false)
}

fn exempt(table: &Table<'_>) -> Vec<String> {
    table.only(&["exempt", "image"]);
    let default = || ["system:masters", "kubeadm:cluster-admins"].map(str::to_owned).to_vec();
    let groups = table.texts("exempt").unwrap_or_else(default);
    // The groups become texts in an expression of the API server.
    let is_odd =
        |group: &&String| group.is_empty() || group.contains(['\'', '"', '\\']) || group.contains(char::is_control);
    for group in groups.iter().filter(is_odd) {
        table.wrong(
            "exempt",
            format!("{group:?} is not the name of a group: quotes, backslashes and control characters cannot be in it"),
        );
    }
    groups
}

fn limits(table: &Table<'_>) -> Limits {
    let share = |count, percent| Limit { count, percent: Some(percent) };
    let count = |count| Limit { count, percent: None };
    let suspend_per_cycle = limit(table, "suspend_per_cycle", share(5, 1));
    let suspend_per_day = limit(table, "suspend_per_day", share(20, 3));
    let remove_members_per_cycle = limit(table, "remove_members_per_cycle", share(20, 5));
    let remove_members_per_day = limit(table, "remove_members_per_day", share(60, 10));
    let limits = Limits {
        suspend_per_cycle,
        suspend_per_day,
        disable_per_cycle: limit(table, "disable_per_cycle", suspend_per_cycle),
        disable_per_day: limit(table, "disable_per_day", suspend_per_day),
        remove_access_per_cycle: limit(table, "remove_access_per_cycle", suspend_per_cycle),
        remove_access_per_day: limit(table, "remove_access_per_day", suspend_per_day),
        delete_per_cycle: limit(table, "delete_per_cycle", count(1)),
        delete_per_day: limit(table, "delete_per_day", count(5)),
        remove_members_per_cycle,
        remove_members_per_day,
        // The realm follows the ledger, so its limits allow in one cycle what those of the ledger allow.
        realm_disable_per_cycle: limit(table, "realm_disable_per_cycle", suspend_per_cycle),
        realm_disable_per_day: limit(table, "realm_disable_per_day", suspend_per_day),
        realm_remove_roles_per_cycle: limit(table, "realm_remove_roles_per_cycle", remove_members_per_cycle),
        realm_remove_roles_per_day: limit(table, "realm_remove_roles_per_day", remove_members_per_day),
        resume_per_cycle: limit(table, "resume_per_cycle", count(20)),
        resume_per_day: limit(table, "resume_per_day", count(60)),
        change_per_cycle: limit(table, "change_per_cycle", count(50)),
    };
    table.only(&[
        "suspend_per_cycle",
        "suspend_per_day",
        "disable_per_cycle",
        "disable_per_day",
        "remove_access_per_cycle",
        "remove_access_per_day",
        "delete_per_cycle",
        "delete_per_day",
        "remove_members_per_cycle",
        "remove_members_per_day",
        "realm_disable_per_cycle",
        "realm_disable_per_day",
        "realm_remove_roles_per_cycle",
        "realm_remove_roles_per_day",
        "resume_per_cycle",
        "resume_per_day",
        "change_per_cycle",
    ]);
    limits
}

fn limit(table: &Table<'_>, key: &str, default: Limit) -> Limit {
    if !table.has(key) {
        return default;
    }
    if let Some(value) = table.value(key).filter(|value| !value.is_object()) {
        table.wrong(key, format!("{value} is not a table; for example {{ count = {} }}", default.count));
        return default;
    }
    let fields = table.section(key);
    fields.only(&["count", "percent"]);
    if !fields.has("count") {
        fields.wrong("count", format!("missing; for example {}", default.count));
    }
    let percent = fields.number("percent");
    if percent.is_some_and(|percent| percent > 100) {
        fields.wrong("percent", "is more than 100 percent; for example 5");
    }
    Limit { count: fields.number("count").unwrap_or(default.count), percent }
}

fn lifecycle(table: &Table<'_>) -> LifecycleDelays {
    table.only(&["absent_for", "retention", "delete_after", "revoke_on_member_removed"]);
    LifecycleDelays {
        absent_for: table.duration("absent_for", Duration::from_hours(DAY)),
        retention: table.duration("retention", Duration::from_hours(40 * DAY)),
        delete_after: table.duration("delete_after", Duration::ZERO),
        revoke_on_member_removed: table.switch("revoke_on_member_removed", true),
    }
}

fn schedule(table: &Table<'_>) -> Schedule {
    table.only(&["cycle", "full_read", "backup"]);
    let cron = |key: &str, default: &str| {
        let given = table.parsed(key, CRON, |text| is_cron(text).then(|| text.to_owned()));
        given.unwrap_or_else(|| default.to_owned())
    };
    Schedule {
        cycle: cron("cycle", "* * * * *"),
        full_read: cron("full_read", "30 3 * * *"),
        backup: cron("backup", "0 4 * * *"),
    }
}

fn is_cron(text: &str) -> bool {
    let parser = CronParser::builder().seconds(Seconds::Disallowed).build();
    text.split_whitespace().count() == 5 && parser.parse(text).is_ok()
}

fn homes(table: &Table<'_>) -> Homes {
    table.only(&["socket", "prefixes", "deadline"]);
    let given = table.texts("prefixes");
    let given = given.unwrap_or_else(|| ["/data/project", "/home"].map(str::to_owned).to_vec());
    let prefixes = given.iter().filter_map(|text| {
        let path = absolute(text).filter(|path| path.parent().is_some());
        if path.is_none() {
            table.wrong("prefixes", format!("{text:?} is not an absolute path beneath /; for example \"/home\""));
        }
        path
    });
    let prefixes = prefixes.collect();
    let deadline = table.duration("deadline", Duration::from_secs(10));
    if deadline.is_zero() {
        table.wrong("deadline", "0 leaves no time; for example \"10s\"");
    }
    let socket = table.parsed("socket", ValueKind(SOCKET, "\"/run/bursar/homed.sock\""), socket_path);
    Homes { socket: socket.unwrap_or_else(|| PathBuf::from("/run/bursar/homed.sock")), deadline, prefixes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cron_expressions_have_five_fields() {
        assert!(is_cron("* * * * *") && is_cron("*/5 3 * * 1-5"));
        for wrong in ["", "* * * *", "0 * * * * *", "@daily", "61 * * * *", "a b c d e"] {
            assert!(!is_cron(wrong), "{wrong}");
        }
    }
}
