//! What a realm is asked and told as a target: its users, and the roles of one client with their holders. It decides
//! nothing; every method is one request, or one list.

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

/// See the module.
#[derive(Debug)]
pub struct Administration {
    session: Session,
    client_id: String,
    /// Internal id of the client whose roles are kept; looked up once.
    client: Option<String>,
}

const MANAGE_USERS: &str = "manage-users";
const VIEW_USERS: &str = "view-users";
const VIEW_CLIENTS: &str = "view-clients";
const MANAGE_CLIENTS: &str = "manage-clients";

impl Administration {
    /// Reaches nothing yet.
    pub fn new(config: &KeycloakConfig) -> Result<Self, RealmError> {
        Ok(Self { session: Session::new(config)?, client_id: config.client_id.clone(), client: None })
    }

    /// Requests since the last call, by verb.
    pub fn counted(&mut self) -> BTreeMap<&'static str, u64> {
        self.session.counted()
    }

    /// Roles of `realm-management` that our service account has; `None`: the token does not say.
    pub async fn rights(&mut self) -> Result<Option<Vec<String>>, RealmError> {
        self.session.roles().await
    }

    /// Everybody but service accounts.
    pub async fn users(&mut self) -> Result<Vec<RealmUser>, RealmError> {
        let mut users = Vec::new();
        let listed = self.session.list(&["users"], &BRIEF, |user| users.push(user)).await;
        self.lacks(VIEW_USERS, listed)?;
        Ok(users)
    }

    /// The user with exactly this name.
    pub async fn user(&mut self, username: &str) -> Result<Option<RealmUser>, RealmError> {
        let query = [("username", username), ("exact", "true"), BRIEF[0]];
        let found = self.session.get::<Vec<RealmUser>>(&["users"], &query).await;
        Ok(self.lacks(VIEW_USERS, found)?.into_iter().next())
    }

    /// Makes a user; answers with the id, if the answer has it: proxies leave `Location` out.
    pub async fn create(&mut self, user: &Value) -> Result<Option<String>, RealmError> {
        let made = self.session.tell(Method::POST, &["users"], Some(user)).await;
        let at = self.lacks(MANAGE_USERS, made)?;
        Ok(at.and_then(|at| Some(at.rsplit_once("/users/")?.1.to_owned())).filter(|id| !id.is_empty()))
    }

    /// Changes what `fields` names of a user, and nothing else.
    pub async fn change(&mut self, id: &str, fields: &Value) -> Result<(), RealmError> {
        let told = self.session.tell(Method::PUT, &["users", id], Some(fields)).await;
        self.lacks(MANAGE_USERS, told).map(drop)
    }

    /// Has a mail sent that asks a user for these required actions. Success: the mail server took it.
    pub async fn mail(&mut self, id: &str, actions: &[String]) -> Result<(), RealmError> {
        let told = self.session.tell(Method::PUT, &["users", id, "execute-actions-email"], Some(&json!(actions))).await;
        self.lacks(MANAGE_USERS, told).map(drop)
    }

    /// The client's roles whose names begin with `prefix`.
    pub async fn roles(&mut self, client: &str, prefix: &str) -> Result<Vec<RealmRole>, RealmError> {
        let client = self.client(client).await?;
        let mut roles: Vec<RealmRole> = Vec::new();
        let query = [("search", prefix), BRIEF[0]];
        let listed = self.session.list(&["clients", &client, "roles"], &query, |role| roles.push(role)).await;
        self.lacks(VIEW_CLIENTS, listed)?;
        roles.retain(|role| role.name.starts_with(prefix));
        Ok(roles)
    }

    /// Ids of those to whom a role was given itself; who has it by a group is not among them.
    pub async fn holders(&mut self, client: &str, role: &str) -> Result<Vec<String>, RealmError> {
        let client = self.client(client).await?;
        let mut holders = Vec::new();
        let path = ["clients", client.as_str(), "roles", role, "users"];
        let listed = self.session.list(&path, &BRIEF, |member: Member| holders.push(member.id)).await;
        self.lacks(VIEW_CLIENTS, listed)?;
        Ok(holders)
    }

    /// Makes a role and gives it, as it is known from now on.
    pub async fn make_role(&mut self, client: &str, name: &str) -> Result<RealmRole, RealmError> {
        let client = self.client(client).await?;
        let role = json!({"name": name, "description": "kept by Bursar"});
        let told = self.session.tell(Method::POST, &["clients", &client, "roles"], Some(&role)).await;
        match self.lacks(MANAGE_CLIENTS, told) {
            // Made meanwhile: the name is ours.
            Err(RealmError::Answer { status, .. }) if status.as_u16() == 409 => {}
            told => drop(told?),
        }
        let made = self.session.get(&["clients", &client, "roles", name], &[]).await;
        self.lacks(VIEW_CLIENTS, made)
    }

    /// Removes a role, and with it what was given of it.
    pub async fn remove_role(&mut self, client: &str, name: &str) -> Result<(), RealmError> {
        let client = self.client(client).await?;
        let told = self.session.tell(Method::DELETE, &["clients", &client, "roles", name], None).await;
        self.lacks(MANAGE_CLIENTS, told).map(drop)
    }

    /// Gives a user roles, in one request.
    pub async fn assign(&mut self, client: &str, user: &str, roles: &[RealmRole]) -> Result<(), RealmError> {
        self.map(Method::POST, client, user, roles).await
    }

    /// Takes roles from a user, in one request.
    pub async fn unassign(&mut self, client: &str, user: &str, roles: &[RealmRole]) -> Result<(), RealmError> {
        self.map(Method::DELETE, client, user, roles).await
    }

    async fn map(&mut self, method: Method, client: &str, user: &str, roles: &[RealmRole]) -> Result<(), RealmError> {
        let client = self.client(client).await?;
        let path = ["users", user, "role-mappings", "clients", client.as_str()];
        let told = self.session.tell(method, &path, Some(&json!(roles))).await;
        self.lacks(MANAGE_USERS, told).map(drop)
    }

    /// The id of a client.
    async fn client(&mut self, name: &str) -> Result<String, RealmError> {
        if let Some(id) = &self.client {
            return Ok(id.clone());
        }
        let found = self.session.get::<Vec<Client>>(&["clients"], &[("clientId", name)]).await;
        let found = self.lacks(VIEW_CLIENTS, found)?.into_iter().next();
        let id = found.ok_or_else(|| RealmError::NoClient(name.to_owned()))?.id;
        self.client = Some(id.clone());
        Ok(id)
    }

    /// A refusal names the role that would do.
    fn lacks<T>(&self, role: &'static str, answer: Result<T, RealmError>) -> Result<T, RealmError> {
        answer.map_err(|error| match error {
            RealmError::Forbidden { what, status, why, .. } => {
                RealmError::Lacks { what, client: self.client_id.clone(), status, why, role }
            }
            other => other,
        })
    }
}
