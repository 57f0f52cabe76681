//! Reads the changes of an Active Directory from a domain controller: by `DirSync` ([`super::dirsync`]), or else by
//! `uSNChanged`, the controller's own count of changes (MS-ADTS 3.1.1.1.9).
//!
//! Both ways report only the ids of changed objects. Each of these objects is then requested as in a full read
//! ([`super::moved`]). Neither way reports objects that left a tree, that are in a moved container, or that became
//! visible to the bind account. Such objects are found by comparing the mirror with a list of all names. If a step
//! fails, the cache is kept unchanged, and everything is read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bursar_core::errors::chain;
use bursar_core::snapshot::dn::Dn;
use futures::FutureExt as _;
use ldap3::controls::{PagedResults, RawControl};
use ldap3::{Ldap, Scope, SearchResult};
use tokio::time::timeout;

use super::connection::{Connection, ReadError, search};
use super::dirsync::{self, Changed};
use super::moved;
use super::read_all;
use super::search::Search;
use crate::entry::assemble::{KINDS, RawRead};
use crate::entry::raw::RawEntry;
use crate::source::{LdapConfig, SourceConfig};
use crate::sync::kept::{Kept, Mark, ServerHistory};
use crate::sync::mirror::{Id, Mirror};

/// The identity of an object in a mirror.
pub(super) const ID: &str = "objectGUID";
/// The control that makes deleted objects visible to those who may see them (MS-ADTS 3.1.1.3.4.1.14).
const SHOW_DELETED: &str = "1.2.840.113556.1.4.417";
/// The well-known GUID of the container of deleted objects, which does not depend on its name (MS-ADTS 6.1.1.4).
const DELETED_OBJECTS: &str = "18e2ea80684f11d2b9aa00c04f79f805";
/// `FLAG_ATTR_NOT_REPLICATED` and `FLAG_ATTR_IS_CONSTRUCTED` (MS-ADTS 2.2.10): changes of such values are not reported.
const UNTOLD: i64 = 1 | 4;
/// Attributes that need no report of their changes, although the schema marks them as not replicated. They never
/// change, or change only together with the name, which is reported.
const TOLD_OTHERWISE: [&str; 2] = ["objectguid", "distinguishedname"];

/// Returns all objects as they are now: `kept` with the changes since then, or a first read if it is `None`; see
/// [`crate::sync::incremental`].
pub(super) async fn refresh(
    search: &mut Search<'_>,
    mut connection: Connection,
    config: &LdapConfig,
    source: &SourceConfig,
    kept: Option<&Kept>,
    history: &ServerHistory,
) -> Result<Kept, RawRead> {
    if let Some(kept) = kept {
        let advancing = advance(&mut connection.ldap, config, source, kept);
        match AssertUnwindSafe(advancing).catch_unwind().await.unwrap_or(Err(ReadError::Unparsable)) {
            Ok(Some((mark, mirror))) => {
                let _ = timeout(Duration::from_secs(1), connection.ldap.unbind()).await;
                let (server, marks) = (connection.server.clone(), connection.marks.clone());
                return Ok(Kept { asked: source.clone(), server, marks, behind: Vec::new(), mark, mirror });
            }
            Ok(None) => {
                tracing::info!(source = source.name, server = connection.server, "incremental reads start over");
            }
            Err(error) => connection = after(error, connection, search, config, source).await?,
        }
    }
    // The mark is taken before everything is read, so changes that happen meanwhile are reported in the next pass.
    let marking = mark(&mut connection.ldap, config, source);
    let mark = match AssertUnwindSafe(marking).catch_unwind().await.unwrap_or(Err(ReadError::Unparsable)) {
        Ok(mark) => mark,
        Err(error) => {
            connection = after(error, connection, search, config, source).await?;
            None
        }
    };
    let server = connection.server.clone();
    let read = read_all(connection, config, source, history).await;
    match (mark, Mirror::of(&read, id_of)) {
        (Some(mark), Some(mirror)) => {
            Ok(Kept { asked: source.clone(), server, marks: *read.marks, behind: Vec::new(), mark, mirror })
        }
        _ => Err(read),
    }
}

/// Returns a connection on which everything can be read, after reading the changes has failed.
async fn after(
    error: ReadError,
    mut connection: Connection,
    search: &mut Search<'_>,
    config: &LdapConfig,
    source: &SourceConfig,
) -> Result<Connection, RawRead> {
    let error = connection.diagnose(error).await;
    let (server, why) = (&connection.server, chain(&error));
    tracing::warn!(source = source.name, server, why, "cannot read changes; reading everything");
    if !error.ends_connection() {
        return Ok(connection);
    }
    search.again();
    search.open(config, source).await
}

