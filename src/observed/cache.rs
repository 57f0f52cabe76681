//! Merges what a cluster's watches report and what the API server answers to Bursar's own writes into one inventory.
//! Whichever comes first, an older state never replaces a newer one, and Bursar's own writes are not drift.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::contract::{KEEP, LAST_USE, MANAGER};
use crate::digest::managed_digest;
use crate::identity::ClusterName;
use crate::inventory::repairs::Repairs;
use crate::inventory::{ClusterInventory, ObservedObject, Rare};
use crate::kinds::{Data, Detail, ManagedKind, ObjectKey, ObjectKind, Stage, WatchedKind};
use crate::packed_text::UuidText;

/// The objects of one cluster that have our label, updated by events.
///
/// Methods that apply an event return whether the plan must know about it: whether anything changed other than by our
/// own writes.
#[derive(Debug)]
pub struct Cache {
    cluster: ClusterName,
    inventory: Arc<ClusterInventory>,
    /// Keys of the ledger for objects that were not seen yet. They are reused, so that each key is in memory only once.
    keys: BTreeSet<ObjectKey>,
    /// The few objects that are being written, each with whether a watch reported a change since the write began.
    writing: BTreeMap<ObjectKey, bool>,
    /// The answers to Bursar's writes since the lists in progress began. A list may be older than these answers.
    written_while_listing: BTreeMap<ObjectKey, ObservedObject>,
    /// The kinds that are being listed.
    listing: BTreeSet<WatchedKind>,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(cluster: ClusterName) -> Self {
        Self {
            cluster,
            inventory: Arc::default(),
            keys: BTreeSet::new(),
            writing: BTreeMap::new(),
            written_while_listing: BTreeMap::new(),
            listing: BTreeSet::new(),
        }
    }

    /// Objects that are found from now on use the equal key in `keys`, if there is one.
    pub fn share(&mut self, keys: BTreeSet<ObjectKey>) {
        self.keys = keys;
    }

    /// Returns the current inventory. If the caller keeps it, the next change copies it once.
    #[must_use]
    pub fn inventory(&self) -> Arc<ClusterInventory> {
        Arc::clone(&self.inventory)
    }

    /// Sets the kinds that cannot be watched.
    pub fn blind(&mut self, kinds: BTreeSet<WatchedKind>) -> bool {
        let news = self.inventory.blind != kinds;
        if news {
            Arc::make_mut(&mut self.inventory).blind = kinds;
        }
        news
    }

    /// Records an object that a watch reported. Returns whether the news comes from somebody else.
    pub fn seen(&mut self, key: &ObjectKey, object: ObservedObject) -> bool {
        let news = self.put_newer(key, object);
        news && self.is_news_of_others(key)
    }

    /// Records that a watch reported the deletion of this object.
    pub fn gone(&mut self, key: &ObjectKey, uid: &UuidText) -> bool {
        // If the known object has another uid, it was created after the deleted one.
        let known = self.inventory.objects.get(key).is_some_and(|known| known.uid == *uid);
        if known {
            Arc::make_mut(&mut self.inventory).objects.remove(key);
        }
        known && self.is_news_of_others(key)
    }

    /// A list of all objects of a kind begins. If one is in progress, it is given up.
    pub fn list_begins(&mut self, scope: &WatchedKind) {
        self.listing.insert(scope.clone());
        self.written_while_listing.retain(|key, _| !is_in(scope, key));
    }

