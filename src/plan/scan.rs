//! Which tenants need a look: one walk along what the ledger and the clusters hold, both sorted. PURE: no runtime, no
//! client, no file system, no clock.
//!
//! With 10,000 tenants and nothing to do, this walk is the whole plan of objects. What it calls settled, the closer
//! look of `tenant` would find nothing for; a property test holds the two together.

use std::collections::{BTreeMap, HashMap};

use crate::desired::{DesiredState, DesiredTenant};
use crate::identity::{AccountId, ClusterName};
use crate::ledger::{LedgerState, ObjectKey};
use crate::observed::{ClusterInventory, Inventory};

/// A tenant's place: whose, and where.
type PlaceKey<'a> = (&'a AccountId, &'a ClusterName);

/// What the walk found.
#[derive(Debug, Default)]
pub(super) struct Scan<'a> {
    /// How many objects of each tenant are as they should be.
    settled: HashMap<PlaceKey<'a>, usize>,
    /// What the ledger knows of an account and nobody wants any more, in clusters that answer.
    orphans: BTreeMap<PlaceKey<'a>, Vec<&'a ObjectKey>>,
}

impl<'a> Scan<'a> {
    pub(super) fn of(desired: &DesiredState, ledger: &'a LedgerState, inventory: &Inventory) -> Self {
        let mut scan = Self::default();
        let places: HashMap<PlaceKey<'_>, &DesiredTenant> = desired
            .accounts
            .iter()
            .flat_map(|(id, account)| account.clusters.iter().map(move |(cluster, tenant)| ((id, cluster), tenant)))
            .collect();
        let nothing = ClusterInventory::default();
        let mut walk = nothing.objects.iter().peekable();
        let mut cluster: Option<&ClusterName> = None;
        for (key, record) in &ledger.objects {
            if cluster != Some(&key.cluster) {
                cluster = Some(&key.cluster);
                let there = inventory.clusters.get(&key.cluster).map_or(&nothing, AsRef::as_ref);
                walk = there.objects.iter().peekable();
            }
            while walk.next_if(|(there, _)| *there < key).is_some() {}
            let found = walk.next_if(|(there, _)| *there == key).map(|(_, found)| found);
            let Some(place) = places.get(&(&record.account, &key.cluster)) else { continue };
            match (place.objects.get(key), found) {
                (None, _) => scan.orphans.entry((&record.account, &key.cluster)).or_default().push(key),
                (Some(wanted), Some(found)) if super::tenant::is_settled(wanted, record, found) => {
                    *scan.settled.entry((&record.account, &key.cluster)).or_default() += 1;
                }
                (Some(_), _) => {}
            }
        }
        scan
    }

    /// Every object is as it should be, and none is too many.
    pub(super) fn is_settled(&self, account: &AccountId, cluster: &ClusterName, tenant: &DesiredTenant) -> bool {
        self.settled.get(&(account, cluster)).copied().unwrap_or_default() == tenant.objects.len()
            && self.orphans(account, cluster).is_empty()
    }

    pub(super) fn orphans<'s>(&'s self, account: &'s AccountId, cluster: &'s ClusterName) -> &'s [&'s ObjectKey] {
        self.orphans.get(&(account, cluster)).map_or(&[], Vec::as_slice)
    }
}
