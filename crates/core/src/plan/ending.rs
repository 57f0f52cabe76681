//! Plans the end of a tenant in one cluster: archive the namespace, delete it, and wait until it is gone.

use super::Action;
use super::tenant::Look;
use crate::desired::EndOfTenant;
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{Data, ObjectKey};

/// Returns the step that archives the namespace, if it is due.
pub(super) fn archive(look: Look<'_>) -> Option<Action> {
    let namespace = look.tenant.namespace.clone().filter(|_| look.tenant.end == Some(EndOfTenant::Archive))?;
    let file = file(look, &namespace);
    Some(Action::Archive { cluster: look.cluster.clone(), namespace, file })
}

/// Returns the deletion of the namespace, and the `deletes` outside it. Objects in the namespace are deleted with it.
/// Volumes stay, because they lead to the data. A namespace of this name with another UID was not created by this
/// ledger, and stays.
pub(super) fn deletion(look: Look<'_>, deletes: Vec<Action>) -> Vec<Action> {
    let namespace = look.tenant.namespace.as_ref().and_then(|namespace| of_namespace(look, namespace));
    let is_outside = |action: &Action| {
        matches!(action, Action::Delete { key, .. } if key.kind.data() == Data::None
            && (key.namespace.is_none() || key.namespace.as_deref() != look.tenant.namespace.as_ref().map(NamespaceName::as_str)))
    };
    let outside = deletes.into_iter().filter(is_outside);
    outside.chain(namespace).collect()
}

fn of_namespace(look: Look<'_>, namespace: &NamespaceName) -> Option<Action> {
    let key = ObjectKey::namespace(look.cluster, namespace);
    let record = look.ledger.objects.get(&key).filter(|record| record.account == *look.id)?;
    let found = look.there.objects.get(&key).filter(|found| found.uid == record.uid)?;
    let (cluster, namespace, uid) = (look.cluster.clone(), namespace.clone(), found.uid.to_string());
    if found.deleting {
        return Some(Action::AwaitDeletion { cluster, namespace, uid });
    }
    let archives = look.ledger.archives.iter();
    let own = archives.filter(|(_, archive)| archive.account == *look.id && archive.cluster == *look.cluster);
    let newest =
        own.max_by_key(|(_, archive)| archive.at).map(|(file, archive)| Box::new((file.clone(), archive.clone())));
    let file = file(look, &namespace);
    Some(Action::DeleteNamespace { cluster, namespace, uid, archived: newest, file })
}

/// Returns a file name such as `tool-foo.prod-2026-06-12T030000Z.tar.zst`. It is unique for each namespace, because the
/// name of a namespace contains no `.`.
fn file(look: Look<'_>, namespace: &NamespaceName) -> String {
    let ClusterName(cluster) = look.cluster;
    let at = format!("{:.0}", look.now).replace(':', "");
    format!("{namespace}.{cluster}-{at}.tar.zst")
}
