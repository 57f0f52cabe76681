//! Reads the users and roles of a Keycloak realm.

use std::collections::{BTreeMap, BTreeSet};

use bursar_directory::keycloak::{Administration, RealmError};

use crate::inventory::realm::{Holders, RealmInventory};
use crate::plan::realm::PREFIX;

/// Reads the users, and the holders of each role of `known` that exists.
pub async fn read(
    realm: &mut Administration,
    client: Option<&str>,
    known: &BTreeSet<String>,
) -> Result<RealmInventory, RealmError> {
    let users = realm.users().await?.into_iter().map(|user| (user.id.clone(), user)).collect();
    let mut roles = BTreeMap::new();
    if let Some(client) = client {
        for role in realm.roles(client, PREFIX).await?.into_iter().filter(|role| known.contains(&role.name)) {
            let holders = realm.holders(client, &role.name).await?.into_iter().collect();
            roles.insert(role.name, Holders { id: role.id, holders });
        }
    }
    Ok(RealmInventory { users, roles })
}
