//! Reads and changes a realm that is a target: its users, and the roles of one client with their holders. Decides
//! nothing: each method reads something, or makes one change.

use std::collections::BTreeMap;

use bursar_core::inventory::realm::{RealmRole, RealmUser};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Listed;
use super::config::KeycloakConfig;
use super::session::{RealmError, Session};
use super::{BRIEF, Member};

impl Listed for RealmUser {
    const WHAT: &'static str = "users";
    fn id(&self) -> &str {
        &self.id
    }
}

impl Listed for RealmRole {
    const WHAT: &'static str = "roles of a client";
    fn id(&self) -> &str {
        &self.id
    }
}

#[derive(Deserialize)]
struct Client {
    id: String,
}

/// The administration API of one realm.
#[derive(Debug)]
pub struct Administration {
    session: Session,
    client_id: String,
    /// The name and the internal id of the client that owns the roles. The id is looked up once.
    client: Option<(String, String)>,
}

const MANAGE_USERS: &str = "manage-users";
const VIEW_USERS: &str = "view-users";
const VIEW_CLIENTS: &str = "view-clients";
const MANAGE_CLIENTS: &str = "manage-clients";

impl Administration {
    /// Makes a session without connecting to the realm.
    pub fn new(config: &KeycloakConfig) -> Result<Self, RealmError> {
        Ok(Self { session: Session::new(config)?, client_id: config.client_id.clone(), client: None })
    }

