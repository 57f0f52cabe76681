//! `bursar users`: lists the users in the ledger.

use super::arguments::Filter;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::tools::list;

pub(super) async fn run(context: &Context, filter: &Filter) -> Result<Exit, Failure> {
    let rows = context.store().await?.rows("SELECT * FROM users ORDER BY name", &[]).await?;
    let columns = ["name", "uid", "home", "mail", "state", "since", "is_admin", "last_error"];
    list(context, filter, rows, ("users", &columns))
}
