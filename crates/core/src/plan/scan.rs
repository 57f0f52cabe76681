//! Finds the tenants whose objects have to be compared, in one pass over the sorted objects of the ledger and of the
//! clusters.
//!
//! With 10,000 tenants and nothing to do, this pass is the only work on objects. For a tenant that this pass finds
//! settled, `tenant` would find nothing to do; a property test checks that the two agree.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::iter::Peekable;

use foldhash::{HashMap, HashMapExt as _, HashSet};
use jiff::Timestamp;

use super::unknown::Strays;
use crate::desired::{DesiredObject, DesiredState, DesiredTenant};
use crate::identity::{AccountId, ClusterName};
use crate::inventory::quota::ObservedQuota;
use crate::inventory::{ClusterInventory, Inventory, ObservedObject};
use crate::kinds::ObjectKey;
use crate::ledger::LedgerState;
use crate::policy::Policy;

/// A tenant: an account in a cluster.
type PlaceKey<'a> = (&'a AccountId, &'a ClusterName);

/// The result of the pass.
#[derive(Debug, Default)]
pub(super) struct Scan<'a> {
    /// Tenants without an object that needs a write.
    settled: HashSet<PlaceKey<'a>>,
    /// Objects in the ledger that are no longer desired, in clusters that answer.
    orphans: BTreeMap<PlaceKey<'a>, Vec<&'a ObjectKey>>,
    /// All objects that the ledger has for accounts with an alternative, because the alternative may desire fewer
    /// objects.
    known: BTreeMap<PlaceKey<'a>, Vec<&'a ObjectKey>>,
    quotas: Vec<QuotaInUse<'a>>,
    /// Accounts with an object that has to be written, but whose manifest was not derived.
    lacking: BTreeSet<AccountId>,
    strays: Strays<'a>,
}

/// A quota of which something is in use: account, key, desired object, observed quota.
type QuotaInUse<'a> = (&'a AccountId, &'a ObjectKey, &'a DesiredObject, &'a ObservedQuota);

/// The state of one tenant during the pass.
#[derive(Debug)]
struct TenantScan<'a> {
    /// The desired objects that the pass has not reached yet.
    ahead: Walk<btree_map::Iter<'a, ObjectKey, DesiredObject>>,
    /// The number of desired objects.
    objects: usize,
    /// The number of desired objects that need no write.
    settled: usize,
    /// Whether the account has an alternative.
    has_alternative: bool,
}

