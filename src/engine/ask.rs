//! Somebody asks for an account.

use super::{Engine, EngineError};
use crate::control::api::{EnsureAnswer, EnsureRequest, Refusal, Trigger};
use crate::orders::ensure::{Asker, Ensured, ensure};

impl Engine {
    /// Notes that somebody asks for an account; answers how it is, and with the cycle that brings it nearer.
    pub async fn ensure(
        &mut self,
        asker: &Asker,
        request: &EnsureRequest,
    ) -> Result<(Result<EnsureAnswer, Refusal>, Option<Trigger>), EngineError> {
        let now = self.now();
        let (state, policy) = (self.store.state(), &self.settings.policy);
        let Ensured { changes, events, answer, wants } = ensure(state, policy, asker, request, now);
        self.store.write(&self.lock, &changes, &events, now).await?;
        Ok((answer, wants))
    }
}
