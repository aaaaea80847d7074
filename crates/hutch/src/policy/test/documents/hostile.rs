//! Documents of any bytes.

use k8s_openapi::jiff::Timestamp;

use super::{Documents, McpCall};

/// Reads documents. The policies of those that are taken are valid, so each test has levels or a reason why it has none.
pub(crate) fn documents(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut documents = Documents::default();
    if let Err(error) = documents.add(text) {
        return assert!(!format!("{error:#}").contains('\n'), "{text:?}: {error:#}");
    }
    for policy in &documents.policies {
        assert_eq!(policy.check_new(), Ok(()), "{text:?}");
    }
    for test in &documents.tests {
        let _ = (documents.levels(test, Timestamp::UNIX_EPOCH), test.subject(), test.facts());
        for call in test.cases.iter().filter_map(|case| case.mcp.as_ref()) {
            let _ = McpCall::calls(call);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_tests", super::documents);
    }
}