impl<'a> Scan<'a> {
    pub(super) fn of(
        desired: &'a DesiredState,
        ledger: &'a LedgerState,
        inventory: &'a Inventory,
        policy: &'a Policy,
        now: Timestamp,
    ) -> Self {
        let mut places: BTreeMap<&ClusterName, HashMap<&AccountId, TenantScan<'_>>> = BTreeMap::new();
        for (id, account) in &desired.accounts {
            for (cluster, tenant) in &account.clusters {
                let (ahead, objects) = (Walk::along(&tenant.objects), tenant.objects.len());
                let has_alternative = account.otherwise.is_some();
                places
                    .entry(cluster)
                    .or_default()
                    .insert(id, TenantScan { ahead, objects, settled: 0, has_alternative });
            }
        }
        let mut orphans: BTreeMap<PlaceKey<'_>, Vec<&ObjectKey>> = BTreeMap::new();
        let mut known: BTreeMap<PlaceKey<'_>, Vec<&ObjectKey>> = BTreeMap::new();
        let mut quotas = Vec::new();
        let mut there: Option<(&ClusterName, Option<(Walk<_>, &ClusterInventory)>)> = None;
        let (mut passed, mut walked) = (Vec::new(), BTreeSet::new());
        let (mut in_cluster, mut nowhere) = (None, HashMap::new());
        for (key, record) in &ledger.objects {
            if there.as_ref().is_none_or(|(cluster, _)| **cluster != key.cluster) {
                passed.extend(there.take().and_then(|(_, walk)| walk).into_iter().flat_map(|(walk, _)| walk.passed()));
                walked.insert(&key.cluster);
                let cluster = inventory.clusters.get(&key.cluster);
                let walk = cluster.map(|cluster| (Walk::noting(&cluster.objects), &**cluster));
                there = Some((&key.cluster, walk));
                in_cluster = places.get_mut(&key.cluster);
            }
            let Some((_, Some((walk, shown)))) = &mut there else { continue };
            let found = walk.reach(key);
            let Some(progress) = in_cluster.as_deref_mut().unwrap_or(&mut nowhere).get_mut(&record.account) else {
                continue;
            };
            if progress.has_alternative {
                known.entry((&record.account, &key.cluster)).or_default().push(key);
            }
            match progress.ahead.reach(key) {
                None => orphans.entry((&record.account, &key.cluster)).or_default().push(key),
                Some(wanted) => {
                    if let Some(quota) = found.and_then(ObservedObject::quota) {
                        quotas.push((&record.account, key, wanted, quota));
                    }
                    let settled = super::tenant::is_as_wanted(shown, key, wanted, record, found);
                    progress.settled += usize::from(settled);
                }
            }
        }
        passed.extend(there.and_then(|(_, walk)| walk).into_iter().flat_map(|(walk, _)| walk.passed()));
        let others = inventory.clusters.iter().filter(|(cluster, _)| !walked.contains(cluster));
        passed.extend(others.flat_map(|(_, cluster)| &cluster.objects));
        let strays = Strays::of(passed, desired, ledger, inventory, policy, now);
        let places = places
            .into_iter()
            .flat_map(|(cluster, places)| places.into_iter().map(move |(id, progress)| ((id, cluster), progress)));
        let (settled, others): (Vec<_>, Vec<_>) = places.partition(|(_, it)| it.settled == it.objects);
        let lacks = |(id, cluster): PlaceKey<'_>| {
            let mut objects = desired.accounts[id].clusters[cluster].objects.values();
            inventory.clusters.contains_key(cluster) && objects.any(|object| object.manifest.is_none())
        };
        let lacking = others.into_iter().filter(|(place, _)| lacks(*place)).map(|((id, _), _)| id.clone()).collect();
        let settled =
            settled.into_iter().map(|(place, _)| place).filter(|place| !orphans.contains_key(place)).collect();
        Self { settled, orphans, known, quotas, lacking, strays }
    }

    /// Like [`Scan::of`], for the accounts in `desired` only, all with their manifests. `objects` returns an account's
    /// objects in the ledger, sorted.
    pub(super) fn among<'k>(
        desired: &'a DesiredState,
        ledger: &'a LedgerState,
        inventory: &'a Inventory,
        objects: impl Fn(&AccountId) -> &'k [ObjectKey],
    ) -> Self {
        let mut scan = Self::default();
        for (id, account) in &desired.accounts {
            let mut settled: BTreeMap<&ClusterName, usize> = account.clusters.keys().map(|it| (it, 0)).collect();
            for (key, record) in objects(id).iter().filter_map(|key| ledger.objects.get_key_value(key)) {
                let tenant = account.clusters.get_key_value(&key.cluster);
                let Some(((cluster, tenant), there)) = tenant.zip(inventory.clusters.get(&key.cluster)) else {
                    continue;
                };
                if account.otherwise.is_some() {
                    scan.known.entry((id, cluster)).or_default().push(key);
                }
                let Some(wanted) = tenant.objects.get(key) else {
                    scan.orphans.entry((id, cluster)).or_default().push(key);
                    continue;
                };
                let found = there.objects.get(key);
                scan.quotas.extend(found.and_then(ObservedObject::quota).map(|quota| (id, key, wanted, quota)));
                let is_settled = super::tenant::is_as_wanted(there, key, wanted, record, found);
                settled.entry(cluster).and_modify(|count| *count += usize::from(is_settled));
            }
            let all = account.clusters.iter().filter(|(cluster, tenant)| {
                settled[*cluster] == tenant.objects.len() && !scan.orphans.contains_key(&(id, *cluster))
            });
            scan.settled.extend(all.map(|(cluster, _)| (id, cluster)));
        }
        scan
    }

    /// Returns the accounts that cannot be planned for until their manifests are derived.
    pub(super) fn lacking(&self) -> &BTreeSet<AccountId> {
        &self.lacking
    }

    /// Whether no object of the tenant needs a write or a deletion.
    pub(super) fn is_settled(&self, account: &AccountId, cluster: &ClusterName) -> bool {
        self.settled.contains(&(account, cluster))
    }

    /// Returns the objects with our label that are not in the ledger.
    pub(super) const fn strays(&self) -> &Strays<'a> {
        &self.strays
    }

    /// Returns the quotas of which something is in use, or that were edited.
    pub(super) fn quotas(&self) -> &[QuotaInUse<'a>] {
        &self.quotas
    }

    /// Returns the account's objects in this cluster that the ledger has and `tenant` does not desire.
    pub(super) fn orphans<'s>(
        &'s self,
        (account, cluster): (&'s AccountId, &'s ClusterName),
        tenant: &'s DesiredTenant,
    ) -> impl Iterator<Item = &'s ObjectKey> {
        let place = (account, cluster);
        let keys = self.known.get(&place).or_else(|| self.orphans.get(&place));
        keys.into_iter().flatten().copied().filter(|key| !tenant.objects.contains_key(key))
    }
}

/// An iteration over a sorted map, in step with another sorted map.
#[derive(Debug)]
struct Walk<I: Iterator> {
    ahead: Peekable<I>,
    /// The entries that were skipped; `None` if they are not collected.
    passed: Option<Vec<I::Item>>,
}

impl<'a, V: 'a, I: Iterator<Item = (&'a ObjectKey, &'a V)>> Walk<I> {
    fn along(map: impl IntoIterator<IntoIter = I, Item = I::Item>) -> Self {
        Self { ahead: map.into_iter().peekable(), passed: None }
    }

    /// Like [`Walk::along`], but collects the entries that are skipped.
    fn noting(map: impl IntoIterator<IntoIter = I, Item = I::Item>) -> Self {
        Self { passed: Some(Vec::new()), ..Self::along(map) }
    }

    /// Returns the collected entries, and the entries that were not reached.
    fn passed(self) -> impl Iterator<Item = (&'a ObjectKey, &'a V)> {
        self.passed.into_iter().flatten().chain(self.ahead)
    }

    /// Returns the value at `key`, which must be higher than every key asked for before.
    fn reach(&mut self, key: &ObjectKey) -> Option<&'a V> {
        while let Some((at, _)) = self.ahead.peek() {
            // The keys are nearly always equal, and a test for equality is faster than `cmp`.
            match if *at == key { Ordering::Equal } else { (*at).cmp(key) } {
                Ordering::Less => {
                    let passed = self.ahead.next();
                    if let Some(noted) = &mut self.passed {
                        noted.extend(passed);
                    }
                }
                Ordering::Equal => return self.ahead.next().map(|(_, value)| value),
                Ordering::Greater => return None,
            }
        }
        None
    }
}
