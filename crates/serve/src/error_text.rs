//! Formats an API server's error for users.

/// Returns the message of the server's response; without a response, the client's error.
pub fn error_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}
