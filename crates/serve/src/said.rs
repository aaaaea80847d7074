//! What an API server said, without what was meant for programs.

/// The server's own words, where it has answered; else what the client says.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}