    /// Returns the number of requests since the last call, by verb.
    pub fn counted(&mut self) -> BTreeMap<&'static str, u64> {
        self.session.counted()
    }

    /// Returns the roles of `realm-management` that Bursar's service account has; `None` if the token has no roles.
    pub async fn rights(&mut self) -> Result<Option<Vec<String>>, RealmError> {
        self.session.roles().await
    }

    /// Returns all users except service accounts.
    pub async fn users(&mut self) -> Result<Vec<RealmUser>, RealmError> {
        let mut users = Vec::new();
        let listed = self.session.list(&["users"], &BRIEF, |user| users.push(user)).await;
        self.lacks(VIEW_USERS, listed)?;
        Ok(users)
    }

    /// Returns the user with exactly this name.
    pub async fn user(&mut self, username: &str) -> Result<Option<RealmUser>, RealmError> {
        let query = [("username", username), ("exact", "true"), BRIEF[0]];
        let found = self.session.get::<Vec<RealmUser>>(&["users"], &query).await;
        Ok(self.lacks(VIEW_USERS, found)?.into_iter().next())
    }

    /// Creates a user. Returns the id if the answer contains it; some proxies remove the header `Location`.
    pub async fn create(&mut self, user: &Value) -> Result<Option<String>, RealmError> {
        let made = self.session.tell(Method::POST, &["users"], Some(user)).await;
        let at = self.lacks(MANAGE_USERS, made)?;
        Ok(at.and_then(|at| Some(at.rsplit_once("/users/")?.1.to_owned())).filter(|id| !id.is_empty()))
    }

    /// Changes the given `fields` of a user, and nothing else.
    pub async fn change(&mut self, id: &str, fields: &Value) -> Result<(), RealmError> {
        let told = self.session.tell(Method::PUT, &["users", id], Some(fields)).await;
        self.lacks(MANAGE_USERS, told).map(drop)
    }

    /// Makes Keycloak send a mail that asks the user to perform `actions`. Success means that the mail server accepted
    /// it.
    pub async fn mail(&mut self, id: &str, actions: &[String]) -> Result<(), RealmError> {
        let told = self.session.tell(Method::PUT, &["users", id, "execute-actions-email"], Some(&json!(actions))).await;
        self.lacks(MANAGE_USERS, told).map(drop)
    }

    /// Returns the client's roles whose names begin with `prefix`.
    pub async fn roles(&mut self, client: &str, prefix: &str) -> Result<Vec<RealmRole>, RealmError> {
        let client = self.client(client).await?;
        let mut roles: Vec<RealmRole> = Vec::new();
        let query = [("search", prefix), BRIEF[0]];
        let listed = self.session.list(&["clients", &client, "roles"], &query, |role| roles.push(role)).await;
        self.lacks(VIEW_CLIENTS, listed)?;
        roles.retain(|role| role.name.starts_with(prefix));
        Ok(roles)
    }

    /// Returns the ids of users who have the role directly. Users who have it through a group are not included.
    pub async fn holders(&mut self, client: &str, role: &str) -> Result<Vec<String>, RealmError> {
        let client = self.client(client).await?;
        let mut holders = Vec::new();
        let path = ["clients", client.as_str(), "roles", role, "users"];
        let listed = self.session.list(&path, &BRIEF, |member: Member| holders.push(member.id)).await;
        self.lacks(VIEW_CLIENTS, listed)?;
        Ok(holders)
    }

    /// Creates a role, and returns it as the realm now shows it.
    pub async fn make_role(&mut self, client: &str, name: &str) -> Result<RealmRole, RealmError> {
        let client = self.client(client).await?;
        let role = json!({"name": name, "description": "kept by Bursar"});
        let told = self.session.tell(Method::POST, &["clients", &client, "roles"], Some(&role)).await;
        match self.lacks(MANAGE_CLIENTS, told) {
            // Another request has created the role meanwhile. That is harmless, because the name belongs to Bursar.
            Err(RealmError::Answer { status, .. }) if status.as_u16() == 409 => {}
            told => drop(told?),
        }
        let made = self.session.get(&["clients", &client, "roles", name], &[]).await;
        self.lacks(VIEW_CLIENTS, made)
    }

    /// Deletes a role, and with it all its assignments.
    pub async fn remove_role(&mut self, client: &str, name: &str) -> Result<(), RealmError> {
        let client = self.client(client).await?;
        let told = self.session.tell(Method::DELETE, &["clients", &client, "roles", name], None).await;
        self.lacks(MANAGE_CLIENTS, told).map(drop)
    }

    /// Assigns roles to a user, in one request.
    pub async fn assign(&mut self, client: &str, user: &str, roles: &[RealmRole]) -> Result<(), RealmError> {
        self.map(Method::POST, client, user, roles).await
    }

    /// Removes roles from a user, in one request.
    pub async fn unassign(&mut self, client: &str, user: &str, roles: &[RealmRole]) -> Result<(), RealmError> {
        self.map(Method::DELETE, client, user, roles).await
    }

    async fn map(&mut self, method: Method, client: &str, user: &str, roles: &[RealmRole]) -> Result<(), RealmError> {
        let client = self.client(client).await?;
        let path = ["users", user, "role-mappings", "clients", client.as_str()];
        let told = self.session.tell(method, &path, Some(&json!(roles))).await;
        self.lacks(MANAGE_USERS, told).map(drop)
    }

    /// Returns the internal id of a client.
    async fn client(&mut self, name: &str) -> Result<String, RealmError> {
        if let Some((known, id)) = &self.client
            && known == name
        {
            return Ok(id.clone());
        }
        let found = self.session.get::<Vec<Client>>(&["clients"], &[("clientId", name)]).await;
        let found = self.lacks(VIEW_CLIENTS, found)?.into_iter().next();
        let id = found.ok_or_else(|| RealmError::NoClient(name.to_owned()))?.id;
        self.client = Some((name.to_owned(), id.clone()));
        Ok(id)
    }

    /// Turns a refusal into an error that names the missing role.
    fn lacks<T>(&self, role: &'static str, answer: Result<T, RealmError>) -> Result<T, RealmError> {
        answer.map_err(|error| match error {
            RealmError::Forbidden { what, status, why, .. } => {
                RealmError::Lacks { what, client: self.client_id.clone(), status, why, role }
            }
            other => other,
        })
    }
}