    /// Records a complete list. Only objects that were written since it began may be newer than the list. Everything
    /// else becomes as the list shows it, even if the cache has a higher `resourceVersion`: an etcd that was restored
    /// from a backup shows older states. Objects that the list lacks are removed, because a watch can miss deletions
    /// (410 Gone).
    pub fn listed(&mut self, scope: &WatchedKind, found: Vec<(ObjectKey, ObservedObject)>) -> bool {
        let names: BTreeSet<&ObjectKey> = found.iter().map(|(key, _)| key).collect();
        let missing: Vec<ObjectKey> = self
            .of_kind(scope)
            .filter(|key| !names.contains(key) && !self.written_while_listing.contains_key(key))
            .cloned()
            .collect();
        drop(names);
        let mut news = false;
        for key in missing {
            Arc::make_mut(&mut self.inventory).objects.remove(&key);
            news |= self.is_news_of_others(&key);
        }
        for (key, object) in found {
            let object = match self.written_while_listing.get(&key) {
                Some(answer) if is_older(&object, answer) => answer.clone(),
                _ => object,
            };
            news |= self.put(&key, object) && self.is_news_of_others(&key);
        }
        self.listing.remove(scope);
        if self.listing.is_empty() {
            self.written_while_listing.clear();
        }
        news
    }

    /// A write to an object begins. Until [`Self::write_ends`], a change that a watch reports may be this write.
    pub fn write_begins(&mut self, key: &ObjectKey) {
        self.writing.insert(key.clone(), false);
    }

    /// The server answered an apply with this object.
    pub fn applied(&mut self, key: &ObjectKey, object: &ObservedObject) {
        if !self.listing.is_empty() {
            self.written_while_listing.insert(key.clone(), object.clone());
        }
        self.put_newer(key, object.clone());
        // A watch may have been faster than the answer and have shown a later change by somebody else.
        let same = self.inventory.objects.get(key).is_some_and(|known| same_to_the_plan(known, object));
        if let Some(heard) = self.writing.get_mut(key) {
            *heard = !same;
        }
    }

    /// An object was applied again after somebody else changed or deleted it.
    pub fn repaired(&mut self, key: &ObjectKey, now: Timestamp) {
        let repairs = &mut Arc::make_mut(&mut self.inventory).repairs;
        // Finished conflicts are searched each time the number has doubled. If somebody deletes all objects of a cluster,
        // a search at each repair would take hours.
        if repairs.len().is_power_of_two() {
            repairs.retain(|_, repairs| !repairs.is_over(now));
        }
        repairs.insert(key.clone(), Repairs::after(repairs.get(key), now));
    }

    /// Forgets all repairs.
    pub fn forget_repairs(&mut self) {
        if !self.inventory.repairs.is_empty() {
            Arc::make_mut(&mut self.inventory).repairs.clear();
        }
    }

    /// The server accepted Bursar's deletion. `gone` is false if finalizers still hold the object.
    pub fn deleted(&mut self, key: &ObjectKey, gone: bool) {
        let objects = &mut Arc::make_mut(&mut self.inventory).objects;
        if gone {
            objects.remove(key);
        } else if let Some(known) = objects.get_mut(key) {
            known.deleting = true;
        }
        if let Some(heard) = self.writing.get_mut(key) {
            *heard = false;
        }
    }

    /// Records that a write ended, with or without an answer. Returns whether a watch reported a change by somebody
    /// else.
    pub fn write_ends(&mut self, key: &ObjectKey) -> bool {
        self.writing.remove(key).unwrap_or(false)
    }

    /// Whether a change comes from somebody else. While Bursar writes the object, the change is only noted, and
    /// [`Self::write_ends`] reports it.
    fn is_news_of_others(&mut self, key: &ObjectKey) -> bool {
        match self.writing.get_mut(key) {
            Some(heard) => {
                *heard = true;
                false
            }
            None => true,
        }
    }

    fn put_newer(&mut self, key: &ObjectKey, object: ObservedObject) -> bool {
        let is_older = self.inventory.objects.get(key).is_some_and(|known| is_older(&object, known));
        !is_older && self.put(key, object)
    }

    fn put(&mut self, key: &ObjectKey, object: ObservedObject) -> bool {
        let news = match self.inventory.objects.get(key) {
            Some(known) if *known == object => return false,
            Some(known) => !same_to_the_plan(known, &object),
            None => true,
        };
        let key = self.shared(key);
        Arc::make_mut(&mut self.inventory).objects.insert(key, object);
        news
    }