/// Returns the id of an object.
pub(super) fn id_of(entry: &RawEntry) -> Option<Id> {
    entry.values(ID).next().filter(|id| id.len() == 16).map(<[u8]>::to_vec)
}

/// Returns the mark after which changes are reported; `None` if changes of some attributes that a source needs are not
/// reported.
async fn mark(ldap: &mut Ldap, config: &LdapConfig, source: &SourceConfig) -> Result<Option<Mark>, ReadError> {
    let Some(controller) = Controller::ask(ldap, config.timeout).await? else { return Ok(None) };
    let root = Dn::parse(&controller.root);
    let trees: Vec<_> = KINDS.into_iter().filter_map(|kind| source.tree(kind)).collect();
    let ours = source.attributes.id.eq_ignore_ascii_case(ID) && trees.iter().all(|tree| within(&tree.base, &root));
    let asked: BTreeSet<String> = asked(source);
    let filtered: BTreeSet<String> = trees.iter().flat_map(|tree| named(&tree.filter)).collect();
    let told = told(ldap, &controller.schema, asked.union(&filtered), config.timeout).await?;
    // If objectClass is missing, the schema is hidden from Bursar.
    let hidden = !told.contains_key("objectclass") || asked.iter().any(|name| told.get(name) == Some(&false));
    if !ours || hidden {
        tracing::info!(
            source = source.name,
            "the server does not report changes of some attributes; each cycle reads everything"
        );
        return Ok(None);
    }
    let by_usn = Mark::Usn { controller: controller.id.clone(), usn: controller.usn };
    if !controller.dirsync || !filtered.iter().all(|name| told.get(name) == Some(&true)) {
        return Ok(Some(by_usn));
    }
    match dirsync::now(ldap, &controller.root, config.timeout).await {
        Ok(cookie) => Ok(Some(Mark::DirSync { controller: controller.id, cookie })),
        Err(ReadError::Answer(why)) => {
            tracing::info!(source = source.name, why, "the server refuses DirSync; using uSNChanged instead");
            Ok(Some(by_usn))
        }
        Err(error) => Err(error),
    }
}

fn within(base: &str, root: &Dn) -> bool {
    Dn::parse(base).is_within(root)
}

/// Returns the state after `kept`; `None` if the server cannot report the changes since `kept`, so that everything must
/// be read again.
async fn advance(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    kept: &Kept,
) -> Result<Option<(Mark, Mirror)>, ReadError> {
    let Some(now) = Controller::ask(ldap, config.timeout).await? else { return Ok(None) };
    let (mark, mut changed, list, since) = match &kept.mark {
        Mark::DirSync { controller, cookie } if *controller == now.id => {
            let mut attributes = asked(source);
            attributes
                .extend(KINDS.into_iter().filter_map(|kind| source.tree(kind)).flat_map(|tree| named(&tree.filter)));
            attributes.extend(["name".to_owned(), "isdeleted".to_owned()]);
            let attributes: Vec<String> = attributes.into_iter().collect();
            let Changed { ids, moved, cookie } =
                dirsync::since(ldap, &now.root, &attributes, cookie, config.timeout).await?;
            let list = moved || !sees_deletions(ldap, &now.root, config.timeout).await?;
            (Mark::DirSync { controller: now.id, cookie }, ids, list, u64::MAX)
        }
        // A controller that was restored from a backup counts from an earlier number.
        Mark::Usn { controller, usn } if *controller == now.id && *usn <= now.usn => {
            (Mark::Usn { controller: now.id, usn: now.usn }, BTreeSet::new(), true, *usn)
        }
        _ => return Ok(None),
    };
    if list {
        changed.extend(moved::listed(ldap, config, source, &kept.mirror, since).await?);
    }
    let mirror = moved::follow(ldap, config, source, &kept.mirror, changed).await?;
    Ok(mirror.map(|mirror| (mark, mirror)))
}

/// Returns the attributes that a full read requests, in lower case.
fn asked(source: &SourceConfig) -> BTreeSet<String> {
    let kinds = KINDS.into_iter().filter(|kind| source.tree(*kind).is_some());
    kinds.flat_map(|kind| source.attributes.wanted(kind)).map(|name| name.to_lowercase()).collect()
}

/// Returns the attributes that `filter` (RFC 4515) names, in lower case.
fn named(filter: &str) -> BTreeSet<String> {
    let part = |text: &str| {
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))).unwrap_or(text.len());
        text[..end].to_lowercase()
    };
    // A parenthesis in a value is written as `\28`.
    filter.split('(').map(|text| part(text.trim_start())).filter(|name| !name.is_empty()).collect()
}

