//! Random changes of adopted namespaces and persons, for the store's tests.

use jiff::Timestamp;
use proptest::prelude::*;

use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::ledger::adopted::AdoptedNamespace;
use crate::ledger::change::Change;

pub(super) fn change() -> impl Strategy<Value = Change> {
    let id = || (0_u8..4).prop_map(|n| AccountId(format!("a{n}").into()));
    prop_oneof![
        (id(), 0_u8..3).prop_map(|(id, n)| Change::Person(id, format!("p{n}"))),
        (0_u8..2, prop::option::of(prop::option::of(id())), 0_i64..9).prop_map(|(n, row, second)| {
            let name = NamespaceName::try_from(format!("lab-{n}")).expect("a name");
            let row = row.map(|account| AdoptedNamespace {
                uid: "u".to_owned(),
                class: "profile".to_owned(),
                owner: account.as_ref().map(ToString::to_string),
                named: account.clone(),
                why: account.is_none().then(|| "it has no annotation".to_owned()),
                account,
                since: Timestamp::from_second(1_790_000_000 + second).expect("the time is valid"),
            });
            Change::Adopted(ClusterName("prod".into()), name, row)
        }),
    ]
}
