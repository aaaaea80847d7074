//! Hostile tests of the front's messages, from arbitrary bytes: decoding neither panics nor loops forever.

/// Decodes a message as each kind that the root process receives.
pub fn requests(bytes: &[u8]) {
    crate::server::any_request(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("privsep_requests", super::requests);
    }
}