/// A domain controller, and its current state.
pub(super) struct Controller {
    /// The controller's settings object and the invocation id of its database. Change numbers are valid only for this
    /// pair.
    id: String,
    /// The DN of the controller's settings (`dsServiceName`).
    pub(super) service: String,
    /// The `invocationId` of its database, if it is visible to the bind account.
    pub(super) life: Option<String>,
    root: String,
    schema: String,
    pub(super) usn: u64,
    dirsync: bool,
}

impl Controller {
    /// Asks for the state of the controller. Returns `None` if the server does not show it.
    pub(super) async fn ask(ldap: &mut Ldap, limit: Duration) -> Result<Option<Self>, ReadError> {
        let names =
            ["defaultNamingContext", "schemaNamingContext", "dsServiceName", "highestCommittedUSN", "supportedControl"];
        let found = search(ldap, "", Scope::Base, "(objectClass=*)", &names, limit).await?;
        let Some(root) = found.first() else { return Ok(None) };
        let text = |name: &str| root.texts(name).next().map(str::to_owned);
        let fields = (text(names[0]), text(names[1]), text(names[2]), text(names[3]).and_then(|usn| usn.parse().ok()));
        let (Some(domain), Some(schema), Some(service), Some(usn)) = fields else { return Ok(None) };
        let dirsync = root.texts("supportedControl").any(|control| control == dirsync::OID);
        let life = match search(ldap, &service, Scope::Base, "(objectClass=*)", &["invocationId"], limit).await {
            Ok(found) => found.first().and_then(|entry| entry.values("invocationId").next().map(hex::encode)),
            Err(ReadError::Answer(_)) => None,
            Err(error) => return Err(error),
        };
        let id = format!("{service} {}", life.as_deref().unwrap_or_default());
        Ok(Some(Self { id, service, life, root: domain, schema, usn, dirsync }))
    }
}

/// Returns, for each of `names` that is in the schema, whether changes of the attribute's values are reported.
async fn told(
    ldap: &mut Ldap,
    schema: &str,
    names: impl Iterator<Item = &String>,
    limit: Duration,
) -> Result<BTreeMap<String, bool>, ReadError> {
    let mut any = String::new();
    for name in names {
        let _ = write!(any, "(lDAPDisplayName={})", ldap3::ldap_escape(name.as_str()));
    }
    let filter = format!("(&(objectClass=attributeSchema)(|{any}))");
    let wanted = ["lDAPDisplayName", "systemFlags", "linkID"];
    let number = |entry: &RawEntry, name: &str| entry.texts(name).next().and_then(|text| text.parse::<i64>().ok());
    let one = |entry: RawEntry| {
        let name = entry.texts("lDAPDisplayName").next()?.to_lowercase();
        // An odd linkID is a back link, which changes with the object at its other end.
        let untold =
            number(&entry, "systemFlags").unwrap_or(0) & UNTOLD != 0 || number(&entry, "linkID").unwrap_or(0) & 1 != 0;
        let told = !untold || TOLD_OTHERWISE.contains(&name.as_str());
        Some((name, told))
    };
    Ok(search(ldap, schema, Scope::OneLevel, &filter, &wanted, limit).await?.into_iter().filter_map(one).collect())
}

/// Whether the bind account can see deleted objects, so that deletions are reported to it. One visible deleted object
/// proves it.
async fn sees_deletions(ldap: &mut Ldap, root: &str, limit: Duration) -> Result<bool, ReadError> {
    let show = RawControl { ctype: SHOW_DELETED.to_owned(), crit: true, val: None };
    ldap.with_controls(vec![show, PagedResults { size: 1, cookie: Vec::new() }.into()]);
    let base = format!("<WKGUID={DELETED_OBJECTS},{root}>");
    let SearchResult(found, _) = timeout(limit, ldap.search(&base, Scope::OneLevel, "(objectClass=*)", vec!["1.1"]))
        .await
        .map_err(|_| ReadError::Timeout(limit))?
        .map_err(ReadError::Lost)?;
    Ok(found.iter().any(|item| !item.is_ref() && !item.is_intermediate()))
}

#[cfg(test)]
mod tests {
    use bursar_core::identity::AccountKind;

    use super::*;
    use crate::Preset;

    #[test]
    fn the_attributes_of_a_filter_are_found() {
        let names = |filter| named(filter).into_iter().collect::<Vec<_>>();
        assert_eq!(names("objectClass=user"), ["objectclass"]);
        let person = Preset::Ad.tree(AccountKind::User, "dc=x").filter;
        assert_eq!(names(&person), ["objectcategory", "objectclass"]);
        let nested = "(&(objectClass=user)(!(memberOf:1.2.840.113556.1.4.1941:=CN=a\\28b\\29,DC=x))(cn>=a))";
        assert_eq!(names(nested), ["cn", "memberof", "objectclass"]);
    }
}
