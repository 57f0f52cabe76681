//! `bursar certs`: lists valid certificates and tokens with their end, or finds the holder of one.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::arguments::{Certs, CertsCommand};
use super::context::Context;
use super::exit::{Exit, Failure};
use super::output::{self, Row};
use crate::daemon;
use crate::report::who;
use crate::report::who::what::What;

pub(super) async fn run(context: &Context, arguments: &Certs) -> Result<Exit, Failure> {
    if let Some(CertsCommand::Who { fingerprint }) = &arguments.command {
        return who(context, fingerprint).await;
    }
    let mut rows = context.store().await?.rows("SELECT * FROM expiring_certificates", &[]).await?;
    if let Some(within) = arguments.expiring {
        let within = SignedDuration::try_from(within).unwrap_or(SignedDuration::MAX);
        let until = daemon::now().checked_add(within).unwrap_or(Timestamp::MAX);
        rows.retain(|row| ends_before(row, until));
    }
    let columns = ["account", "cluster", "kind", "host", "not_after", "renew_after", "fingerprint"];
    let none = if arguments.expiring.is_some() { "nothing expires within that time" } else { "no certificates" };
    output::list(context, &rows, &columns, none)
}

fn ends_before(row: &Row, until: Timestamp) -> bool {
    let end = row.get("not_after").and_then(Value::as_str).and_then(|text| text.parse::<Timestamp>().ok());
    end.is_none_or(|end| end <= until)
}

async fn who(context: &Context, what: &What) -> Result<Exit, Failure> {
    let What::Credential(id) = what else {
        let text = format!("{what} is neither a certificate nor a token; run: bursar who {what}");
        return Err(Failure::new(Exit::Usage, text));
    };
    let Some((_, row)) = who::credential(&mut context.store().await?, id).await? else {
        return Err(Failure::new(Exit::NoAccount, "no certificate or token with this id was ever issued here"));
    };
    if context.global.json {
        output::json(&row)?;
    } else {
        output::line(output::pairs(&row));
    }
    Ok(Exit::Done)
}