    /// Returns the equal key that the ledger or a write already holds, or else `key`.
    fn shared(&mut self, key: &ObjectKey) -> ObjectKey {
        let writing = || self.writing.get_key_value(key).map(|(key, _)| key.clone());
        self.keys.take(key).or_else(writing).unwrap_or_else(|| key.clone())
    }

    fn of_kind(&self, scope: &WatchedKind) -> impl Iterator<Item = &ObjectKey> {
        // Keys are sorted by cluster, apiVersion and kind first.
        let first = ObjectKey::new(&self.cluster, scope.kind.clone(), None, "");
        self.inventory
            .objects
            .range(first..)
            .map(|(key, _)| key)
            .take_while(|key| key.kind == scope.kind)
            .filter(|key| is_in(scope, key))
    }
}

/// Returns the part of an object that the inventory keeps.
#[must_use]
pub fn observe(kind: &ObjectKind, object: &Value) -> ObservedObject {
    let metadata = &object["metadata"];
    let of_namespace = |key| metadata["annotations"][key].as_str().filter(|_| *kind == ManagedKind::Namespace);
    ObservedObject {
        uid: metadata["uid"].as_str().unwrap_or_default().into(),
        resource_version: metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0),
        digest: if is_released(kind, object) { RELEASED.into() } else { managed_digest(object).into() },
        deleting: metadata["deletionTimestamp"].is_string(),
        spared: of_namespace(KEEP) == Some("true"),
        rare: Rare {
            last_use: of_namespace(LAST_USE).and_then(|text| text.parse().ok()),
            quota: match kind.detail() {
                Detail::QuotaHard => crate::inventory::quota::observe(object),
                Detail::None | Detail::Class | Detail::VolumeFixed | Detail::Subjects => None,
            },
            rival: rival(metadata),
            emptied: kind.stage() == Stage::Access
                && metadata["deletionTimestamp"].is_string()
                && object["subjects"].as_array().is_none_or(Vec::is_empty),
        }
        .if_any(),
    }
}

/// The last other field manager that wrote to the object. Writes to subresources such as `status` do not count.
fn rival(metadata: &Value) -> Option<String> {
    let entries = metadata["managedFields"].as_array().into_iter().flatten();
    let others = entries.filter(|entry| entry["manager"] != MANAGER && entry["subresource"].is_null());
    let last = others.max_by_key(|entry| entry["time"].as_str().unwrap_or_default())?;
    last["manager"].as_str().map(str::to_owned)
}

/// The digest of a volume that lost its claim. It differs from every record, so the plan applies the volume again,
/// which makes it available.
const RELEASED: &str = "released";

/// Whether a volume's claim was deleted. The volume then stays bound, and an ordinary apply does not change that.
#[must_use]
pub fn is_released(kind: &ObjectKind, object: &Value) -> bool {
    kind.data() == Data::Volume
        && object["status"]["phase"] == "Released"
        && object["spec"]["claimRef"]["uid"].is_string()
}

fn is_in(scope: &WatchedKind, key: &ObjectKey) -> bool {
    key.kind == scope.kind && scope.only.as_ref().is_none_or(|only| key.name == *only)
}

fn is_older(object: &ObservedObject, known: &ObservedObject) -> bool {
    object.resource_version != 0 && object.resource_version < known.resource_version
}

