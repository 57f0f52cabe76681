//! Issues a client certificate and has it delivered (§5).

use jiff::Timestamp;

use super::{ClusterEffects, StepError};
use crate::desired::{DesiredCredential, HomeTarget};
use crate::homes::client::HomedClient;
use crate::ledger::change::Change;
use crate::plan::AccountPlan;

/// What is to be issued and where it goes.
#[derive(Debug, Clone, Copy)]
pub struct Issue<'a> {
    /// For whom, and what the kubeconfig around it says.
    pub credential: &'a DesiredCredential,
    /// Of the subject.
    pub generation: u64,
    /// Into which home.
    pub home: &'a HomeTarget,
}

/// A test write in the home, a key, a request, its approval, and the kubeconfig. Answers with what the ledger keeps.
pub async fn issue(
    effects: &ClusterEffects,
    homes: &HomedClient,
    account: &AccountPlan,
    issue: Issue<'_>,
    now: Timestamp,
) -> Result<Vec<Change>, StepError> {
    let _ = (effects, homes, account, issue, now);
    std::future::ready(Err(StepError::Credential("this build issues no certificates yet".into()))).await
}
