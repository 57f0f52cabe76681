//! `bursar report --out FILE`: writes the state of the whole site to one page, for managers and auditors.

use std::path::Path;

use super::arguments::Report;
use super::context::Context;
use super::exit::{Exit, Failure};
use super::{output, page};
use crate::bootstrap::replace_as;
use crate::daemon;
use crate::errors::chain;
use crate::report::overview::Overview;

/// The page contains mail addresses of people, so only the caller may read it.
const MODE: u32 = 0o600;

pub(super) async fn run(context: &Context, Report { out }: &Report) -> Result<Exit, Failure> {
    let prints = out == Path::new("-");
    if !prints {
        must_be_a_file(out)?;
    }
    let progress = output::progress("reading the ledger");
    let overview = context.reading(read(context)).await;
    progress.finish_and_clear();
    let overview = overview?;
    if !prints {
        let html = page::page(&overview);
        replace_as(out, html.as_bytes(), MODE, None).map_err(|error| Failure::new(Exit::Failed, chain(&error)))?;
    }
    if context.global.json {
        output::json(&overview)?;
    } else if prints {
        output::raw(&page::page(&overview));
    } else {
        output::line(format!("{}: {} as of {:.0}", out.display(), overview.site, overview.at));
    }
    Ok(Exit::Done)
}

async fn read(context: &Context) -> Result<Overview, Failure> {
    let policy = context.settings()?.policy;
    Ok(Overview::read(&mut context.store().await?, &policy, daemon::now()).await?)
}

/// Checks that the path is a regular file or does not exist, so that no link and no device is replaced.
fn must_be_a_file(path: &Path) -> Result<(), Failure> {
    let wrong = |what: &str| Err(Failure::new(Exit::Failed, format!("{}: {what}", path.display())));
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => wrong("it is not a regular file; name another one, or - to print the page"),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let exists = folder.is_none_or(Path::is_dir) && path.file_name().is_some();
            if exists { Ok(()) } else { wrong("its folder does not exist; make it, or name another file") }
        }
        Err(error) => wrong(&error.to_string()),
    }
}