fn same_to_the_plan(one: &ObservedObject, other: &ObservedObject) -> bool {
    one.uid == other.uid && one.digest == other.digest && one.deleting == other.deleting
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(&ClusterName("prod".into()), ManagedKind::ResourceQuota, Some("tool-foo"), name)
    }

    fn object(resource_version: u64, digest: &str) -> ObservedObject {
        ObservedObject { uid: "u".into(), resource_version, digest: digest.into(), ..ObservedObject::default() }
    }

    #[test]
    fn the_rival_is_the_last_other_field_manager() {
        let entry = |manager: &str, minute: u8, subresource: Value| {
            json!({"manager": manager, "operation": "Update", "subresource": subresource,
                "time": format!("2026-05-03T12:{minute:02}:00Z")})
        };
        let object = json!({"metadata": {"managedFields": [
            entry("kubectl-edit", 1, Value::Null), entry("argocd", 2, Value::Null),
            entry("kube-controller-manager", 3, json!("status")), entry(MANAGER, 4, Value::Null),
        ]}});
        let observed = observe(&ManagedKind::NetworkPolicy.into(), &object);
        assert_eq!(observed.rival(), Some("argocd"));
        assert_eq!(observe(&ManagedKind::NetworkPolicy.into(), &json!({})).rival(), None);
    }

    #[test]
    fn repairs_are_counted_until_nobody_changes_the_object() {
        let (mut cache, now) = (cache(), "2026-05-03T12:00:00Z".parse::<Timestamp>().expect("the text is a time"));
        cache.repaired(&key("a"), now);
        cache.repaired(&key("a"), now);
        assert_eq!(cache.inventory().repairs[&key("a")].count, 2);
        cache.repaired(&key("b"), now + jiff::SignedDuration::from_hours(2));
        assert_eq!(cache.inventory().repairs.len(), 1, "a finished conflict is forgotten");
        cache.forget_repairs();
        assert!(cache.inventory().repairs.is_empty());
    }

    fn cache() -> Cache {
        Cache::new(ClusterName("prod".into()))
    }

    fn quotas() -> WatchedKind {
        ManagedKind::ResourceQuota.into()
    }

    #[test]
    fn the_cache_shares_the_keys_of_the_ledger_and_of_writes() {
        let (mut cache, known, written) = (cache(), key("a"), key("b"));
        cache.share(BTreeSet::from([known.clone()]));
        cache.write_begins(&written);
        for name in ["a", "b"] {
            cache.seen(&key(name), object(1, "same"));
        }
        let inventory = cache.inventory();
        let addresses: Vec<usize> = inventory.objects.keys().map(ObjectKey::address).collect();
        assert_eq!(addresses, [known.address(), written.address()]);
    }

    #[test]
    fn an_older_state_never_replaces_a_newer_one() {
        let mut cache = cache();
        assert!(cache.seen(&key("a"), object(2, "new")));
        assert!(!cache.seen(&key("a"), object(1, "old")));
        assert_eq!(cache.inventory().objects[&key("a")].digest, "new");
    }

    #[test]
    fn changes_that_no_plan_uses_start_no_cycle() {
        let mut cache = cache();
        cache.seen(&key("a"), object(1, "same"));
        assert!(!cache.seen(&key("a"), object(2, "same")));
        assert!(!cache.gone(&key("a"), &"an earlier uid".into()));
        assert!(cache.gone(&key("a"), &"u".into()));
    }

    #[test]
    fn our_own_write_is_not_reported_as_a_change() {
        for watch_first in [true, false] {
            let mut cache = cache();
            cache.write_begins(&key("a"));
            let mut news = false;
            if watch_first {
                news |= cache.seen(&key("a"), object(5, "ours"));
            }
            cache.applied(&key("a"), &object(5, "ours"));
            news |= cache.write_ends(&key("a"));
            news |= cache.seen(&key("a"), object(5, "ours"));
            assert!(!news, "watch first: {watch_first}");
        }
    }

    #[test]
    fn a_change_right_after_our_own_write_starts_a_cycle() {
        let mut cache = cache();
        cache.write_begins(&key("a"));
        assert!(
            !cache.seen(&key("a"), object(6, "theirs")),
            "a change during our write is reported when the write ends"
        );
        cache.applied(&key("a"), &object(5, "ours"));
        assert!(cache.write_ends(&key("a")));
        assert_eq!(cache.inventory().objects[&key("a")].digest, "theirs");
    }

    #[test]
    fn a_write_without_an_answer_reports_a_change_that_a_watch_saw() {
        let mut cache = cache();
        cache.write_begins(&key("a"));
        cache.seen(&key("a"), object(6, "theirs"));
        assert!(cache.write_ends(&key("a")));
    }

    #[test]
    fn a_complete_list_removes_missing_objects_except_newer_ones() {
        let mut cache = cache();
        cache.seen(&key("a"), object(1, "a"));
        cache.seen(&key("b"), object(2, "b"));
        cache.list_begins(&quotas());
        cache.write_begins(&key("c"));
        cache.applied(&key("c"), &object(9, "c"));
        cache.write_ends(&key("c"));
        assert!(cache.listed(&quotas(), vec![(key("a"), object(1, "a"))]));
        let names: Vec<String> = cache.inventory().objects.keys().map(|key| key.name.to_string()).collect();
        assert_eq!(names, ["a", "c"]);
        let other = WatchedKind { only: Some("z".to_owned()), ..quotas() };
        cache.list_begins(&other);
        assert!(!cache.listed(&other, Vec::new()));
        assert_eq!(cache.inventory().objects.len(), 2, "a list of one name removes no other objects");
    }

    /// The etcd behind the API server was restored from a backup.
    #[test]
    fn a_complete_list_replaces_a_state_with_a_higher_version() {
        let mut cache = cache();
        cache.seen(&key("a"), object(5, "revoked"));
        cache.list_begins(&quotas());
        assert!(cache.listed(&quotas(), vec![(key("a"), object(3, "restored"))]), "the plan has to know");
        assert_eq!(cache.inventory().objects[&key("a")].digest, "restored");
        // The repair has a lower version than the state before the restore, too.
        cache.write_begins(&key("a"));
        cache.applied(&key("a"), &object(4, "revoked"));
        assert!(!cache.write_ends(&key("a")));
        assert_eq!(cache.inventory().objects[&key("a")], object(4, "revoked"));
    }

    #[test]
    fn a_list_that_began_before_our_write_ended_is_older_than_its_answer() {
        let mut cache = cache();
        cache.seen(&key("a"), object(1, "before"));
        cache.list_begins(&quotas());
        cache.write_begins(&key("a"));
        cache.applied(&key("a"), &object(5, "ours"));
        cache.write_ends(&key("a"));
        assert!(!cache.listed(&quotas(), vec![(key("a"), object(1, "before"))]));
        assert_eq!(cache.inventory().objects[&key("a")], object(5, "ours"));
        // After a restore, the answer is newer than the list, although the cache had a higher version.
        cache.seen(&key("a"), object(9, "later"));
        cache.list_begins(&quotas());
        cache.applied(&key("a"), &object(4, "ours again"));
        cache.listed(&quotas(), vec![(key("a"), object(3, "restored"))]);
        assert_eq!(cache.inventory().objects[&key("a")], object(4, "ours again"));
        // A list that begins again after the write is newer than its answer.
        cache.list_begins(&quotas());
        cache.applied(&key("a"), &object(7, "ours"));
        cache.list_begins(&quotas());
        cache.listed(&quotas(), vec![(key("a"), object(2, "restored"))]);
        assert_eq!(cache.inventory().objects[&key("a")], object(2, "restored"));
    }

    #[test]
    fn a_released_volume_differs_from_every_record() {
        let kind = ManagedKind::PersistentVolume.into();
        let mut volume = serde_json::json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "spec": {"claimRef": {"name": "home", "uid": "gone"}},
            "status": {"phase": "Released"},
        });
        assert_eq!(observe(&kind, &volume).digest, RELEASED);
        volume["spec"]["claimRef"].as_object_mut().expect("claimRef is an object").remove("uid");
        assert_ne!(observe(&kind, &volume).digest, RELEASED);
        assert_eq!(observe(&kind, &volume).resource_version, 7);
    }
}
