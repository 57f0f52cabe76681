//! The only function that prints error chains.

/// Returns `error` and its causes in one line, outermost first.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    let mut parts = vec![error.to_string()];
    for cause in causes.map(ToString::to_string) {
        // Some libraries repeat the text of their cause.
        if !parts.iter().any(|part| part.contains(&cause)) {
            parts.push(cause);
        }
    }
    parts.join(": ")
}
